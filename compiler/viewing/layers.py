"""A layered layout: ranks by longest path, orders by barycenters, coordinates by isotonic regression.

Cells are laid out top to bottom. A value that is read several ranks below runs through a chain of cells without
width, one for all of its readers; edges that would make more such cells than there is use for are not routed.
Sugiyama et al., IEEE SMC-11(2), 1981; regression by pooling adjacent violators. Linear but for the sorting of ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

GAP = 22.0
"""Between cells of a rank."""

_SWEEPS = 6
_STRAIGHTENED = 24_000
"""Cells moved while chains are straightened, in rounds of all."""


@dataclass(frozen=True, slots=True)
class Edge:
    """From a cell to a cell. Edges of one source and one `net` carry the same value and share their way."""

    source: int
    target: int
    net: int
    port: int = 0
    """Which of the target's ports it ends at, where that is a block."""


@dataclass(frozen=True, slots=True)
class CellLayout:
    """Where cells are: those given, then those of the ways of long edges.

    steps: (cell, cell one rank below, net, port) for each part of an edge; far: edges that are not routed.
    """

    ranks: tuple[int, ...]
    x: tuple[float, ...]
    widths: tuple[float, ...]
    steps: tuple[tuple[int, int, int, int], ...]
    far: tuple[Edge, ...]
    width: float


def lay_out(widths: Sequence[float], edges: Sequence[Edge], tops: int = 0, bottoms: int = 0) -> CellLayout:
    """A layout of cells of these widths. The last `bottoms` are in the last rank, the `tops` before in the first."""
    ranks = _ranks(len(widths), edges, tops, bottoms)
    cells = list(widths)
    steps, far = _route(ranks, cells, edges)
    above: list[list[int]] = [[] for _ in cells]
    below: list[list[int]] = [[] for _ in cells]
    for a, b, _, _ in steps:
        below[a].append(b)
        above[b].append(a)
    rows: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    for cell in _first_order(ranks, above, below):
        rows[ranks[cell]].append(cell)
    _order(rows, above, below)
    x = _coordinates(rows, cells, len(widths), above, below)
    left = min((at - width / 2 for at, width in zip(x, cells, strict=True)), default=0.0)
    right = max((at + width / 2 for at, width in zip(x, cells, strict=True)), default=0.0)
    return CellLayout(
        tuple(ranks), tuple(round(at - left, 1) for at in x), tuple(cells), tuple(steps), tuple(far),
        round(right - left, 1),
    )  # fmt: skip


def spread(
    wanted: Sequence[float], weights: Sequence[float], widths: Sequence[float], gap: float
) -> list[float]:
    """Centers in this order that do not overlap, nearest to those wanted by weighted least squares."""
    offsets = [0.0] * len(wanted)
    for k in range(1, len(wanted)):
        offsets[k] = offsets[k - 1] + (widths[k - 1] + widths[k]) / 2 + gap
    pools: list[tuple[float, float, int]] = []  # sum of weights, mean, how many
    for k, at in enumerate(wanted):
        weight, mean, size = weights[k], at - offsets[k], 1
        while pools and pools[-1][1] > mean:
            other, its_mean, its_size = pools.pop()
            mean = (mean * weight + its_mean * other) / (weight + other)
            weight, size = weight + other, size + its_size
        pools.append((weight, mean, size))
    means = [mean for _, mean, size in pools for _ in range(size)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _ranks(count: int, edges: Sequence[Edge], tops: int, bottoms: int) -> list[int]:
    targets: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for edge in edges:
        targets[edge.source].append(edge.target)
        waiting[edge.target] += 1
    sources = [cell for cell in range(count) if not waiting[cell]]
    first_bottom = count - bottoms
    first_top = first_bottom - tops
    ranks = [1 if tops and cell < first_top else 0 for cell in range(count)]
    ready = deque(sources)
    while ready:
        cell = ready.popleft()
        for target in targets[cell]:
            ranks[target] = max(ranks[target], ranks[cell] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    for cell in sources:  # down to what reads them
        if targets[cell] and not first_top <= cell < first_bottom:
            ranks[cell] = max(ranks[cell], min(ranks[target] for target in targets[cell]) - 1)
    if bottoms:
        last = max(ranks[:first_bottom], default=0) + 1
        ranks[first_bottom:] = [last] * bottoms
    return ranks


def _route(
    ranks: list[int], cells: list[float], edges: Sequence[Edge]
) -> tuple[list[tuple[int, int, int, int]], list[Edge]]:
    """Parts of edges between neighbouring ranks; appends the cells of long ways to `ranks` and `cells`."""
    nets: dict[tuple[int, int], list[Edge]] = {}
    for edge in edges:
        nets.setdefault((edge.source, edge.net), []).append(edge)
    budget = 2 * (len(cells) + len(edges)) + 400
    steps: list[tuple[int, int, int, int]] = []
    far: list[Edge] = []
    spans = {key: max(ranks[edge.target] for edge in net) - ranks[key[0]] - 1 for key, net in nets.items()}
    for key in sorted(nets, key=lambda net: (spans[net], net)):
        budget -= max(spans[key], 0)
        if budget < 0 and spans[key] > 0:
            far += [edge for edge in nets[key] if ranks[edge.target] > ranks[key[0]] + 1]
            near = [edge for edge in nets[key] if ranks[edge.target] == ranks[key[0]] + 1]
            steps += [(key[0], edge.target, edge.net, edge.port) for edge in near]
            continue
        way = [key[0]]
        for edge in sorted(nets[key], key=lambda one: (ranks[one.target], one.target, one.port)):
            while ranks[way[-1]] < ranks[edge.target] - 1:
                ranks.append(ranks[way[-1]] + 1)
                cells.append(0.0)
                steps.append((way[-1], len(cells) - 1, edge.net, 0))
                way.append(len(cells) - 1)
            before = way[ranks[edge.target] - 1 - ranks[key[0]]]
            steps.append((before, edge.target, edge.net, edge.port))
    return steps, far


def _first_order(ranks: list[int], above: list[list[int]], below: list[list[int]]) -> list[int]:
    """Cells depth first from the sources, so that what belongs together starts together."""
    seen = [False] * len(ranks)
    order: list[int] = []
    for root in sorted(range(len(ranks)), key=lambda cell: (len(above[cell]) > 0, ranks[cell], cell)):
        stack = [root]
        while stack:
            cell = stack.pop()
            if not seen[cell]:
                seen[cell] = True
                order.append(cell)
                stack += reversed(below[cell])
    return order


def _order(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> None:
    place = [0.0] * len(above)
    for row in rows:
        _number(row, place)
    for sweep in range(_SWEEPS):
        near = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            if len(row) > 1:
                centers = {
                    cell: sum(place[one] for one in near[cell]) / len(near[cell])
                    if near[cell]
                    else place[cell]
                    for cell in row
                }
                row.sort(key=centers.__getitem__)
                _number(row, place)


def _number(row: list[int], place: list[float]) -> None:
    for at, cell in enumerate(row):
        place[cell] = at - (len(row) - 1) / 2


def _coordinates(
    rows: list[list[int]], cells: list[float], given: int, above: list[list[int]], below: list[list[int]]
) -> list[float]:
    """Each sweep moves a rank towards its neighbours; the ways of long edges weigh most, so they are straight."""
    x = [0.0] * len(cells)
    for row in rows:
        centers = spread([0.0] * len(row), [1.0] * len(row), [cells[cell] for cell in row], GAP)
        for cell, at in zip(row, centers, strict=True):
            x[cell] = at
    for sweep in range(2 * _SWEEPS):
        both = sweep >= 2 * _SWEEPS - 2
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted, weights = [], []
            for cell in row:
                near = above[cell] if sweep % 2 == 0 else below[cell]
                if both or not near:
                    near = [*above[cell], *below[cell]]
                total, weight = 0.0, 0.0
                for one in near:
                    pull = (
                        1.0 if one < given and cell < given else 3.0 if one < given or cell < given else 9.0
                    )
                    total, weight = total + pull * x[one], weight + pull
                wanted.append(total / weight if weight else x[cell])
                weights.append(weight or 0.2)
            centers = spread(wanted, weights, [cells[cell] for cell in row], GAP)
            for cell, at in zip(row, centers, strict=True):
                x[cell] = at
    for _ in range(min(max(_STRAIGHTENED // (len(cells) + 1), 6), 60)):
        _straighten(rows, cells, given, x, above, below)
    return x


def _straighten(
    rows: list[list[int]], cells: list[float], given: int, x: list[float],
    above: list[list[int]], below: list[list[int]],
) -> None:  # fmt: skip
    """Bring the cells of each chain, of those that are nearest to each other, to one x as far as there is room.

    What is given follows what is given, and ways of long edges go around.
    """

    def nearest(cell: int, near: list[int]) -> int:
        way = cell >= given
        return min(
            near, key=lambda number: ((number >= given) != way, abs(x[number] - x[cell]), number), default=-1
        )

    chain = list(range(len(cells)))
    for row in rows:
        for cell in row:
            before = nearest(cell, above[cell])
            if before >= 0 and nearest(before, below[before]) == cell:
                chain[cell] = chain[before]
    total, size = [0.0] * len(cells), [0] * len(cells)
    for cell, head in enumerate(chain):
        total[head] += x[cell]
        size[head] += 1
    for row in rows:
        wanted = [total[chain[cell]] / size[chain[cell]] for cell in row]
        centers = spread(
            wanted, [float(size[chain[cell]]) for cell in row], [cells[cell] for cell in row], GAP
        )
        for cell, at in zip(row, centers, strict=True):
            x[cell] = at
