"""Sizes of symbols from the shapes of what is given: solved where a dim is linear in one, then all of it checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernels_hub.compiler.errors import DimError, ShapeError
from kernels_hub.compiler.ir.dims import Dim, Expr, Symbol, check_facts, substitute
from kernels_hub.compiler.ir.op import Shape, TensorType, show


def bind_shapes(
    declared: Mapping[str, TensorType], shapes: Sequence[Sequence[int]], what: str = "input"
) -> dict[str, int]:
    """The size of each symbol in the declared shapes, in any order of them.

    Raises ShapeError where shapes do not fit, naming both that contradict each other, or tell too little; DimError
    where a size breaks the bounds of its symbol.
    """
    sizes: dict[str, int] = {}
    told: dict[str, str] = {}
    open_dims: list[tuple[Expr, int, str]] = []
    for (name, of), shape in zip(declared.items(), shapes, strict=True):
        place = f"{what} {name!r} {of}"
        if len(shape) != len(of.shape):
            raise ShapeError(
                f"{place} got {show(tuple(shape))}, which has rank {len(shape)}, not {len(of.shape)}"
            )
        for axis, (dim, size) in enumerate(zip(of.shape, shape, strict=True)):
            if isinstance(dim, int):
                if dim != size:
                    raise ShapeError(
                        f"{place} got {show(tuple(shape))}: dim {axis} is {size}, expected {dim}"
                    )
            else:
                open_dims.append((dim, size, f"{place} got {show(tuple(shape))}: dim {axis}"))
    while _solve_one(open_dims, sizes, told):
        pass
    for dim, size, place in open_dims:
        found = substitute(dim, sizes)
        if isinstance(found, Expr):
            unknown = ", ".join(sorted(one.name for one in found.symbols))
            raise ShapeError(f"{place} is {dim}, which does not tell {unknown}; no other {what} does either")
        if found != size:
            because = "; ".join(
                f"{one.name} = {sizes[one.name]} by {told[one.name]}" for one in sorted(dim.symbols)
            )
            raise ShapeError(f"{place} is {size}, but {dim} is {found} ({because})")
    return sizes


def _solve_one(open_dims: list[tuple[Expr, int, str]], sizes: dict[str, int], told: dict[str, str]) -> bool:
    """Bind one more symbol: by itself, then by a dim of it alone, so that contradictions are told in these terms."""
    for level in range(3):
        for dim, size, place in open_dims:
            if level != (0 if dim.only_symbol is not None else 1 if len(dim.symbols) == 1 else 2):
                continue
            rest = substitute(dim, sizes)
            if (found := linear(rest)) is None:
                continue
            one, factor, constant = found
            if (size - constant) % factor:
                raise ShapeError(f"{place} is {size}, but no {one.name} makes {dim} that")
            value = (size - constant) // factor
            try:
                check_facts(one, value)
            except DimError as error:
                raise DimError(f"{place} is {size}: {error}") from error
            sizes[one.name], told[one.name] = value, place
            return True
    return False


def linear(dim: Dim) -> tuple[Symbol, int, int] | None:
    """(symbol, factor, constant) of a dim that is factor * symbol + constant; None of all others."""
    if isinstance(dim, int) or len(dim.symbols) != 1:
        return None
    (one,) = dim.symbols
    rest = [(monomial, factor) for monomial, factor in dim.terms if monomial]
    if len(rest) != 1 or rest[0][0] != ((one, 1),):
        return None
    return one, rest[0][1], dim.constant


def sized(shape: Shape, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """A shape in numbers; None where a symbol of it has no size yet."""
    dims = tuple(substitute(dim, sizes) for dim in shape)
    return None if any(isinstance(dim, Expr) for dim in dims) else dims
