"""The tree of blocks that a drawing folds into, and for each block a layout of what is directly in it.

An edge that enters a block ends at one of its ports and goes on from there inside: so a layout depends on what is
in its block alone, blocks that are the same share one, and a block opens in place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kernels_hub.compiler.viewing.drawing import Box, Drawing
from kernels_hub.compiler.viewing.layers import CellLayout, Edge, lay_out
from kernels_hub.compiler.viewing.repeats import Run, find_runs

FOLDED_WIDTH = 216.0
_PORT_WIDTH = 2.0
_DEEPEST = 3


@dataclass(eq=False)
class Block:
    """Boxes and blocks in it (items: a box's number, or ~ a block's), ports, and where they are.

    run: which repetition it belongs to, -1 for the whole graph; place: its number in that, from 0, out of `count`.
    """

    parent: int
    run: int = -1
    place: int = 0
    count: int = 1
    label: str = ""
    items: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    nets: list[tuple[int, int]] = field(default_factory=list)
    """For each net the cell it starts at, and which of its values or ports."""
    layout: int = 0


@dataclass(frozen=True)
class Tree:
    """Block 0 is the whole graph; layouts are shared. homes: for each box the block that it is directly in."""

    blocks: tuple[Block, ...]
    layouts: tuple[CellLayout, ...]
    homes: tuple[int, ...]


def build_tree(drawing: Drawing) -> Tree:
    """Fold a drawing and lay it out."""
    blocks = [Block(-1)]
    homes = _fold(drawing, blocks)
    _place_the_rest(drawing, blocks, homes)
    for number, _box in enumerate(drawing.boxes):
        blocks[homes[number]].items.append(number)
    for number, block in enumerate(blocks[1:], 1):
        blocks[block.parent].items.append(~number)
    _label(drawing, blocks)
    return Tree(
        tuple(blocks), tuple(_lay_out(blocks, _connect(drawing, blocks, homes), drawing)), tuple(homes)
    )


def _fold(drawing: Drawing, blocks: list[Block]) -> list[int]:
    """Find repetitions, again inside the blocks found, and make blocks of them; the home of each box."""
    homes = [0] * len(drawing.boxes)
    numbers: dict[tuple[object, ...], int] = {}
    labels = [numbers.setdefault(box.structure, len(numbers)) for box in drawing.boxes]
    runs = 0
    flowing = [n for n, box in enumerate(drawing.boxes) if box.flows and box.kind not in {"input", "output"}]
    waiting: list[tuple[list[list[int]], list[int], int]] = [([flowing], [0], 0)]
    while waiting:
        same, parents, depth = waiting.pop(0)
        # What is found in the first of blocks that are the same is in all of them.
        for run in _runs_in(same[0], drawing, labels, whole=depth > 0):
            inside: list[list[int]] = []
            made: list[int] = []
            for members, parent in zip(same, parents, strict=True):
                for index in range(run.count):
                    start = run.start + index * run.period
                    part = members[start : start + run.period]
                    for one in part:
                        homes[one] = len(blocks)
                    made.append(len(blocks))
                    inside.append(part)
                    blocks.append(Block(parent, runs, index, run.count))
            runs += 1
            if depth + 1 < _DEEPEST:
                waiting.append((inside, made, depth + 1))
    return homes


def _runs_in(members: Sequence[int], drawing: Drawing, labels: Sequence[int], *, whole: bool) -> list[Run]:
    places = {box: index for index, box in enumerate(members)}
    links = [
        [places[made] for value in drawing.boxes[box].inputs if (made := drawing.made_by[value]) in places]
        for box in members
    ]
    runs = find_runs([labels[box] for box in members], links)
    return [run for run in runs if not (whole and run.period * run.count == len(members) and run.count < 3)]


def _place_the_rest(drawing: Drawing, blocks: list[Block], homes: list[int]) -> None:
    """What depends on no input goes where all that reads it is."""
    readers: dict[int, list[int]] = {}
    for number, box in enumerate(drawing.boxes):
        for value in box.inputs:
            readers.setdefault(drawing.made_by[value], []).append(number)
    for number in range(len(drawing.boxes) - 1, -1, -1):
        if not drawing.boxes[number].flows and (reader := readers.get(number)):
            homes[number] = _common(blocks, {homes[one] for one in reader})


def _common(blocks: Sequence[Block], homes: Iterable[int]) -> int:
    first, *others = (_path(blocks, home) for home in homes)
    depth = 0
    while depth < len(first) and all(depth < len(other) and other[depth] == first[depth] for other in others):
        depth += 1
    return first[depth - 1]


def _path(blocks: Sequence[Block], home: int) -> list[int]:
    """Blocks from the whole graph down to this one."""
    path = [home]
    while path[-1]:
        path.append(blocks[path[-1]].parent)
    return path[::-1]


def _label(drawing: Drawing, blocks: list[Block]) -> None:
    """Name a block after what the origins of its boxes have in common, where that tells it from the others."""
    rows: dict[tuple[int, int], list[Block]] = {}
    for block in blocks[1:]:
        rows.setdefault((block.run, block.parent), []).append(block)
    for row in rows.values():
        names = [_shared_origin(block, drawing.boxes) for block in row]
        distinct = len(set(names)) == len(names) and all(names)
        for block, name in zip(row, names, strict=True):
            block.label = name if distinct else f"block {block.place + 1}"


def _shared_origin(block: Block, boxes: Sequence[Box]) -> str:
    parts = [
        re.split(r"(?<=[/.])", boxes[item].origin) for item in block.items if item >= 0 and boxes[item].origin
    ]
    if not parts:
        return ""
    low, high = min(parts), max(parts)
    depth = 0
    while depth < min(len(low), len(high)) and low[depth] == high[depth]:
        depth += 1
    return "".join(low[:depth]).strip("/.")


def _connect(
    drawing: Drawing, blocks: list[Block], homes: Sequence[int]
) -> list[dict[tuple[int, int, int], None]]:
    """For each block its edges (value, item that makes it, item that reads it); ports of blocks are entered.

    An item here is a box's number or ~ a block's; a port of the block itself is `_port(its number)`.
    """
    edges: list[dict[tuple[int, int, int], None]] = [{} for _ in blocks]
    paths = [_path(blocks, home) for home in range(len(blocks))]
    inputs: list[dict[int, int]] = [{} for _ in blocks]
    outputs: list[dict[int, int]] = [{} for _ in blocks]
    top, bottom = len(drawing.boxes), 2 * len(drawing.boxes) + len(drawing.made_by)
    for reader, box in enumerate(drawing.boxes):
        for value in box.inputs:
            maker = drawing.made_by[value]
            up, down = paths[homes[maker]], paths[homes[reader]]
            shared = sum(1 for a, b in zip(up, down, strict=False) if a == b)
            source = maker
            for block in reversed(up[shared:]):
                port = outputs[block].setdefault(value, len(outputs[block]))
                edges[block][value, source, bottom + port] = None
                source = ~block
            target = reader
            for block in reversed(down[shared:]):
                port = inputs[block].setdefault(value, len(inputs[block]))
                edges[block][value, top + port, target] = None
                target = ~block
            edges[up[shared - 1]][value, source, target] = None
    for one, entered, left in zip(blocks, inputs, outputs, strict=True):
        one.inputs, one.outputs = list(entered), list(left)
    return edges


def _lay_out(
    blocks: list[Block], edges: list[dict[tuple[int, int, int], None]], drawing: Drawing
) -> list[CellLayout]:
    """Layouts of all blocks, inner ones first; one for those that are the same."""
    layouts: list[CellLayout] = []
    known: dict[object, int] = {}
    top, bottom = len(drawing.boxes), 2 * len(drawing.boxes) + len(drawing.made_by)
    for number in range(len(blocks) - 1, -1, -1):
        block = blocks[number]
        block.items.sort(key=lambda item: item if item >= 0 else _first(blocks, ~item))
        cells = {item: cell for cell, item in enumerate(block.items)}
        first_bottom = len(cells) + len(block.inputs)
        nets: dict[tuple[int, int], int] = {}
        found: list[Edge] = []
        for value, source, target in edges[number]:
            start = len(cells) + source - top if source >= top else cells[source]
            net = nets.setdefault((start, _outlet(value, source, top, blocks, drawing)), len(nets))
            end = first_bottom + target - bottom if target >= bottom else cells[target]
            port = blocks[~target].inputs.index(value) if target < 0 else 0
            found.append(Edge(start, end, net, port))
        block.nets = list(nets)
        widths = [drawing.boxes[item].width if item >= 0 else FOLDED_WIDTH for item in block.items]
        widths += [_PORT_WIDTH] * (len(block.inputs) + len(block.outputs))
        key = (tuple(widths), tuple(found), len(block.inputs), len(block.outputs))
        if key not in known:
            known[key] = len(layouts)
            layouts.append(lay_out(widths, found, len(block.inputs), len(block.outputs)))
        block.layout = known[key]
    return layouts


def _outlet(value: int, source: int, top: int, blocks: Sequence[Block], drawing: Drawing) -> int:
    """Which of its source's values or ports a value is."""
    if source < 0:
        return blocks[~source].outputs.index(value)
    return 0 if source >= top else drawing.boxes[source].outputs.index(value)


def _first(blocks: Sequence[Block], number: int) -> int:
    """The first box in a block, at any depth."""
    return min(item if item >= 0 else _first(blocks, ~item) for item in blocks[number].items)
