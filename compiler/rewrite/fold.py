"""Constant folding: constants, and what is computed from weights alone, are computed now, by the oracle.

1. an op on constants alone is a constant, where that is small or no larger than what it is made of; iotas and
   broadcasts of constants stay, but what is small and computed of them is a constant, too, and so are masks of some
   size, which attention is to look through; a constant that is one number everywhere is that number, broadcast
2. what is computed of parameters and constants alone becomes a parameter, whose array is made when it is needed;
   views of a parameter stay views, but for reshapes that no strides describe: of dims in another order than in memory
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.folded import Folded
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.transform import rebuild
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.rewrite.rule import Options, PassResult

_MASK = 1 << 23
"""Bytes of what a mask that is computed now is made of, each operand."""


@dataclass(frozen=True)
class FoldConstants:
    """Case 1."""

    name: str = "fold_constants"

    def run(self, graph: Graph, options: Options) -> PassResult:
        """The graph with every small op on constants computed."""
        if not any(_folds(node, options.fold_limit) for node in graph.live()):
            return PassResult(graph, Counter())
        fired: Counter[str] = Counter()

        def visit(new: Graph, node: Node, operands: tuple[Value, ...]) -> list[Value] | None:
            arrays = _constants(node, operands, options.fold_limit)
            if arrays is not None:
                made = _computed(node, arrays)
            elif node.op.name == "constant" and _repeats(node.attrs["value"].array, options.fold_limit):
                made = [node.attrs["value"].array]
            else:
                return None
            fired[self.name] += 1
            return [_constant(new, array) for array in made]

        return PassResult(rebuild(graph, visit).graph, fired)


def _folds(node: Node, limit: int) -> bool:
    """Whether a node is one to begin with: those that only other folds make foldable come behind it."""
    if node.op.name == "constant":
        return _repeats(node.attrs["value"].array, limit)
    return _constants(node, node.operands, limit) is not None


def _constants(node: Node, operands: tuple[Value, ...], limit: int) -> list[Array] | None:
    """Arrays of the operands, if all are known and the results are small enough; broadcasts stay."""
    if not operands or node.op.name == "broadcast" or node.op.defines is not None or node.symbols():
        return None
    if all(value.dtype is types.BOOL for value in node.results):
        limit = max(limit, _MASK)
    known: list[Array] = []
    for operand in operands:
        array = _known(operand, limit)
        if array is None:
            return None
        known.append(array)
    held = sum(operand.array.nbytes for operand in operands if operand.array is not None)
    return known if sum(_bytes(value) for value in node.results) <= max(limit, held) else None


def _known(value: Value, limit: int) -> Array | None:
    """The array of a constant, or of a small iota or broadcast of one."""
    if value.op_name not in {"iota", "broadcast"}:
        return value.array
    if value.node.symbols() or _bytes(value) > limit:
        return None
    arrays = [_known(operand, limit) for operand in value.operands]
    given = [array for array in arrays if array is not None]
    return _computed(value.node, given)[0] if len(given) == len(arrays) else None


def _bytes(value: Value) -> int:
    count = value.type.size
    assert isinstance(count, int)
    return count * max(value.dtype.bits // 8, 1)


def _computed(node: Node, arrays: Sequence[Array]) -> list[Array]:
    alone = Graph(node.op.name)
    constants = [alone.constant(array) for array in arrays]
    for index, value in enumerate(alone.add(node.op, constants, node.attrs).results):
        alone.output(str(index), value)
    return [evaluate(alone)[name] for name in alone.outputs]


def _constant(graph: Graph, array: Array) -> Value:
    if not _repeats(array, array.nbytes):
        return graph.constant(array)
    return graph.constant(array.reshape(-1)[:1].reshape(())).broadcast(array.shape, ())


def _repeats(array: Array, limit: int) -> bool:
    """Whether it is one number everywhere, bit for bit, and small enough to look."""
    if array.size < 2 or array.nbytes > limit:
        return False
    elements = np.ascontiguousarray(array).view(np.uint8).reshape(array.size, -1)
    return bool((elements == elements[0]).all())


@dataclass(frozen=True)
class FoldParameters:
    """Case 2: needs the parameters' arrays, or what loads them; parameters without stay as they are."""

    name: str = "fold_parameters"

    def run(self, graph: Graph, options: Options) -> PassResult:
        """The graph with arithmetic on weights made new weights. Loses the names of those that go into it."""
        del options
        static = _static(graph)
        borders = {value for value in static if _is_border(graph, value, static)}
        fired: Counter[str] = Counter()
        taken = set(graph.parameters) | set(graph.inputs)

        def visit(new: Graph, node: Node, _: tuple[Value, ...]) -> list[Value] | None:
            if not node.results or node.results[0] not in borders:
                return None
            fired[self.name] += 1
            value = node.results[0]
            name = _fresh(f"folded.{_named(value)}", taken)
            return [new.parameter(name, value.shape, value.dtype, _array_of(value))]

        return PassResult(rebuild(graph, visit).graph if borders else graph, fired)


def _static(graph: Graph) -> dict[Value, bool]:
    """Values of parameters and constants alone -> whether a parameter is among them, and some op computes."""
    found: dict[Value, bool] = {}
    for node in graph.live():
        name = node.op.name
        if name == "constant":
            found[node.results[0]] = False
        elif name == "parameter":
            if node.attrs["name"] in graph.weights and not node.symbols():
                found[node.results[0]] = False
        elif (
            node.operands
            and len(node.results) == 1
            and node.op.defines is None
            and Trait.REGION not in node.op.traits
            and not node.symbols()
            and all(operand in found for operand in node.operands)
        ):
            computes = Trait.VIEW not in node.op.traits or _reorders(node)
            found[node.results[0]] = computes or any(found[operand] for operand in node.operands)
    return found


def _is_border(graph: Graph, value: Value, static: dict[Value, bool]) -> bool:
    """Whether something is computed of weights up to here, this op included, and used by what is no weight."""
    if not static[value] or (Trait.VIEW in value.op.traits and not _reorders(value.node)):
        return False
    return graph.is_output(value) or any(
        result not in static or (Trait.VIEW in user.op.traits)
        for user in value.users
        for result in user.results
    )


def _reorders(node: Node) -> bool:
    """Whether a node is a reshape that makes one dim of several that a permute has put in another order."""
    if node.op.name != "reshape" or node.operands[0].op_name != "permute":
        return False
    (permuted,) = node.operands
    order = [axis for axis in permuted.attrs["order"] if permuted.operands[0].shape[axis] != 1]
    return order != sorted(order) and len(order) > sum(dim != 1 for dim in node.results[0].shape)


def _array_of(value: Value) -> Folded:
    part = Graph("weights")
    mapped: dict[Value, Value] = {}
    stack = [value]
    while stack:
        one = stack[-1]
        waiting = [operand for operand in one.operands if operand not in mapped]
        stack.extend(waiting)
        if not waiting:
            stack.pop()
            if one not in mapped:
                copied = part.copy(one.node, tuple(mapped[operand] for operand in one.operands))
                mapped[one] = copied.results[0]
    part.output("array", mapped[value])
    return Folded(part)


def _named(value: Value) -> str:
    """The name of the first parameter that it is made of."""
    while value.op_name != "parameter":
        if not value.operands:
            return "constant"
        value = value.operands[0]
    return str(value.attrs["name"])


def _fresh(name: str, taken: set[str]) -> str:
    count, one = 1, name
    while one in taken:
        count, one = count + 1, f"{name}.{count + 1}"
    taken.add(one)
    return one
