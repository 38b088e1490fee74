"""Choices that no result depends on: tiles, warps, pipeline stages, by architecture; the knobs of the engine.

A tile may be set for all kernels of a kind; where none is, it follows from the sizes, as far as they are known.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels_hub.compiler.codegen.cpp_loops import estimate
from kernels_hub.compiler.ir.dims import Dim

ROW_ELEMENTS = 4096
"""Elements of a tile of a reduction."""

MOST_COLUMNS = 16384
"""Rows up to this long are reduced from registers, in one pass."""


@dataclass(frozen=True)
class Options:
    """arch: "sm_90", "gfx942" … ("" for none in particular). block: elements of a pointwise program, 0 to choose.

    tile: rows x columns x depth of a product's tile, () to choose. tf32: float32 products may round their operands.
    """

    arch: str = ""
    block_size: int = 0
    tile: tuple[int, int, int] | None = None
    tf32: bool = False

    @property
    def stages(self) -> int:
        """How many steps ahead operands of products are loaded: AMD's local memory holds one."""
        return 2 if self.arch.startswith("gfx") else 3

    def block(self, total: Dim) -> tuple[int, int]:
        """(elements, warps) of a program of a pointwise nest."""
        size = self.block_size
        if not size:
            count = estimate(total)
            size = 256 if count < 1 << 17 else 1024
        return size, max(1, min(8, size // 256))

    def rows(self, outer: Dim, columns: int) -> tuple[int, int]:
        """(rows, warps) of a program of a reduction whose tile has so many columns."""
        rows = max(1, ROW_ELEMENTS // columns)
        count = estimate(outer)
        while rows > 1 and (rows >= 2 * count or count // rows < 256):
            rows //= 2
        return rows, max(1, min(16, rows * columns // 256))

    def product_tile(self, m: Dim, n: Dim, k: Dim, batch: Dim, bits: int) -> tuple[int, int, int, int, int]:
        """(rows, columns, depth, warps, stages) of a program of a product."""
        if self.tile is not None:
            rows, columns, depth = self.tile
        else:
            rows, columns = (min(128, max(16, power_of_two(estimate(one)))) for one in (m, n))
            programs = estimate(batch) * -(-estimate(m) // rows) * -(-estimate(n) // columns)
            while programs < 132 and rows * columns > 1024 and max(rows, columns) > 16:
                if rows >= columns:
                    rows //= 2
                else:
                    columns //= 2
                programs *= 2
            depth = 16 if bits == 32 and not self.tf32 else 32 if bits == 32 else 64
            depth = min(depth, max(16, power_of_two(estimate(k))))
        if bits == 32 and not self.tf32:
            rows, columns = min(rows, 64), min(columns, 64)
        warps = 8 if rows * columns >= 128 * 128 else 4
        return rows, columns, depth, warps, self.stages

    def attention_tile(self, queries: Dim, keys: Dim, width: int, bits: int) -> tuple[int, int, int, int]:
        """(queries, keys, warps, stages) of a program of an attention."""
        most = 128 if width <= 64 else 64 if width <= 128 else 32
        if bits == 32:
            most = max(16, most // 2)
        rows = min(most, max(16, power_of_two(estimate(queries))))
        columns = min(64 if bits < 32 and width <= 128 else 32, max(16, power_of_two(estimate(keys))))
        return rows, columns, 4, 2 if width <= 128 else 1


def power_of_two(number: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(number - 1, 0).bit_length()
