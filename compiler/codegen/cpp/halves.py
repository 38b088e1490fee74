"""Loops over narrow floats in blocks: what a block reads of them is widened first, what it stores narrowed last.

Compilers convert float16 in a loop one by one, or by a dozen instructions on its bits; rows of it are converted by what
the processor has for that. Of bfloat16 it pays beside long expressions, which use up the registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernels_hub.compiler.codegen.cpp.function import Function
from kernels_hub.compiler.codegen.loops import cost
from kernels_hub.compiler.codegen.scalar import variable_name
from kernels_hub.compiler.ir.dims import Dim, Symbol, atom
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.ir.types import BFLOAT16, FLOAT16, FLOAT32
from kernels_hub.compiler.schedule.index import Loop, linear
from kernels_hub.compiler.schedule.kernel import Compute, Load, Statement, Store, arguments

BLOCK = 256
"""Elements of a block: an array of them leaves the L1 cache to others."""
MOST_ARRAYS = 8
LONG = 16
"""What computes an element of a loop in which bfloat16 is converted apart costs, an addition being 1."""
LEAST_TURNS = 64
"""Loops that are known to be shorter stay as they are."""
_CONVERTED = {FLOAT16, FLOAT32}


def print_simd_loop(
    function: Function,
    loop: Loop,
    bounds: tuple[str, str],
    body: Sequence[Statement],
    inside: Callable[[], None],
    pragma: str = "#pragma omp simd",
) -> None:
    """Write an innermost loop; inside() writes the statements `body`. pragma: before the loop, "" for none."""
    lines, name = function.lines, variable_name(loop.name)
    first, end = bounds

    def plain(first: str, end: str) -> None:
        if pragma:
            lines.add(pragma)
        with lines.block(f"for (int64_t {name} = {first}; {name} < {end}; ++{name})"):
            inside()

    row = None if function.nest.accumulates else _converted_row(loop, body)
    if row is not None:
        source, target = (_place(function, one, one.place) for one in row)
        convert = "narrow" if row[1].buffer.dtype is FLOAT16 else "widen"
        with lines.block(""):
            lines.add(f"const int64_t {name} = {first};")
            lines.add(f"kh::{convert}(&{source}, {end} - {name}, &{target});")
        return
    halves = _halves(loop, body, function.body.copied)
    if not halves:
        plain(first, end)
        return
    block, stop = f"{name}_block", f"{name}_stop"
    start = atom(Symbol(f"${block}"))
    places = [_place(function, one, substitute(one.place, {loop.name: start})) for one in halves]
    arrays = {id(one): f"{name}_wide{number}" for number, one in enumerate(halves)}
    with lines.block(f"for (int64_t {block} = {first}; {block} < {end}; {block} += {BLOCK})"):
        lines.add(f"const int64_t {stop} = kh::min<int64_t>({block} + {BLOCK}, {end});")
        lines.add(f"float {', '.join(f'{array}[{BLOCK}]' for array in arrays.values())};")
        for one, place in zip(halves, places, strict=True):
            if isinstance(one, Load):
                lines.add(f"kh::widen(&{place}, {stop} - {block}, {arrays[id(one)]});")
        function.body.elsewhere = {one: f"{array}[{name} - {block}]" for one, array in arrays.items()}
        plain(block, stop)
        function.body.elsewhere = {}
        for one, place in zip(halves, places, strict=True):
            if isinstance(one, Store):
                lines.add(f"kh::narrow({arrays[id(one)]}, {stop} - {block}, &{place});")


def _place(function: Function, one: Load | Store, place: Dim) -> str:
    """An element of what is read or stored."""
    return f"{function.names.buffers[one.buffer]}[{function.body.index(place)}]"


def _converted_row(loop: Loop, body: Sequence[Statement]) -> tuple[Load, Store] | None:
    """What is read and what is stored by a loop that only converts float32 to float16, or back."""
    if len(body) != 3:
        return None
    load, cast, store = body
    if not isinstance(load, Load) or not isinstance(cast, Compute) or type(store) is not Store:
        return None
    if (
        cast.op.name != "cast"
        or cast.args != (load.name,)
        or store.arg != cast.name
        or cast.attrs.get("saturate")
    ):
        return None
    plain = (
        not load.guards and not arguments(load) and _step(load.place, loop) == _step(store.place, loop) == 1
    )
    dtypes = {load.dtype, store.buffer.dtype}
    return (load, store) if plain and cast.dtype is store.buffer.dtype and dtypes == _CONVERTED else None


def _halves(loop: Loop, body: Sequence[Statement], copied: frozenset[str]) -> list[Load | Store]:
    """What reads or stores narrow floats side by side; nothing where that is too much or too short."""
    long = sum(cost(one) for one in body if isinstance(one, Compute)) >= LONG
    dtypes = {FLOAT16, BFLOAT16} if long else {FLOAT16}
    if isinstance(loop.extent, int) and loop.extent < LEAST_TURNS:
        return []
    made = {one.name for one in body if not isinstance(one, Store)}
    found: list[Load | Store] = []
    for one in body:
        if isinstance(one, Load):
            if one.guards or one.name in copied or not made.isdisjoint(arguments(one)):
                continue
        elif type(one) is not Store or one.arg in copied:
            continue
        if one.buffer.dtype in dtypes and _step(one.place, loop) == 1:
            found.append(one)
    return found if len(found) <= MOST_ARRAYS else []


def _step(place: Dim, loop: Loop) -> Dim | None:
    found = linear(place, [loop.name])
    return None if found is None else found[0][loop.name]
