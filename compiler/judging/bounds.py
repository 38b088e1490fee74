"""Error bounds: how far each element of a right result may be from the oracle's, by running error analysis.

Beside the value v of each element goes a bound e of its error, and a magnitude m: what v would be if no term of a sum
cancelled another. With u the unit roundoff of a dtype and S the factor `computed.SAFETY`,

    a + b            e² = ea² + eb² + (S u m)²                       m = ma + mb
    a b              e² = (ea b)² + (a eb)² + (S u m)²               m = ma mb
    sum of K terms   e² = sum of e² + (S u (1 + sqrt(K)/4) m)²       m = sum of m
    f(x)             e  = the change of f where x moves by e and by S u |x|, + S u |f(x)|

so that sums may be reordered, factored and associated, and nothing else may change. Errors add up in squares, as those
of independent roundings do; S makes up for what is not independent. What a cast, a comparison or a rounding to whole
numbers does is known exactly where its operand is: the bound is then 0, and the sign of a zero counts.

A bound is infinite, and the element is not judged, where right programs differ: on the wrong side of a comparison by
less than the error, after an overflow of a term, where infinities of a sum meet.

Source: Higham, Accuracy and Stability of Numerical Algorithms, chapters 2-4; Higham and Mary, A New Approach to
Probabilistic Rounding Error Analysis (2019), for squares instead of sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernels_hub.compiler.errors import EvaluateError
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import ReferenceCall
from kernels_hub.compiler.ir.types import Array, DType
from kernels_hub.compiler.judging.computed import At, Pair, loose, magnitude_of
from kernels_hub.compiler.judging.error_rules import OF_FLOATS, rule_of, whole
from kernels_hub.compiler.judging.roundoff import largest

_TRAPS = frozenset({"div", "floordiv", "mod", "fmod"})


class TrapError(EvaluateError):
    """An input makes native code trap: an integer is divided by 0, or the least one by -1. No input to judge by."""


@dataclass(frozen=True)
class Bounded:
    """values: what the oracle gives; bounds: float64, of the same shapes, by name. Infinite: not judged."""

    values: Mapping[str, Array]
    bounds: Mapping[str, Array]


def bounded(
    graph: Graph,
    inputs: Mapping[str, object] | Sequence[object] = (),
    *,
    bindings: Mapping[str, int] | None = None,
    weights: Mapping[str, Array] | None = None,
) -> Bounded:
    """The oracle's outputs of a graph, and how far each element of a right program's may be from them.

    Raises what `evaluate` does, and TrapError for inputs that native code cannot take.
    """
    running = _Running(graph)
    values = evaluate(graph, inputs, bindings=bindings, weights=weights, observe=running)
    return Bounded(values, {name: running.errors[one][0] for name, one in graph.outputs.items()})


class _Running:
    """Called after each op; keeps the pair of each value for as long as something uses it."""

    def __init__(self, graph: Graph) -> None:
        self.errors: dict[Value, Pair] = {}
        self._arrays: dict[Value, Array] = {}
        self._last = {operand: node for node in graph.live() for operand in node.operands}
        self._kept = set(graph.outputs.values())

    def __call__(self, node: Node, step: ReferenceCall | None, results: Sequence[Array]) -> None:
        with np.errstate(all="ignore"):
            if step is None or not node.operands:
                for value, array in zip(node.results, results, strict=True):
                    self.errors[value] = np.zeros(array.shape), magnitude_of(array)
            else:
                pairs = [self.errors[operand] for operand in node.operands]
                for value, array, pair in zip(
                    node.results, results, _pairs(node, step, pairs, results), strict=True
                ):
                    self.errors[value] = _settled(value.dtype, array, pair)
        for one in (*node.operands, *node.results):
            if self._last.get(one, node) is node and one not in self._kept:
                self.errors.pop(one, None)


def _settled(row: DType, array: Array, pair: Pair) -> Pair:
    error, size = (np.broadcast_to(np.asarray(one, np.float64), array.shape) for one in pair)
    most = largest(row) / 4 if row.is_float or row.is_complex else np.inf
    if np.max(error, initial=0.0) < np.inf and np.max(size, initial=0.0) <= most:
        return error, size  # no element is infinite, or no number
    error = np.where(np.isnan(error), np.inf, error)
    if row.is_float or row.is_complex:
        overflown = np.isfinite(array.astype(np.complex128 if row.is_complex else np.float64))
        error = np.where(overflown & ~(size <= most), np.inf, error)
        size = np.where(np.isnan(size), np.inf, size)
    return error, size


def _pairs(node: Node, step: ReferenceCall, pairs: list[Pair], results: Sequence[Array]) -> list[Pair]:
    if len(results) == 1:
        kinds = {one.dtype.kind for one in (*node.operands, *node.results)}
        rule = None if "complex" in kinds else rule_of(node.op)
        at = At(node, step, [one for one, _ in pairs], [one for _, one in pairs], results[0])
        if node.op.name in _TRAPS and node.results[0].dtype.is_integer:
            _refuse_traps(step)
        if rule is not None and not (rule in OF_FLOATS and not at.row.is_float):
            return [rule(at)]
        if at.row.is_integer or at.row.kind == "bool":
            return [whole(at)]
        return [loose(pairs, step, results[0])]
    return [loose(pairs, step, result) for result in results]


def _refuse_traps(step: ReferenceCall) -> None:
    a, b = step.operands
    worst = np.iinfo(a.dtype).min if a.dtype.kind == "i" else None
    if (b == 0).any() or (worst is not None and ((a == worst) & (b == -1)).any()):
        raise TrapError(f"{a.dtype} is divided by 0, or its least number by -1: programs need not take that")
