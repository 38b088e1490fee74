"""Layout of a drawing for a set of open blocks: what the interactive page does on a click.

Ranks move down, and neighbours aside, to make room for a block that is open.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from kernels_hub.compiler.viewing.blocks import FOLDED_WIDTH, Tree
from kernels_hub.compiler.viewing.drawing import Box, Drawing
from kernels_hub.compiler.viewing.layers import GAP, spread

RANK_GAP = 30.0
FOLDED_HEIGHT = 46.0
HEADER, PADDING = 26.0, 14.0


@dataclass(frozen=True, slots=True)
class Place:
    """A box (its number) or a block (~ its number), as a rectangle; blocks stand before what is in them."""

    item: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Line:
    """Part of an edge, vertical at both points, then straight down to `bottom`. far: not routed."""

    x1: float
    y1: float
    x2: float
    y2: float
    bottom: float
    ends: bool
    far: bool = False


@dataclass
class Scene:
    """Places and lines in the coordinates of the whole picture."""

    width: float = 0.0
    height: float = 0.0
    places: list[Place] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)


@dataclass(frozen=True)
class _Measured:
    """One block laid out: cells' centers, widths, tops and heights inside it."""

    x: list[float]
    widths: list[float]
    tops: list[float]
    heights: list[float]
    width: float
    height: float


def default_open(tree: Tree) -> set[int]:
    """The whole graph, and the first block of each repetition."""
    return {number for number, block in enumerate(tree.blocks) if block.place == 0}


def box_height(box: Box, *, weights: bool) -> float:
    """Of a box with a title, a line for each result and, if shown, for each weight."""
    return 27.0 + 15.0 * len(box.types) + (14.0 * len(box.rows) + 3.0 if weights and box.rows else 0.0)


def compose(drawing: Drawing, tree: Tree, opened: Collection[int], *, weights: bool = True) -> Scene:
    """Place everything that shows when these blocks are open."""
    measured: dict[int, _Measured] = {}
    for number in range(len(tree.blocks) - 1, -1, -1):
        if number in opened:
            measured[number] = _measure(drawing, tree, number, measured, weights=weights)
    scene = Scene(measured[0].width, measured[0].height)
    waiting = [(0, 0.0, 0.0)]
    while waiting:
        number, left, top = waiting.pop()
        waiting += _place(tree, number, left, top, measured, scene)
    scene.places.sort(key=lambda place: place.item >= 0)
    return scene


def _measure(
    drawing: Drawing, tree: Tree, number: int, measured: dict[int, _Measured], *, weights: bool
) -> _Measured:
    block = tree.blocks[number]
    layout = tree.layouts[block.layout]
    x, widths = list(layout.x), list(layout.widths)
    heights = [0.0] * len(x)
    wider: set[int] = set()
    for cell, item in enumerate(block.items):
        if item >= 0:
            heights[cell] = box_height(drawing.boxes[item], weights=weights)
        elif ~item in measured:
            inner = measured[~item]
            heights[cell], widths[cell] = inner.height, max(inner.width, FOLDED_WIDTH)
            wider.add(layout.ranks[cell])
        else:
            heights[cell] = FOLDED_HEIGHT
    rows: list[list[int]] = [[] for _ in range(max(layout.ranks, default=-1) + 1)]
    for cell, rank in enumerate(layout.ranks):
        rows[rank].append(cell)
    given = len(block.items) + len(block.inputs) + len(block.outputs)
    tops = [0.0] * len(x)
    y = HEADER if number else 0.0
    for rank, row in enumerate(rows):
        row.sort(key=lambda cell: (x[cell], cell))
        if rank in wider:
            centers = spread([x[c] for c in row], [1.0] * len(row), [widths[c] for c in row], GAP)
            for cell, at in zip(row, centers, strict=True):
                x[cell] = at
        tall = max(heights[cell] for cell in row)
        for cell in row:
            if cell >= given:  # ways of long edges run straight through
                heights[cell] = tall
            tops[cell] = y + (tall - heights[cell]) / 2
        y += tall + (RANK_GAP if rank < len(rows) - 1 else 0.0)
    padding = PADDING if number else 0.0
    left = min((at - wide / 2 for at, wide in zip(x, widths, strict=True)), default=0.0) - padding
    right = max((at + wide / 2 for at, wide in zip(x, widths, strict=True)), default=0.0) + padding
    more = max(FOLDED_WIDTH - (right - left), 0.0) / 2 if number else 0.0
    x = [at - left + more for at in x]
    return _Measured(x, widths, tops, heights, right - left + 2 * more, y + padding)


def _place(
    tree: Tree, number: int, left: float, top: float, measured: dict[int, _Measured], scene: Scene
) -> list[tuple[int, float, float]]:
    """Enter what is directly in an open block; returns the open blocks in it, and where they are."""
    block, at = tree.blocks[number], measured[number]
    layout = tree.layouts[block.layout]
    inside = []
    count = len(block.items)
    for cell, item in enumerate(block.items):
        x, y = left + at.x[cell] - at.widths[cell] / 2, top + at.tops[cell]
        scene.places.append(Place(item, x, y, at.widths[cell], at.heights[cell]))
        if item < 0 and ~item in measured:
            inside.append((~item, x + (at.widths[cell] - measured[~item].width) / 2, y))

    def end(cell: int, port: int, *, leaving: bool) -> tuple[float, float]:
        x, y = at.x[cell], at.tops[cell] + at.heights[cell] * leaving
        if cell < count and (item := block.items[cell]) < 0 and ~item in measured:
            inner = measured[~item]
            its = tree.blocks[~item]
            place = len(its.items) + port + (len(its.inputs) if leaving else 0)
            x = x - inner.width / 2 + inner.x[place]
        elif count + len(block.inputs) <= cell < count + len(block.inputs) + len(block.outputs):
            y = at.height
        elif count <= cell < count + len(block.inputs):
            y = 0.0
        return left + x, top + y

    for a, b, net, port in layout.steps:
        x1, y1 = end(a, block.nets[net][1] if a == block.nets[net][0] else 0, leaving=True)
        x2, y2 = end(b, port, leaving=False)
        bottom = y2 + (at.heights[b] if b >= count + len(block.inputs) + len(block.outputs) else 0.0)
        scene.lines.append(Line(x1, y1, x2, y2, bottom, ends=b < count))
    for edge in layout.far:
        x1, y1 = end(edge.source, block.nets[edge.net][1], leaving=True)
        x2, y2 = end(edge.target, edge.port, leaving=False)
        scene.lines.append(Line(x1, y1, x2, y2, y2, ends=edge.target < count, far=True))
    return inside
