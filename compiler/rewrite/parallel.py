"""Adds the weights of convolutions of one input whose results are added up, as in models with parallel branches.

    conv(x, w) + b + conv(x, v)     conv(x, w + v) + b

A smaller kernel counts as a larger one with zeros around it, where its padding is smaller by as much: 1 x 1 beside
3 x 3, as RepVGG and MobileOne have before they are merged for deployment. Not exact.
"""

from __future__ import annotations

from itertools import combinations

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.rewrite.affine_weights import static
from kernels_hub.compiler.rewrite.pattern import Any, Op, Scope
from kernels_hub.compiler.rewrite.rule import Match, Rule

MOST_TERMS = 16
"""Terms of a sum of which two are looked for."""

Pair = tuple[Value, Value, list[tuple[int, int]]]
"""The convolution with the larger kernel, the other, and the zeros before and behind its kernel."""


def _terms(root: Value, scope: Scope) -> list[Value]:
    """What is added up, with the sums that nothing else uses taken apart."""
    found: list[Value] = []
    waiting = [*root.operands]
    while waiting:
        one = waiting.pop(0)
        is_part = one.op_name == "add" and scope.uses(one) == 1 and not scope.is_output(one)
        if is_part and len(found) + len(waiting) < MOST_TERMS:
            waiting[:0] = one.operands
        else:
            found.append(one)
    return found


def _pair(terms: list[Value], scope: Scope) -> Pair | str:
    convolutions = [
        one
        for one in terms
        if one.op_name == "conv"
        and scope.uses(one) == 1
        and not scope.is_output(one)
        and static(one.operands[1]) is None
    ]
    if len(convolutions) < 2:
        return (
            f"{len(convolutions)} of its terms are convolutions with weights, of which nothing else is made"
        )
    for one, other in combinations(convolutions, 2):
        if one.operands[0] is not other.operands[0]:
            continue
        for large, small in ((one, other), (other, one)):
            around = _zeros_around(large, small)
            if around is not None:
                return large, small, around
    return "no two convolutions are of one input, and of kernels of which one lies within the other"


def _zeros_around(large: Value, small: Value) -> list[tuple[int, int]] | None:
    """How many zeros make the kernel of one as large as the other's, in each dim; None where it would differ then."""
    if any(large.attrs[name] != small.attrs[name] for name in ("strides", "dilations", "groups")):
        return None
    if large.operands[1].shape[:2] != small.operands[1].shape[:2]:
        return None
    found = []
    for axis, step in enumerate(large.attrs["dilations"]):
        size, own = (one.operands[1].shape[2 + axis] for one in (large, small))
        (before, behind), (less_before, less_behind) = (one.attrs["padding"][axis] for one in (large, small))
        numbers = (size, own, before, behind, less_before, less_behind)
        if not all(isinstance(number, int) for number in numbers):
            return None
        first, last = before - less_before, behind - less_behind
        if first < 0 or last < 0 or first % step or last % step or (first + last) // step != size - own:
            return None
        found.append((first // step, last // step))
    return found


def _merged(match: Match) -> Value:
    terms = _terms(match.root, match.scope)
    found = _pair(terms, match.scope)
    assert not isinstance(found, str)
    large, small, around = found
    weight = small.operands[1]
    if any(one != (0, 0) for one in around):
        zero = match.graph.constant(0.0, weight.dtype)
        weight = match.graph.apply("pad", weight, zero, padding=((0, 0), (0, 0), *around))
    made = match.graph.apply("conv", large.operands[0], large.operands[1] + weight, **large.attrs)
    for term in terms:
        if term is not large and term is not small:
            made = made + term
    return made


def _declined(match: Match) -> str | None:
    found = _pair(_terms(match.root, match.scope), match.scope)
    return found if isinstance(found, str) else None


PARALLEL = (
    Rule("parallel_convolutions", Op("add", Any("a"), Any("b")), _merged, _declined, exact=False,
         doc="conv(x, w) + conv(x, v) -> conv(x, w + v), w and v weights"),
)  # fmt: skip
