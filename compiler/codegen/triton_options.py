"""Choices that no result depends on: tiles, warps, pipeline stages, by sizes and architecture.

Where the sizes are numbers, the choice stands in the generated source; where they are symbolic, a call makes it
(`Tile`), and Triton compiles another variant when another is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernels_hub.compiler.ir.dims import Dim

ROW_ELEMENTS = 4096
"""Elements of a tile of a reduction."""

MOST_COLUMNS = 16384
"""Rows up to this long are reduced from registers, in one pass."""

LOOPED_COLUMNS = 1024
"""Columns of a tile of longer rows."""

ACROSS_COLUMNS = 32
"""Columns of a tile where rows are what lies side by side in memory."""

PROGRAMS = 132
"""Programs that fill a GPU, about."""


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
    """The tile that a function of this module makes of sizes, whose Python expressions are `texts`."""
    if not late and all(isinstance(one, int) for one in sizes):
        return Tile(function(*sizes, *rest))
    arguments = [*texts, *map(repr, rest)]
    return Tile({}, f"kh.{function.__name__}({', '.join(arguments)})")


def block_tile(total: int, size: int) -> dict[str, int]:
    """Of a pointwise nest of so many elements; size: the block's, 0 to choose."""
    size = size or (256 if total < 1 << 17 else 1024)
    return {"BLOCK": size, "num_warps": max(1, min(8, size // 256))}


def whole_tile(outer: int, inner: int) -> dict[str, int]:
    """Of a reduction whose rows fit the registers."""
    columns = power_of_two(inner)
    rows = max(1, ROW_ELEMENTS // columns)
    while rows > 1 and (rows >= 2 * outer or outer // rows < 2 * PROGRAMS):
        rows //= 2
    return {"ROWS": rows, "COLUMNS": columns, "num_warps": max(1, min(16, rows * columns // 256))}


def looped_tile(outer: int, across: bool) -> dict[str, int]:
    """Of a reduction in passes; across: rows lie side by side."""
    rows = min(64, power_of_two(outer)) if across else 1
    return {"ROWS": rows, "COLUMNS": ACROSS_COLUMNS if across else LOOPED_COLUMNS, "num_warps": 4}


def product_tile(
    m: int, n: int, k: int, batch: int, bits: int, stages: int, tile: tuple[int, int, int] | None
) -> dict[str, int]:
    """Of a product [m, k] @ [k, n], so many times. bits: of an operand, 33 for float32 that stays exact."""
    if tile is not None:
        rows, columns, depth = tile
    else:
        rows, columns = (min(128, max(16, power_of_two(one))) for one in (m, n))
        programs = batch * -(-m // rows) * -(-n // columns)
        while programs < PROGRAMS and rows * columns > 1024:
            if rows >= columns:
                rows //= 2
            else:
                columns //= 2
            programs *= 2
        depth = min(64 if bits < 32 else 32, max(16, power_of_two(k)))
    if bits == 33:  # no tensor cores: registers decide
        rows, columns, depth, stages = min(rows, 64), min(columns, 64), 16, 2
    warps = 8 if rows * columns >= (64 * 64 if bits == 33 else 128 * 64) else 4
    return {"ROWS": rows, "COLUMNS": columns, "DEPTH": depth, "num_warps": warps, "num_stages": stages}


def attention_tile(queries: int, keys: int, width: int, values: int, bits: int) -> dict[str, int]:
    """Of an attention of so many queries and keys, of these widths."""
    width, values = (max(16, power_of_two(one)) for one in (width, values))
    widest = max(width, values)
    most = 128 if widest <= 64 else 64 if widest <= 128 else 32
    most = most if bits < 32 else max(16, most // 2)
    rows = min(most, max(16, power_of_two(queries)))
    return {
        "ROWS": rows,
        "COLUMNS": min(64 if bits < 32 and widest <= 128 else 32, max(16, power_of_two(keys))),
        "WIDTH": width,
        "VALUES": values,
        "num_warps": 8 if bits == 32 and rows >= 64 else 4,
        "num_stages": 2 if widest <= 128 else 1,
    }


def power_of_two(number: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(number - 1, 0).bit_length()
