"""Makes Fourier transforms write their frequencies in the order of dims that all takes them in.

    permute(part of fourier(x, last axis), order)    part of fourier(permute(x, order), where that axis went)

So is the spectrogram of `stft`, whose frames come last: the transform reads rows, and writes columns side by side,
where reading its result across them takes several times as long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.transform import rebuild
from kernels_hub.compiler.rewrite.rule import Options, PassResult

_LEAST = 8
"""Transforms side by side, below which vectors would be half empty."""


@dataclass(frozen=True)
class Transposed:
    """See the module."""

    name: str = "transposed_transforms"

    def run(self, graph: Graph, options: Options) -> PassResult:
        """The graph with each transform that all permute alike in that order; kernels may round otherwise along it."""
        moved = _moved(graph) if options.rounding else set()
        fired: Counter[str] = Counter()

        def visit(_: Graph, node: Node, operands: tuple[Value, ...]) -> Sequence[Value] | None:
            if node.results[0] not in moved:
                return None
            fired[self.name] += 1
            return (_in_order(operands[0], node.attrs["order"]),)

        return PassResult(rebuild(graph, visit).graph, fired) if moved else PassResult(graph)


def _in_order(part: Value, order: tuple[int, ...]) -> Value:
    """A part of a transform, of which it was made along the last axis, permuted."""
    cut = part.operands[0]
    transform = cut.operands[0].operands[0]
    attrs = {**transform.attrs, "axis": order.index(part.rank - 1)}
    operands = [operand.permute(*order) for operand in transform.operands]
    return transform.apply("fourier", *operands, **attrs).parts()[cut.attrs["starts"][-1]]


def _moved(graph: Graph) -> set[Value]:
    """Permutes of parts of transforms along the last axis, where all that takes these permutes them alike."""
    found: set[Value] = set()
    for node in graph.live():
        is_pairs = node.op.name == "fourier" and node.attrs["form"] != "real"
        if is_pairs and node.attrs["axis"] == node.operands[0].rank - 1:
            found |= _permutes(node.results[0])
    return found


def _permutes(transform: Value) -> set[Value]:
    """All that becomes of a transform, if it is the same permutation of its parts; else nothing."""
    level = {transform}
    for op in ("reshape", "slice", "reshape", "permute"):
        if any(value.graph.is_output(value) for value in level):
            return set()
        level = {user.results[0] for value in level for user in value.users}
        if not level or any(user.op_name != op for user in level):
            return set()
        if op == "slice" and not all(map(_is_part, level)):
            return set()
    orders = {value.attrs["order"] for value in level}
    shapes = {value.shape for value in level}
    if len(orders) != 1 or len(shapes) != 1 or len(next(iter(shapes))) != transform.rank:
        return set()
    (order,), (shape,) = orders, shapes
    last = shape[-1]
    is_wide = not isinstance(last, int) or last >= _LEAST
    return level if order[-1] != transform.rank - 1 and is_wide else set()


def _is_part(cut: Value) -> bool:
    """Whether a slice is the real, or the imaginary, parts of pairs."""
    pairs, starts, stops = cut.operands[0], cut.attrs["starts"], cut.attrs["stops"]
    is_whole = all(start == 0 for start in starts[:-1]) and stops[:-1] == pairs.shape[:-1]
    return is_whole and pairs.shape[-1] == 2 and cut.shape[-1] == 1 and set(cut.attrs["steps"]) == {1}
