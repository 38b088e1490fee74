"""Interface of kernels of the library engine: `Site`, what they are made from, and `LibraryKernel`.

A kernel is made once for each place in a graph, and then called with tensors alone. Making it reads attributes and
shapes as numbers; where these depend on symbols, it is made again for each set of sizes (`SizesNeeded` says so).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernels_hub.compiler.engines.tensors import torch_dtype
from kernels_hub.compiler.ir.dims import Dim, Expr
from kernels_hub.compiler.ir.graph import Graph, Node, bound
from kernels_hub.compiler.ir.types import DType

Run = Callable[..., Any]
"""Tensors of the operands to the tensor of the result; to a tuple of them where the op has several."""


class SizesNeeded(Exception):
    """A kernel cannot be made before the sizes of symbols are known."""


class Site:
    """A node about to get its kernel: attributes and shapes in numbers."""

    __slots__ = ("_known", "_program", "device", "node", "sizes")

    def __init__(
        self,
        node: Node,
        device: torch.device,
        sizes: Mapping[str, int] | None,
        program: Callable[[Graph], Callable[[tuple[torch.Tensor, ...]], list[torch.Tensor]]] | None = None,
        known: dict[Expr, Dim] | None = None,
    ) -> None:
        """known: dims -> what they are with these sizes; grows, and is shared by the sites of a graph."""
        self.node, self.device, self.sizes = node, device, sizes
        self._program, self._known = program, known

    def part(self, graph: Graph) -> Callable[[tuple[torch.Tensor, ...]], torch.Tensor]:
        """A graph of one output as a function of tensors."""
        assert self._program is not None
        program = self._program(graph)
        return lambda operands: program(operands)[0]

    def __getitem__(self, name: str) -> Any:
        """An attribute."""
        return self._number(self.node.attrs[name])

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the first result."""
        return self._number(self.node.results[0].shape)  # type: ignore[no-any-return]

    @property
    def row(self) -> DType:
        """The IR's dtype of the first result."""
        return self.node.results[0].dtype

    @property
    def dtype(self) -> torch.dtype:
        """PyTorch's of the first result."""
        return torch_dtype(self.row)

    def operand_shape(self, place: int) -> tuple[int, ...]:
        """Of an operand."""
        return self._number(self.node.operands[place].shape)  # type: ignore[no-any-return]

    def operand_row(self, place: int) -> DType:
        """The IR's dtype of an operand."""
        return self.node.operands[place].dtype

    @property
    def rank(self) -> int:
        """Of the first operand."""
        return self.node.operands[0].rank

    def _number(self, value: Any) -> Any:
        if not _open(value):
            return value
        if self.sizes is None:
            raise SizesNeeded
        value = bound(value, self.sizes, self._known)
        if _open(value):
            raise SizesNeeded
        return value


def _open(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(_open(item) for item in value if not isinstance(item, int))
    return isinstance(value, Expr)


Reason = str | None


@dataclass(frozen=True)
class LibraryKernel:
    """make: the kernel of a site. dtypes: names of the dtypes that operands may have. declines: the reason it cannot
    take a node on a type of device; None where it can.
    """

    make: Callable[[Site], Run]
    dtypes: frozenset[str] | None = None
    declines: Callable[[Node, str], Reason] | None = None

    def refuses(self, node: Node, device: str) -> Reason:
        """Why not, or None."""
        if self.dtypes is not None:
            for operand in node.operands:
                if operand.dtype.name not in self.dtypes:
                    return f"{node.op.name} of {operand.dtype}"
        return self.declines(node, device) if self.declines is not None else None


def static(dims: tuple[Dim, ...]) -> bool:
    """Whether all dims are numbers."""
    return all(isinstance(dim, int) for dim in dims)


def regions(node: Node) -> list[Graph]:
    """Graphs that a node holds."""
    return [attr for attr in node.attrs.values() if isinstance(attr, Graph)]


NATIVE_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
FLOAT8 = frozenset({"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"})
FLOATS = NATIVE_FLOATS | FLOAT8
COMPLEX = frozenset({"complex64", "complex128"})
NATIVE_INTS = frozenset({"int8", "int16", "int32", "int64", "uint8"})
WIDENED_INTS = frozenset({"uint16", "uint32"})
INTS = NATIVE_INTS | WIDENED_INTS
BOOL = frozenset({"bool"})
REALS = FLOATS | INTS
NUMBERS = REALS | COMPLEX
WHOLE_BYTES = NUMBERS | BOOL | {"uint64", "float8_e8m0fnu"}
SUB_BYTE = frozenset({"int4", "uint4", "int2", "uint2", "float4_e2m1fn"})
EVERY = WHOLE_BYTES | SUB_BYTE


def computed_in(row: DType) -> torch.dtype | None:
    """The dtype that PyTorch has to compute a dtype in, where that is another: float8 in float32, uint32 in int64."""
    if row.name in FLOAT8:
        return torch.float32
    return torch.int64 if row.name in WIDENED_INTS else None


def widened(site: Site, run: Run) -> Run:
    """A kernel that computes in a wider dtype where PyTorch cannot in that of the operands; rounds or wraps once."""
    wide = computed_in(site.operand_row(0)) if site.node.operands else None
    if wide is None:
        return run
    finish = narrowed(site.row)
    return lambda *operands: finish(run(*(operand.to(wide) for operand in operands)))


def narrowed(row: DType) -> Callable[[torch.Tensor], torch.Tensor]:
    """From a wider dtype to this one. float8_e4m3fn has no infinity: what is out of range is NaN, as in NumPy."""
    dtype = torch_dtype(row)
    if row.name != "float8_e4m3fn":
        return lambda result: result.to(dtype)
    limit, nan = _E4M3FN_LIMIT, float("nan")
    return lambda result: torch.where(result.abs() > limit, nan, result).to(dtype)


_E4M3FN_LIMIT = 464.0
"""Half-way between the greatest, 448, and what would come next: up to here it rounds down."""
