"""A nest without an anchor as C++: loops over rows by threads, the innermost by vector instructions.

A nest without inner loops is a loop nest whose last loop is vectorised, each statement as far outside as it can be.
For nests with inner loops see `cpp_reduce` and `cpp_scan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.cpp.function import Function
from kernels_hub.compiler.codegen.cpp.halves import print_simd_loop
from kernels_hub.compiler.codegen.cpp.planned import print_planned
from kernels_hub.compiler.codegen.cpp.reduce import print_reduction
from kernels_hub.compiler.codegen.cpp.scan import print_scan
from kernels_hub.compiler.codegen.cpp.scatter import print_scatter, simplified_scatter
from kernels_hub.compiler.codegen.cpp.text import Parameters, print_nothing
from kernels_hub.compiler.codegen.guard_runs import parted
from kernels_hub.compiler.codegen.loops import estimate, is_empty, levels, simplified, turned_loop, turns
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.scalar import variable_name
from kernels_hub.compiler.ir.dims import Dim, ceildiv
from kernels_hub.compiler.ir.types import FLOAT32
from kernels_hub.compiler.schedule.index import Loop, linear
from kernels_hub.compiler.schedule.kernel import Bound, Load, Nest, Statement, Store

MANY_ROWS = 256
"""Turns that threads share; loops beyond that stay loops."""


def print_nest(name: str, nest: Nest, lines: Lines, names: Names, *, round_ops: bool = False) -> Parameters:
    """Write the function `name` and what it calls; returns what it is given."""
    nest = _simplified(nest)
    parameters = Parameters.of(nest)
    function = Function(name, nest, parameters, lines, names, round_ops=round_ops)
    if is_empty(nest.outer):
        print_nothing(name, parameters, lines, names)
    elif nest.plan is not None:
        print_planned(function, nest.plan)
    elif nest.reduces:
        print_reduction(function)
    elif nest.scans:
        print_scan(function)
    elif nest.scatters:
        print_scatter(function)
    else:
        _print_pointwise(function)
    return parameters


def print_rows(
    name: str, nests: Sequence[Nest], lines: Lines, names: Names, *, round_ops: bool = False
) -> Parameters:
    """As `print_nest`, for several nests over the same rows (`share_rows`): one loop over these."""
    made = [_simplified(nest) for nest in nests]
    rows = _common(made)
    assert rows
    parameters = Parameters()
    for nest in made:
        parameters.merge(Parameters.of(nest))
    functions = [Function(name, nest, parameters, lines, names, round_ops=round_ops) for nest in made]

    def inside() -> None:
        with lines.block(functions[0].row_loop(rows)):
            functions[0].row_variables(rows)
            for function in functions:
                own = turns(function.nest.outer[len(rows) :])
                with lines.block("" if isinstance(own, int) else f"if ({function.body.index(own)} > 0)"):
                    _print_row(function, len(rows), first=0)

    work: Dim = 0
    for function in functions:
        work = work + turns(function.nest.outer[len(rows) :]) * function.work
    functions[0].rows(turns(rows), work, inside)
    return parameters


def share_rows(nests: Sequence[Nest]) -> bool:
    """Whether nests are pointwise over the same rows, and none reads what another writes."""
    if len(nests) < 2 or any(nest.anchor is not None or nest.accumulates for nest in nests):
        return False
    made = [_simplified(nest) for nest in nests]
    if any(is_empty(nest.outer) for nest in made) or not _common(made):
        return False
    read = {statement.buffer for nest in made for statement in nest.body if isinstance(statement, Load)}
    return not any(
        statement.buffer in read for nest in made for statement in nest.body if isinstance(statement, Store)
    )


def _simplified(nest: Nest) -> Nest:
    if nest.scatters:
        return simplified_scatter(nest)
    if not nest.accumulates:  # nothing to add up: inner loops are loops
        nest = Nest((*nest.outer, *nest.inner), (), nest.body)
    return simplified(nest)


def _common(nests: Sequence[Nest]) -> tuple[Loop, ...]:
    """The outermost loops that nests share, but for the last of each."""
    found: list[Loop] = []
    for loops in zip(*(nest.outer[:-1] for nest in nests), strict=False):
        if any(loop != loops[0] for loop in loops):
            break
        found.append(loops[0])
    return tuple(found)


def _print_pointwise(function: Function) -> None:
    nest, lines = function.nest, function.lines
    if (turned := turned_loop(nest)) is not None:
        _print_tiles(function, turned)
        return
    loops = nest.outer
    at = levels(nest.body, loops)
    shared = _shared(loops)
    own = turns(loops[shared:])

    def inside() -> None:
        if not isinstance(own, int):
            lines.add(f"if ({function.body.index(own)} <= 0) return;")
        function.body.emit_at(nest.body, at, 0)
        if not loops:
            return
        if len(loops) == 1:
            rest = [one for one, level in zip(nest.body, at, strict=True) if level == 1]
            print_simd_loop(
                function, loops[0], ("begin", "end"), rest, lambda: _print_row(function, 1, first=1)
            )
            return
        with lines.block(function.row_loop(loops[:shared])):
            function.row_variables(loops[:shared])
            _print_row(function, shared, first=1)

    function.rows(turns(loops[:shared]), own * function.work, inside)


def _print_tiles(function: Function, turned: Loop) -> None:
    """Tiles of the last loop and of `turned`, so that what is read beside each other is used while it is in cache."""
    nest, lines, body = function.nest, function.lines, function.body
    last = nest.outer[-1]
    tile = function.names.choices.tile
    sides = ((turned, Loop("$rows_", ceildiv(turned.extent, tile)), tile),
             (last, Loop("$columns_", ceildiv(last.extent, tile)), tile))  # fmt: skip
    others = tuple(loop for loop in nest.outer if loop not in {turned, last})
    rows = (*others, *(tiles for _, tiles, _ in sides))
    at = levels(nest.body, (*others, turned, last))
    copied = _transposition(nest, turned)
    heads, firsts, sizes = [], [], []
    for loop, tiles, size in sides:
        name, first = variable_name(loop.name), f"{variable_name(tiles.name)} * {size}"
        end = f"kh::min<int64_t>({first} + {size}, {body.index(loop.extent)})"
        if isinstance(loop.extent, int) and loop.extent % size == 0:
            end = f"{first} + {size}"
        heads.append(f"for (int64_t {name} = {first}; {name} < {end}; ++{name})")
        whole = end == f"{first} + {size}"
        if loop is turned and copied is not None and copied.backwards:
            firsts.append(f"{name} = {end} - 1")  # whose element is the first in memory
            sizes.append(str(size) if whole else f"{name} + 1 - {first}")
        else:
            firsts.append(f"{name} = {first}")
            sizes.append(str(size) if whole else f"{end} - {name}")

    def inside() -> None:
        with lines.block(function.row_loop(rows)):
            function.row_variables(rows)
            if copied is not None:
                lines.add(f"const int64_t {', '.join(firsts)};")
                places = [
                    f"&{function.names.buffers[one.buffer]}[{body.index(one.place)}], {body.index(apart)}"
                    for one, apart in ((copied.load, copied.load_apart), (copied.store, copied.store_apart))
                ]
                lines.add(f"kh::transpose({', '.join((*places, sizes[1], sizes[0]))});")
                return
            for level in range(len(others) + 1):
                body.emit_at(nest.body, at, level)
            with lines.block(heads[0]):
                body.emit_at(nest.body, at, len(others) + 1)
                lines.add("#pragma omp simd")
                with lines.block(heads[1]):
                    body.emit_at(nest.body, at, len(others) + 2)

    function.rows(turns(rows), tile * tile * function.work, inside)


@dataclass(frozen=True)
class _Transposition:
    """A nest that does nothing but turn floats round; `apart` are the steps of the loop that is not beside.

    backwards: it reads them from the last turn of the loop that it turns to the first, and steps so where it stores.
    """

    load: Load
    load_apart: Dim
    store: Store
    store_apart: Dim
    backwards: bool


def _transposition(nest: Nest, turned: Loop) -> _Transposition | None:
    if len(nest.body) != 2:
        return None
    load, store = nest.body
    if not isinstance(load, Load) or type(store) is not Store or load.guards or store.arg != load.name:
        return None
    names = (nest.outer[-1].name, turned.name)
    read, written = linear(load.place, names), linear(store.place, names)
    if read is None or written is None or not load.dtype is FLOAT32 is store.buffer.dtype:
        return None
    (load_apart, beside), (store_beside, store_apart) = read[0].values(), written[0].values()
    if store_beside != 1 or beside not in {1, -1}:
        return None
    backwards = beside == -1
    return _Transposition(load, load_apart, store, -store_apart if backwards else store_apart, backwards)


def _print_row(function: Function, shared: int, *, first: int) -> None:
    """What happens in a row, whose variables are those of the `shared` outermost loops: levels from `first` on."""
    nest, lines = function.nest, function.lines
    loops = nest.outer
    at = levels(nest.body, loops)

    def nested(level: int) -> None:
        if level == len(loops):
            return
        if level == len(loops) - 1:
            _print_last(
                function,
                loops[-1],
                [one for one, at_level in zip(nest.body, at, strict=True) if at_level == level + 1],
            )
            return
        with lines.block(function.loop(loops[level])):
            function.body.emit_at(nest.body, at, level + 1)
            nested(level + 1)

    for level in range(first, shared + 1):
        function.body.emit_at(nest.body, at, level)
    nested(shared)


def _print_last(function: Function, loop: Loop, body: Sequence[Statement]) -> None:
    """The last loop: whole, or in three where guards hold in a run of its turns."""
    lines, extent = function.lines, function.body.index(loop.extent)
    found = parted(body, loop, function.body.scalars.ranges)
    parts: list[tuple[str, str, Sequence[Statement]]] = [("0", extent, body)]
    if found is not None:
        run, inside, outside = found
        first, end = function.run_bounds(loop, run, "0", extent, cut=True)
        parts = [("0", first, outside), (first, end, inside), (end, extent, outside)]
    known = function.body.texts
    bounds = [one for one in body if isinstance(one, Bound)]
    told = "".join(f" reduction(| : {one.name}_wrong)" for one in bounds)
    for bound in bounds:
        lines.add(f"int64_t {bound.name}_wrong = 0;")
    function.body.checked_later = True
    for begin, stop, statements in parts:
        function.body.texts = dict(known)  # what is a constant outside is none inside
        function.body.know(statements)

        def emit(statements: Sequence[Statement] = statements) -> None:
            for one in statements:
                function.body.emit(one)

        print_simd_loop(function, loop, (begin, stop), statements, emit, f"#pragma omp simd{told}")
    function.body.checked_later = False
    for bound in bounds:
        lines.add(f"kh::check({bound.name}_wrong, {function.names.code(bound.message)}, failure);")
    function.body.texts = known


def _shared(loops: Sequence[Loop]) -> int:
    """How many loops, from the outermost, threads share: enough turns, but not the last loop if there are more."""
    if len(loops) < 2:
        return len(loops)
    count = 1
    for index, one in enumerate(loops[:-1]):
        count *= max(1, estimate(one.extent))
        if count >= MANY_ROWS and all(isinstance(loop.extent, int) for loop in loops[: index + 1]):
            return index + 1
    return len(loops) - 1
