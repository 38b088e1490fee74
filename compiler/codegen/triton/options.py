"""Tuning choices of Triton kernels: tiles, warps and pipeline stages, by sizes and architecture.

Where the sizes are numbers, the choice stands in the generated source; where they are symbolic, a call makes it
(`Tile`), and Triton compiles another variant when another is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernels_hub.compiler.ir.dims import Dim


@dataclass(frozen=True)
class Tile:
    """Compile-time parameters of a launch: as numbers, or as the call that makes them, kept in the variable `tile`."""

    numbers: dict[str, int]
    call: str = ""

    def of(self, name: str) -> str:
        """One of them, in an expression."""
        return f'tile["{name}"]' if self.call else str(self.numbers[name])

    def before(self) -> tuple[str, ...]:
        """Lines before the launch."""
        return (f"tile = {self.call}",) if self.call else ()

    def constants(self) -> dict[str, str]:
        """Keyword arguments of the launch."""
        return {"**tile": ""} if self.call else {name: str(one) for name, one in self.numbers.items()}


@dataclass(frozen=True)
class Options:
    """arch: "sm_90", "gfx942" … ("" for none in particular). block_size: elements of a pointwise program, 0 to choose.

    tile: rows x columns x depth of a product's tile, None to choose. tf32: float32 products may round their operands.
    late: tiles are chosen by calls also where the sizes are numbers, so that a table read at run time may decide.
    """

    arch: str = ""
    block_size: int = 0
    tile: tuple[int, int, int] | None = None
    tf32: bool = False
    late: bool = False

    @property
    def stages(self) -> int:
        """How many steps ahead operands of products are loaded: AMD's local memory holds one."""
        return 2 if self.arch.startswith("gfx") else 3


def chosen(
    function: Callable[..., dict[str, int]],
    sizes: tuple[Dim, ...],
    texts: tuple[str, ...],
    *rest: object,
    late: bool = False,
) -> Tile:
    """The tile that a function of `runtime.tiles` makes of sizes, whose Python expressions are `texts`."""
    if not late and all(isinstance(size, int) for size in sizes):
        return Tile(function(*sizes, *rest))
    arguments = [*texts, *map(repr, rest)]
    return Tile({}, f"kh.{function.__name__}({', '.join(arguments)})")
