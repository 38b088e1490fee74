"""The reverse pass: accumulates the gradient of every value from all of its users, from results to operands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from kernels_hub.compiler.autodiff.rule import NotDifferentiable, Site
from kernels_hub.compiler.autodiff.rules import derivative_of, is_flat, is_unknown
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.proofs import proves_equal

Call = Callable[[Site], Sequence[Value | None]]


class Reverse:
    """Gradients in a graph, to which it appends.

    varying: values that a gradient is asked for, and those that depend on them. calls: rules of composites by name.
    again: nodes that rules of composites made, to be computed a second time rather than kept.
    """

    def __init__(self, graph: Graph, varying: Collection[Value], calls: Mapping[str, Call]) -> None:
        self.graph, self.varying, self.calls = graph, varying, calls
        self.again: set[Node] = set()
        self.refused: dict[Node, str] = {}
        self._parts: dict[Value, list[Value]] = {}

    def add(self, value: Value, gradient: Value) -> None:
        """One more contribution to the gradient of a value."""
        self._parts.setdefault(value, []).append(gradient)

    def of(self, value: Value) -> Value | None:
        """The gradient of a value as far as it is known; None for zero."""
        parts = self._parts.get(value)
        if parts is None:
            return None
        if len(parts) > 1:
            parts = self._parts[value] = [_sum(parts)]
        return parts[0]

    def run(self, nodes: Sequence[Node], stand_ins: Mapping[Value, Value] | None = None) -> None:
        """Hand gradients of results on to operands, the last node first.

        stand_ins: what a rule is shown in the place of a result. What has no derivative is noted in `refused`.
        """
        for node in reversed(nodes):
            if len(node.results) != 1 or node.results[0] not in self.varying:
                continue
            (result,) = node.results
            wanted = tuple(operand in self.varying for operand in node.operands)
            gradient = self.of(result) if any(wanted) else None
            if gradient is None or is_flat(node):
                continue
            shown = (stand_ins or {}).get(result, result)
            before = len(self.graph.nodes)
            with self.graph.origin(_gradient_of(node.origin)):
                try:
                    found = rule_of(node, self.calls)(
                        Site(node.operands, shown, gradient, node.attrs, wanted)
                    )
                except NotDifferentiable as reason:
                    self.refused[node] = str(reason)
                    continue
            if node.op.name == "call":
                self.again.update(self.graph.nodes[before:])
            for operand, one, asked in zip(node.operands, found, wanted, strict=True):
                if one is not None and asked:
                    self.add(operand, one)


def _gradient_of(origin: str) -> str:
    return origin if not origin or origin.startswith(_GRADIENT) else _GRADIENT + origin


_GRADIENT = "gradient of "


def rule_of(node: Node, calls: Mapping[str, Call]) -> Call:
    """The rule that serves a node. Raises NotDifferentiable where there is none."""
    if node.op.name == "call" and node.attrs["callee"].name in calls:
        return calls[node.attrs["callee"].name]
    if is_unknown(node):
        raise NotDifferentiable(node.attrs["reason"])
    if (row := derivative_of(node.op)) is not None:
        return row.pull
    raise NotDifferentiable(f"{node.op.name} has no derivative")


def varying_from(nodes: Sequence[Node], wanted: Collection[Value]) -> set[Value]:
    """The floats among values, and among what they flow into, whose change changes results.

    What is of an unknown gradient counts, also where all that leads there ends before it.
    """
    found = {value for value in wanted if value.dtype.is_float}
    reached = set(found)
    for node in nodes:
        if any(operand in reached for operand in node.operands):
            reached.update(node.results)
            if is_unknown(node) or (not is_flat(node) and any(operand in found for operand in node.operands)):
                found.update(
                    value for value in node.results if value.dtype.is_float or value.dtype.is_complex
                )
    return found


def _sum(parts: Sequence[Value]) -> Value:
    """All contributions, added; parts of a whole that came back padded are put together instead."""
    first, *rest = _joined(parts)
    for one in rest:
        first = first + one
    return first


def _joined(parts: Sequence[Value]) -> Sequence[Value]:
    """Contributions that are zero but for a part, and whose parts make up a dim, as one concat."""
    padded: dict[int, list[tuple[Value, Dim, Dim]]] = {}
    for part in parts:
        if (found := _place(part)) is not None:
            padded.setdefault(found[0], []).append((part, found[1], found[2]))
    for axis, some in padded.items():
        if len(some) > 1 and (order := _in_order(some, axis)) is not None:
            whole = order[0].graph.apply("concat", *(one.operands[0] for one in order), axis=axis)
            return [whole, *(part for part in parts if part not in order)]
    return parts


def _place(value: Value) -> tuple[int, Dim, Dim] | None:
    """(axis, first, behind the last) of a value that is a pad with zeros along one axis."""
    if value.op_name != "pad" or value.attrs["mode"] != "constant" or value.operands[1].scalar != 0:
        return None
    axes = [
        axis
        for axis, pair in enumerate(value.attrs["padding"])
        if not all(proves_equal(one, 0) for one in pair)
    ]
    if len(axes) != 1:
        return None
    low, high = value.attrs["padding"][axes[0]]
    return axes[0], low, value.shape[axes[0]] - high


def _in_order(some: Sequence[tuple[Value, Dim, Dim]], axis: int) -> list[Value] | None:
    """Parts one after the other, if they make up the whole dim and each comes once."""
    left, order = list(some), []
    at: Dim = 0
    while left:
        following = next((one for one in left if proves_equal(one[1], at)), None)
        if following is None:
            return None
        left.remove(following)
        order.append(following[0])
        at = following[2]
    return order if proves_equal(at, order[0].shape[axis]) else None
