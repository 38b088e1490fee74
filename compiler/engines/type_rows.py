"""Types of tensors and symbols as rows of a file's header, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from kernels_hub.compiler.engines.container import Bytes
from kernels_hub.compiler.errors import DimError
from kernels_hub.compiler.ir.dims import Dim, Expr
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.op import TensorType
from kernels_hub.compiler.ir.text import parse_dim
from kernels_hub.compiler.ir.types import dtype
from kernels_hub.parsing import Text

DimRow = Bytes | Text
Dims = tuple[DimRow, ...]
TypeRow = tuple[Text, Dims]
NamedRow = tuple[Text, Text, Dims]
SymbolRow = tuple[Bytes, Bytes | None]


def type_row(of: TensorType) -> list[object]:
    """Name of the dtype, and dims: numbers, and expressions as text."""
    return [of.dtype.name, [dim_row(dim) for dim in of.shape]]


def dim_row(dim: Dim) -> int | str:
    """A dim as a number, or as text."""
    return str(dim) if isinstance(dim, Expr) else dim


def type_of(row: Sequence[object], facts: Mapping[str, Expr]) -> TensorType:
    """What `type_row` wrote. facts: symbols by name. Raises DimError for others, CompilerError for what is no type."""
    name, dims = cast("TypeRow", row)
    return TensorType(dtype(name), tuple(dim_of(dim, facts) for dim in dims))


def dim_of(row: int | str, facts: Mapping[str, Expr]) -> Dim:
    """What `dim_row` wrote. Raises as `type_of` does."""
    if isinstance(row, int):
        return row

    def known(symbol: str) -> Expr:
        if symbol not in facts:
            raise DimError(f"the size {symbol[:100]!r} is not among the symbols")
        return facts[symbol]

    return parse_dim(row, known)


def symbol_of(name: str, least: int, most: int | None) -> Expr:
    """A symbol of that name and those bounds. Raises DimError for what is none."""
    return Graph().symbol(name, least, most)


def symbol_row(expr: Expr) -> tuple[int, int | None]:
    """The bounds of a symbol."""
    only = expr.only_symbol
    assert only is not None
    return only.min, only.max
