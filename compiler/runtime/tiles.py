"""Default tiles of Triton kernels by size, where the table of knobs has none. No result depends on them."""

from __future__ import annotations

from .triton_versions import other_fields

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
        rows, columns = (min(128, max(16, power_of_two(size))) for size in (m, n))
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
    fields = {"ROWS": rows, "COLUMNS": columns, "DEPTH": depth, "num_warps": warps, "num_stages": stages}
    return {**fields, **other_fields("product", bits, rows, columns, depth)}


def conv_tile(
    places: int,
    channels: int,
    depth: int,
    groups: int,
    bits: int,
    stages: int,
    tile: tuple[int, int, int] | None,
) -> dict[str, int]:
    """Of a convolution: a product [places, depth] @ [depth, channels] for each group, which also finds its windows."""
    fields = product_tile(places, channels, depth, groups, bits, stages, tile)
    sizes = (fields["ROWS"], fields["COLUMNS"], fields["DEPTH"])
    return {**fields, **other_fields("convolution", bits, *sizes)}


def attention_tile(queries: int, keys: int, width: int, values: int, bits: int) -> dict[str, int]:
    """Of an attention of so many queries and keys, of these widths."""
    width, values = (max(16, power_of_two(size)) for size in (width, values))
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
        **other_fields("attention", bits, widest),
    }


def power_of_two(number: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(number - 1, 0).bit_length()
