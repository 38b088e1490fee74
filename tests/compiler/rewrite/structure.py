"""The structure of a rewritten graph as text: what two importers of one model must agree on.

Every op on what moves, operands first; a composite stands as its name and its operands' names. Left out are what
importers may differ in without a difference to the engines: names and spelling of weights (whatever is made of
parameters and constants alone is a `weight` of a shape, or a `number`), broadcasts of vectors and numbers, what is
inside a composite, the order of operands of commutative ops, the order of independent ops, and that PyTorch refuses
negative indices where ONNX counts them from the end.
"""

from __future__ import annotations

import hashlib
from collections import Counter

from kernels_hub.compiler import Graph, Value
from kernels_hub.compiler.ir.graph import Node
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.transform import rebuild
from kernels_hub.compiler.rewrite.outline import composite


def kinds(graph: Graph) -> Counter[str]:
    """Ops on what moves, by kind; composites by name."""
    graph = _from_either_end(graph)
    still = _still(graph)
    return Counter(
        composite(one) or node.op.name
        for node in graph.live()
        for one in node.results
        if one not in still and node.op.name != "input"
    )


def structure(graph: Graph) -> str:
    """One line an op, numbered: `%7 = layer_norm(x=%5, eps=number, weight=weight[32]) : float32[2, 7, 32]`."""
    return _Writer(_from_either_end(graph)).text()


def _from_either_end(graph: Graph) -> Graph:
    """The graph whose gathers count negative indices from the end: without `select(i < 0, size, i)` before them."""

    def visit(new: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
        if node.op.name != "gather" or operands[1].op_name != "select":
            return None
        is_negative, size, indices = operands[1].operands
        asks = is_negative.op_name == "lt" and is_negative.operands[0] is indices
        if (
            not asks
            or is_negative.operands[1].scalar != 0
            or size.scalar != operands[0].shape[node.attrs["axis"]]
        ):
            return None
        return operands[0].gather(indices, node.attrs["axis"])

    return rebuild(graph, visit).graph


def _still(graph: Graph) -> set[Value]:
    """What is made of parameters and constants alone."""
    still: set[Value] = set()
    for node in graph.live():
        if node.op.name in {"parameter", "constant"} or (
            node.operands and all(operand in still for operand in node.operands)
        ):
            still |= set(node.results)
    return still


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.still = graph, _still(graph)
        self.keys: dict[Value, str] = {}
        self.names: dict[Value, str] = {}
        self.lines: list[str] = []
        for node in graph.live():
            for value in node.results:
                self.keys[value] = self._key(value)

    def text(self) -> str:
        for number, value in enumerate(self.graph.inputs.values()):
            self.names[value] = f"%{number}"
            self.lines.append(f"%{number} = input : {value.type}")
        for value in self.graph.outputs.values():
            self._write(value)
        shown = ", ".join(self.names[value] for value in self.graph.outputs.values())
        return "\n".join([*self.lines, f"return {shown}", ""])

    def _key(self, value: Value) -> str:
        """Equal for values that are made in the same way."""
        if value in self.still:
            return self._shown_still(value)
        if value.op_name == "input":
            return f"input {list(self.graph.inputs.values()).index(value)}"
        inside = ",".join(self.keys[one] for one in self._ordered(value))
        return hashlib.sha256(f"{self._op(value)}({inside}){value.type}".encode()).hexdigest()

    def _ordered(self, value: Value) -> tuple[Value, ...]:
        if Trait.COMMUTATIVE in value.op.traits:
            return tuple(sorted(value.operands, key=lambda one: (one in self.still, self.keys[one])))
        return value.operands

    def _op(self, value: Value) -> str:
        name = composite(value)
        if name is not None:
            return f"{name} {list(value.attrs['callee'].inputs)}"
        return value.op_name + " ".join(_attributes(value))

    def _shown_still(self, value: Value) -> str:
        if value.scalar is not None:
            return "number"
        while value.op_name == "broadcast" and value.operands[0].rank < 2:
            value = value.operands[0]
        return f"weight[{', '.join(map(str, value.shape))}]"

    def _write(self, root: Value) -> None:
        stack = [root]
        while stack:
            value = stack[-1]
            if value in self.names:
                stack.pop()
                continue
            if value in self.still:
                self.names[stack.pop()] = self._shown_still(value)
                continue
            operands = self._ordered(value)
            waiting = [one for one in operands if one not in self.names]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            number = len(self.lines)
            self.names[stack.pop()] = f"%{number}"
            shown = [self.names[one] for one in operands]
            if (name := composite(value)) is not None:
                named = zip(value.attrs["callee"].inputs, shown, strict=True)
                call = f"{name}({', '.join(f'{key}={one}' for key, one in named)})"
            else:
                call = f"{value.op_name}({', '.join([*shown, *_attributes(value)])})"
            self.lines.append(f"%{number} = {call} : {value.type}")


def _attributes(value: Value) -> list[str]:
    """Those that are not what they are by default; the dtype stands in the result's type."""
    return [
        f"{one.name}={list(given) if isinstance(given, tuple) else given}"
        for one in value.op.attrs
        if (given := value.attrs[one.name]) != one.default and one.name != "dtype"
    ]
