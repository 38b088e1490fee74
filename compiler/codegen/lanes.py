"""Lane tiling: moves an outer loop inside the inner ones, over a tile of lanes, where memory is read better so."""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.codegen.loops import estimate, stride
from kernels_hub.compiler.ir.dims import Dim, ceildiv
from kernels_hub.compiler.schedule.index import Loop
from kernels_hub.compiler.schedule.kernel import Load, Nest, Store, arguments, variables

TILE = 64
"""Lanes of a tile."""
TILES = 4
"""Tiles that wide ones leave for threads to share."""
_WIDE = (256, 320, 288, 272, 240, 224, 208, 192, 176, 160, 144, 128, 112, 96)
"""Lanes of a wide tile, the best first."""


def lane_of(nest: Nest) -> Loop | None:
    """The last outer loop, where lanes along it read memory better than lanes along the last inner loop."""
    if not nest.outer or not nest.inner:
        return None
    lane = nest.outer[-1]
    if not any(lane.name in variables(statement) for statement in nest.body):
        return None
    inner = nest.is_inner()
    loads = [statement for statement in nest.body if isinstance(statement, Load) and inner[statement.name]]
    return lane if _penalty(nest, lane, loads) < _penalty(nest, nest.inner[-1], loads) else None


def _penalty(nest: Nest, loop: Loop, loads: Sequence[Load]) -> float:
    extent = max(1, estimate(loop.extent))
    short = TILE / extent if extent < 16 else 1.0
    along = _along(nest, loop)
    apart = (
        stride(load.place, loop) not in {0, 1} or not along.isdisjoint(arguments(load)) for load in loads
    )
    return short * (1 + 3 * sum(apart))


def _along(nest: Nest, loop: Loop) -> set[str]:
    """What differs from turn to turn of a loop: what a place is made of that data tell, too."""
    found: set[str] = set()
    for one in nest.body:
        if not isinstance(one, Store) and (
            loop.name in variables(one) or not found.isdisjoint(arguments(one))
        ):
            found.add(one.name)
    return found


def tile_of(extent: Dim, rows: Dim = 1, *, wide: bool = False) -> int:
    """Lanes of a tile: few that are left over.

    wide: whether nothing is kept for each lane but what is reduced. Then more lanes are better, as memory is read in
    longer pieces, while threads have `TILES` of these in all of `rows` rows.
    """
    if not isinstance(extent, int):
        return TILE
    if wide and isinstance(rows, int):
        for one in _WIDE:
            if extent % one == 0 and extent // one * rows >= TILES:
                return one
        if extent > TILES * TILE and ceildiv(extent, _WIDE[0]) * rows >= TILES:
            return _WIDE[0]
    if extent <= TILE:
        return extent
    return next((one for one in (64, 96, 80, 48, 56, 72, 32) if extent % one == 0), TILE)
