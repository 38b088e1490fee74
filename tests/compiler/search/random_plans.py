"""Plans drawn from a space of nests at random, and a plan run turn by turn."""

from __future__ import annotations

import itertools

from kernels_hub.compiler import Graph
from kernels_hub.compiler.codegen.loops import simplified
from kernels_hub.compiler.schedule.choices import Choices
from kernels_hub.compiler.schedule.loop_plan import LoopPlan
from kernels_hub.compiler.schedule.planned_nest import MOST_POINTS, MOST_STAGED, places, planned_nest
from kernels_hub.compiler.schedule.schedule import schedule


def product(m, k, n, finish=None, batch=()):
    """The graph of a product, of which `finish` makes the result."""
    graph = Graph("product")
    made = graph.input("a", (*batch, m, k)) @ graph.input("b", (*batch, k, n))
    graph.output("y", made if finish is None else finish(made))
    return graph


def nest_of(graph):
    """The first nest that plans are for, products written as loops."""
    made = schedule(graph, choices=Choices(loops="0"))
    return next(found for one in places(made.kernels) if (found := planned_nest(simplified(one))) is not None)


def drawn(space, random, name=None):
    """A plan of a class; None where what was drawn is none (too many results written out, a class that ends nowhere)."""
    name = space.root if name is None else name
    if name not in space.classes:
        return None
    term = random.choice(space.classes[name])
    if term.op in {"Copied", "Held", "Flat"}:
        terms = [one for one in space.classes[name] if one.op not in {"Copied", "Held", "Flat"}]
        if not terms:
            return None
        term = random.choice(terms)
    parts = [drawn(space, random, part) for part in term.parts]
    if any(part is None for part in parts):
        return None
    return parts[0] if term.op == "Alone" else LoopPlan(term.op, term.numbers, tuple(parts))


def fits(plan, nest):
    """Whether a drawn plan keeps to the limits of what is copied and written out, which classes do not know of."""

    def inside(one, sizes, points):
        if one.op == "Stage":
            operand, elements = nest.operands[one.numbers[0]], 1
            for axis, size in enumerate(sizes):
                elements *= size if operand.depends(axis) else 1
            if elements > MOST_STAGED:
                return False
        if one.op == "Unroll":
            points *= one.numbers[1] // one.numbers[2]
        if points > MOST_POINTS:
            return False
        for place, part in enumerate(one.parts):
            below = list(sizes)
            if one.op in {"Each", "Share", "Turn", "Unroll"}:
                below[one.numbers[0]] = one.numbers[2]
            elif one.op == "Peel":
                axis, first = one.numbers
                below[axis] = sizes[axis] - first if place else first
            if not inside(part, below, points):
                return False
        return True

    return inside(plan, list(nest.extents), 1)


def visits(plan, nest):
    """The elements that a plan adds, and the results that it ends, in its order: ("add" or "end", index)."""

    def run(one, index, copied):
        if one.op in {"Add", "Point"}:
            assert one.numbers[0] == copied, "an operand lies elsewhere"
            yield "add", tuple(index)
        elif one.op == "End":
            yield "end", tuple(index[: nest.parallel])
        elif one.op == "Peel":
            axis, first = one.numbers
            yield from run(one.parts[0], index, copied)
            yield from run(one.parts[1], [*index[:axis], index[axis] + first, *index[axis + 1 :]], copied)
        elif one.op in {"Each", "Share", "Turn", "Unroll", "Lanes"}:
            axis, size, step = (*one.numbers, 1)[:3]
            for at in range(0, size, step):
                below = [*index[:axis], index[axis] + at, *index[axis + 1 :]]
                yield from run(one.parts[0], below, copied)
        elif one.op == "Stage":
            yield from run(one.parts[0], index, copied | 1 << one.numbers[0])
        else:  # Then, Hold, Tile
            for part in one.parts:
                yield from run(part, index, copied)

    return list(run(plan, [0] * len(nest.loops), 0))


def every_turn(nest):
    """All elements, and all results, in order."""
    return (
        list(itertools.product(*map(range, nest.extents))),
        list(itertools.product(*map(range, nest.extents[: nest.parallel]))) if nest.ends else [],
    )
