"""Dims with their symbols replaced, and minima and maxima of dims, whose form depends on what is proved.

A minimum leaves out what proofs show never to be the smallest, so it stands above `proofs.py`; and a symbol that is
replaced inside a minimum makes another minimum.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernels_hub.compiler.ir.dims import (
    Atom,
    Dim,
    Opaque,
    Symbol,
    atom,
    check_facts,
    floordiv,
    mod,
    only_opaque,
    sort_key,
)
from kernels_hub.compiler.ir.proofs import proves_le


def dim_min(*dims: Dim) -> Dim:
    """The smallest of them."""
    return _extremum("min", dims)


def dim_max(*dims: Dim) -> Dim:
    """The largest of them."""
    return _extremum("max", dims)


def substitute(dim: Dim, bindings: Mapping[str, Dim]) -> Dim:
    """The dim with symbols replaced by name. Raises DimError where a value breaks a symbol's bounds."""
    if isinstance(dim, int) or not any(symbol.name in bindings for symbol in dim.symbols):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        term: Dim = coefficient
        for one, power in monomial:
            value = _substitute_atom(one, bindings)
            for _ in range(power):
                term = term * value
        total = total + term
    return total


def _substitute_atom(one: Atom, bindings: Mapping[str, Dim]) -> Dim:
    if isinstance(one, Symbol):
        value = bindings.get(one.name)
        if value is None:
            return atom(one)
        if isinstance(value, int):
            check_facts(one, value)
        return value
    assert isinstance(one, Opaque)
    return _BUILD[one.kind](*(substitute(arg, bindings) for arg in one.args))


def number(dim: Dim, sizes: Mapping[str, int]) -> int:
    """A dim with all symbols bound."""
    return dim if isinstance(dim, int) else int(substitute(dim, dict(sizes)))


def evaluated(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """A dim with all symbols replaced, whatever their bounds."""
    if isinstance(dim, int):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        term: Dim = coefficient
        for one, power in monomial:
            value = (
                values[one.name]
                if isinstance(one, Symbol)
                else _BUILD[one.kind](*(evaluated(arg, values) for arg in one.args))
            )
            for _ in range(power):
                term = term * value
        total = total + term
    return total


def _extremum(kind: str, dims: tuple[Dim, ...]) -> Dim:
    flat: list[Dim] = []
    for dim in dims:
        inner = None if isinstance(dim, int) else only_opaque(dim)
        flat += inner.args if inner is not None and inner.kind == kind else (dim,)
    kept: list[Dim] = []
    for dim in flat:
        if any(_dominates(kind, other, dim) for other in kept):
            continue
        kept = [other for other in kept if not _dominates(kind, dim, other)]
        kept.append(dim)
    if len(kept) == 1:
        return kept[0]
    return atom(Opaque(kind, tuple(sorted(kept, key=sort_key))))


def _dominates(kind: str, a: Dim, b: Dim) -> bool:
    """Whether b never decides beside a."""
    return proves_le(a, b) if kind == "min" else proves_le(b, a)


_BUILD = {"floordiv": floordiv, "mod": mod, "min": dim_min, "max": dim_max}
"""Kind of an opaque term -> what builds it anew from its arguments."""
