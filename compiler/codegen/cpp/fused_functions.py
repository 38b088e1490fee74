"""Functions of several ops that the runtime computes in one: GELU.

    x * 0.5 * (1 + erf(x * sqrt(0.5)))  ->  kh::gelu(x)

A sum with 1 forgets what an error function of small numbers costs, so the one takes half the time of the other. Not
where something else reads a part of it, as the gradient does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from kernels_hub.compiler.ir.op import Op
from kernels_hub.compiler.ir.types import FLOAT32
from kernels_hub.compiler.schedule.kernel import Compute, Constant, Nest, Statement, Store, arguments

GELU = Op(
    "gelu", "x * P(X <= x) of a normal X", 1, lambda _: None, spellings={"cpp": "kh::gelu({0})"}, cost=16
)  # fmt: skip
_OUTER, _INNER = 0.5, np.float32(math.sqrt(0.5))


def with_fused_functions(nest: Nest) -> Nest:
    """A nest with the functions of the runtime in place of what they compute."""
    makers = {one.name: one for one in nest.body if not isinstance(one, Store)}
    read = [name for one in nest.body for name in arguments(one)]
    own = {name: one for name, one in makers.items() if read.count(name) == 1 or isinstance(one, Constant)}
    body = [_fused(one, own) for one in nest.body]
    if all(new is one for new, one in zip(body, nest.body, strict=True)):
        return nest
    return replace(nest, body=_used(body, nest.body))


def _fused(one: Statement, makers: Mapping[str, Statement]) -> Statement:
    x = _gelu_of(one, makers)
    if x is None:
        return one
    assert isinstance(one, Compute)
    return replace(one, op=GELU, args=(x,), attrs={})


def _gelu_of(one: Statement, makers: Mapping[str, Statement]) -> str | None:
    if not isinstance(one, Compute) or one.dtype.compute is not FLOAT32:
        return None
    for halved, rest in _orders(one, "mul"):
        x = _scaled(halved, _OUTER, makers)
        for term, more in _orders(makers.get(rest), "add"):
            erf = makers.get(term)
            if x is None or not _is_number(more, 1.0, makers) or not _is_op(erf, "erf"):
                continue
            assert isinstance(erf, Compute)
            if _scaled(erf.args[0], float(_INNER), makers) == x:
                return x
    return None


def _is_op(one: Statement | None, op: str) -> bool:
    return isinstance(one, Compute) and one.op.name == op


def _orders(one: Statement | None, op: str) -> Sequence[tuple[str, str]]:
    """The operands of a commutative op, either way."""
    if not isinstance(one, Compute) or one.op.name != op:
        return ()
    a, b = one.args
    return (a, b), (b, a)


def _scaled(name: str, factor: float, makers: Mapping[str, Statement]) -> str | None:
    """x where a value is x * factor."""
    for x, scale in _orders(makers.get(name), "mul"):
        if _is_number(scale, factor, makers):
            return x
    return None


def _is_number(name: str, number: float, makers: Mapping[str, Statement]) -> bool:
    one = makers.get(name)
    if not isinstance(one, Constant) or not one.dtype.is_float:
        return False
    return bool(np.isclose(one.value, number, rtol=1e-7 if one.dtype is FLOAT32 else 4e-3, atol=0))


def _used(body: Sequence[Statement], before: Sequence[Statement]) -> tuple[Statement, ...]:
    """A body without what only the replaced ops read."""
    count: dict[str, int] = {}
    for one in body:
        for name in arguments(one):
            count[name] = count.get(name, 0) + 1
    once = {name for one in before for name in arguments(one)}
    kept: list[Statement] = []
    for one in reversed(body):
        if isinstance(one, Compute) and one.name in once and not count.get(one.name):
            for name in one.args:
                count[name] -= 1
            continue
        kept.append(one)
    return tuple(reversed(kept))
