"""Binds symbols to the shapes that are given, numbers or dims: the IR's side of `runtime/sizes.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from kernels_hub.compiler.errors import DimError, ShapeError
from kernels_hub.compiler.ir.dims import Dim, Expr, Opaque, Symbol, check_facts, dim_symbols, names, symbol
from kernels_hub.compiler.ir.extrema import evaluated, substitute
from kernels_hub.compiler.ir.op import Shape, TensorType, require_equal, show
from kernels_hub.compiler.runtime.errors import Misfit, SizeMisfit
from kernels_hub.compiler.runtime.sizes import (
    Bound,
    Declared,
    Equation,
    ShapeBinder,
    SymbolicDim,
    named,
    solutions,
)


def bind_shapes(
    declared: Mapping[str, TensorType],
    shapes: Sequence[Sequence[int]],
    what: str = "input",
) -> dict[str, int]:
    """The size of each symbol in the declared shapes, in any order of them.

    Raises ShapeError where shapes do not fit, naming both that contradict each other, or tell too little; DimError
    where a size breaks the bounds of its symbol.
    """
    if len(declared) != len(shapes):
        raise ShapeError(f"{len(declared)} shapes are declared, got {len(shapes)}")
    try:
        return _binder(tuple(declared.items()), what).of(shapes)
    except SizeMisfit as misfit:
        raise DimError(str(misfit)) from None
    except Misfit as misfit:
        raise ShapeError(str(misfit)) from None


@lru_cache(maxsize=256)
def _binder(declared: tuple[tuple[str, TensorType], ...], what: str) -> ShapeBinder:
    inputs = [
        Declared(name, f"{what} {name!r} {of}", tuple(map(runtime_dim, of.shape))) for name, of in declared
    ]
    return ShapeBinder(inputs, bounds(dim for _, of in declared for dim in of.shape), what)


def bounds(dims: Iterable[Dim]) -> dict[str, Bound]:
    """Symbol -> its bounds."""
    return {one.name: Bound(one.min, one.max, one.facts) for one in sorted(dim_symbols(dims))}


@lru_cache(maxsize=1024)
def runtime_dim(dim: Dim) -> int | SymbolicDim:
    """A dim as the runtime takes it."""
    if isinstance(dim, int):
        return dim
    if dim.only_symbol is not None:
        return named(dim.only_symbol.name)
    symbols = tuple(names(dim))

    def value(*sizes: Dim) -> Dim:
        return evaluated(dim, dict(zip(symbols, sizes, strict=True)))

    return SymbolicDim(str(dim), symbols, linear_symbols(dim), value)


def linear_symbols(dim: Expr) -> tuple[str, ...]:
    """The symbols that a dim is linear in, whatever the others are."""
    factors = [factor for monomial, _ in dim.terms for factor in monomial]
    linear_in = {one.name for one, _ in factors if isinstance(one, Symbol)}
    powers = {one.name for one, power in factors if isinstance(one, Symbol) and power > 1}
    opaque = dim_symbols(arg for one, _ in factors if isinstance(one, Opaque) for arg in one.args)
    return tuple(sorted(linear_in - powers - {one.name for one in opaque}))


def told_symbols(shapes: Iterable[Shape]) -> set[str]:
    """The symbols whose sizes the numbers in these places tell, whatever they are."""
    told: dict[str, Dim] = {}
    equations = [
        Equation(of, dim, (0, axis))
        for shape in shapes
        for axis, dim in enumerate(shape)
        if isinstance(of := runtime_dim(dim), SymbolicDim)
    ]
    for name, _, _, _ in solutions(equations, told):
        told[name] = symbol(name)
    return set(told)


def linear(dim: Dim) -> tuple[Symbol, int, int] | None:
    """(symbol, factor, constant) of a dim that is factor * symbol + constant; None of all others."""
    if isinstance(dim, int) or len(dim.symbols) != 1:
        return None
    (symbol,) = dim.symbols
    rest = [(monomial, factor) for monomial, factor in dim.terms if monomial]
    if len(rest) != 1 or rest[0][0] != ((symbol, 1),):
        return None
    return symbol, rest[0][1], dim.constant


def sized(shape: Shape, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """A shape in numbers; None where a symbol of it has no size yet."""
    dims = tuple(substitute(dim, sizes) for dim in shape)
    return None if any(isinstance(dim, Expr) for dim in dims) else dims


class Unified(NamedTuple):
    """A declared shape, the one given for it, and what messages call it."""

    declared: Shape
    given: Shape
    what: str


def unify(declared: Shape, given: Shape, bindings: dict[str, Dim], what: str) -> None:
    """Bind the symbols of a declared shape to the dims given, of which some may be symbolic themselves.

    Raises ShapeError where they contradict.
    """
    unify_all([Unified(declared, given, what)], bindings)


def unify_all(pairs: Sequence[Unified], bindings: dict[str, Dim]) -> None:
    """As `unify`, of several shapes, which together tell their symbols: the first need not do so alone."""
    for declared, given, what in pairs:
        if len(declared) != len(given):
            raise ShapeError(f"{what} is {show(declared)}, got {show(given)}: another rank")
    symbols = {symbol.name: symbol for one in pairs for symbol in dim_symbols(one.declared)}
    equations = [
        Equation(of, size, (position, axis))
        for position, one in enumerate(pairs)
        for axis, (dim, size) in enumerate(zip(one.declared, one.given, strict=True))
        if isinstance(of := runtime_dim(dim), SymbolicDim) and size is not dim
    ]
    for name, multiple, factor, _ in solutions(equations, bindings):
        if factor == 1 and not isinstance(multiple, int):
            bindings[name] = multiple
        elif isinstance(multiple, int) and multiple % factor == 0 and multiple // factor >= symbols[name].min:
            check_facts(symbols[name], multiple // factor)
            bindings[name] = multiple // factor
    for declared, given, what in pairs:
        for axis, (dim, size) in enumerate(zip(declared, given, strict=True)):
            require_equal(
                substitute(dim, bindings),
                size,
                f"dim {axis} of {what} {show(declared)}",
                f"dim {axis} given {show(given)}",
            )
