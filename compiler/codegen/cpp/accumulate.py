"""The variables of reductions, and how a turn feeds them: in one loop ("along"), or one for each lane ("across").

float32 sums: partial sums over at most `BLOCK` turns (`…_part`), which are added up in float64 (`…_sum`). float
products are float64 throughout. NaN wins over all in max, min, argmax and argmin; the first of equals is the place.

Places along a long row: a block of the row is written to `…_row` by vector instructions, and searched by
`kh::search_row`. The maximum of the same values (`twins_of`) is what that search finds at the place.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.codegen.cpp.scalar import value_type
from kernels_hub.compiler.codegen.cpp.text import CppBody
from kernels_hub.compiler.codegen.lines import NO_NOTE, note_of
from kernels_hub.compiler.codegen.loops import PLACES
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.types import BOOL, FLOAT32, FLOAT64, INT64, DType
from kernels_hub.compiler.schedule.kernel import Reduce

BLOCK = 512
"""Turns whose float32 sum is added up in float32."""

SHORTEST_ROW = 16
"""Turns from which on a place is searched for in a row of values."""

_SIGNS = {"sum": "+", "prod": "*", "max": "max", "min": "min", "any": "|", "all": "&"}


def is_parted(one: Reduce) -> bool:
    """Whether a sum is of float32 parts, added up in float64."""
    return one.kind == "sum" and one.dtype.is_float and one.dtype.compute is FLOAT32


def in_order(one: Reduce) -> bool:
    """Whether no vector instructions serve."""
    return one.kind in PLACES or one.dtype.is_complex


def is_searched(one: Reduce, extent: Dim) -> bool:
    """Whether a place is searched for in blocks of a row, of an innermost loop of so many turns."""
    return one.kind in PLACES and (not isinstance(extent, int) or extent >= SHORTEST_ROW)


def twins_of(fed: Sequence[Reduce], body: CppBody) -> dict[str, str]:
    """Maxima and minima by name -> the search for the place of the same, which knows them."""
    return {
        one.name: place.name
        for one in fed
        for place in fed
        if one.kind == PLACES.get(place.kind)
        and one.arg == place.arg
        and value_type(one.dtype) == value_type(body.dtypes[one.arg])
    }


def total_type(one: Reduce) -> str:
    """The type of …_sum."""
    if one.kind in PLACES:
        return value_type(INT64)
    if one.kind in {"any", "all"}:
        return "int"  # of bools no compiler makes vectors
    return value_type(FLOAT64 if _is_wide(one) else one.dtype)


def total_start(one: Reduce, body: CppBody) -> str:
    """What …_sum starts from."""
    if one.kind in PLACES:
        return "0"
    if one.kind in {"sum", "prod"}:
        return "0" if one.kind == "sum" else "1"
    if one.kind in {"any", "all"}:
        return "0" if one.kind == "any" else "1"
    return extreme(one.kind, one.dtype, body)


def best_start(one: Reduce, body: CppBody) -> tuple[str, str]:
    """The type of the value that a place is searched for, and what it starts from."""
    dtype = body.dtypes[one.arg]
    return value_type(dtype), extreme(PLACES[one.kind], dtype, body)


def start_along(one: Reduce, body: CppBody) -> None:
    """Declare the variables of a reduction."""
    if one.kind in PLACES:
        kind, start = best_start(one, body)
        body.lines.add(f"{kind} {one.name}_best = {start};", note_of(one.origin))
        body.lines.add(f"int64_t {one.name} = 0;")
        return
    name = f"{one.name}_sum" if _is_wide(one) else one.name
    body.lines.add(f"{total_type(one)} {name} = {total_start(one, body)};", note_of(one.origin))
    if _has_nan(one):
        body.lines.add(f"{_flag(one)} {one.name}_nan = 0;")


def feed_along(one: Reduce, body: CppBody, place: str) -> None:
    """One turn. place: the row-major place of the turn."""
    value, name, lines = body.use(one.arg), one.name, body.lines
    if one.kind in PLACES:
        word = "greater" if one.kind == "argmax" else "less"
        with lines.block(f"if (kh::is_{word}({value}, {name}_best))"):
            lines.add(f"{name}_best = {value};")
            lines.add(f"{name} = {place};")
    elif one.kind in {"sum", "prod"}:
        target = f"{name}_part" if is_parted(one) else f"{name}_sum" if _is_wide(one) else name
        lines.add(f"{target} {_SIGNS[one.kind]}= {value};")
    elif one.kind in {"max", "min"}:
        lines.add(f"{name} = {value} {'>' if one.kind == 'max' else '<'} {name} ? {value} : {name};")
        if _has_nan(one):
            lines.add(f"{name}_nan |= {value} != {value};")
    else:
        lines.add(f"{name}_sum {_SIGNS[one.kind]}= {value};")


def declare_row(one: Reduce, body: CppBody, count: int) -> None:
    """Declare room for the values of a block of a row."""
    body.lines.add(f"alignas(64) {value_type(body.dtypes[one.arg])} {one.name}_row[{count}];")


def keep_along(one: Reduce, body: CppBody, place: str) -> None:
    """One turn of a search in blocks. place: in the block."""
    body.lines.add(f"{one.name}_row[{place}] = {body.use(one.arg)};")


def search_row(one: Reduce, body: CppBody, first: str, count: str) -> None:
    """Search the values of a block. first: the row-major place of its first turn."""
    name, greatest = one.name, "true" if one.kind == "argmax" else "false"
    body.lines.add(f"kh::search_row<{greatest}>({name}_row, {count}, {first}, {name}_best, {name});")


def finish_along(one: Reduce, body: CppBody) -> None:
    """The result under its name."""
    kind, name = value_type(one.dtype), one.name
    if _is_wide(one):
        total = f"{name}_sum != 0" if one.dtype is BOOL else f"static_cast<{kind}>({name}_sum)"
        body.lines.add(f"const {kind} {name} = {total};")
    elif _has_nan(one):
        nan = body.scalars.literal(float("nan"), one.dtype)
        body.lines.add(f"if ({name}_nan) {name} = {nan};")


def clauses(one: Reduce) -> list[str]:
    """What `#pragma omp simd` is told."""
    name = f"{one.name}_part" if is_parted(one) else f"{one.name}_sum" if _is_wide(one) else one.name
    sign = _SIGNS[one.kind]
    if one.kind in {"max", "min"} and one.dtype.is_float:
        sign = f"KH_{sign.upper()}"  # native/scalar.h
    found = [f"reduction({sign} : {name})"]
    return [*found, f"reduction(| : {one.name}_nan)"] if _has_nan(one) else found


def start_across(one: Reduce, body: CppBody, tile: int, *, parted: bool) -> None:
    """Declare the arrays of a reduction; parted: …_part are declared block by block."""
    if one.kind in PLACES:
        kind, start = best_start(one, body)
        body.lines.add(f"alignas(64) {kind} {one.name}_best[{tile}];", note_of(one.origin))
        body.lines.add(f"kh::fill_n({one.name}_best, {tile}, {start});")
    kind = value_type(one.dtype) if is_parted(one) and not parted else total_type(one)
    body.lines.add(
        f"alignas(64) {kind} {one.name}_sum[{tile}];", NO_NOTE if one.kind in PLACES else note_of(one.origin)
    )
    body.lines.add(f"kh::fill_n({one.name}_sum, {tile}, {kind}({total_start(one, body)}));")


def feed_across(one: Reduce, body: CppBody, lane: str, place: str, *, parted: bool) -> None:
    """One turn of one lane."""
    value, name, lines = body.use(one.arg), one.name, body.lines
    total = f"{name}_sum[{lane}]"
    if one.kind in PLACES:
        word, best = "greater" if one.kind == "argmax" else "less", f"{name}_best[{lane}]"
        lines.add(f"const bool {name}_take = kh::is_{word}({value}, {best});")
        lines.add(f"{best} = {name}_take ? {value} : {best};")
        lines.add(f"{total} = {name}_take ? {place} : {total};")
    elif one.kind in {"sum", "prod"}:
        target = f"{name}_part[{lane}]" if parted and is_parted(one) else total
        lines.add(f"{target} {_SIGNS[one.kind]}= {value};")
    elif one.kind in {"max", "min"}:
        word = "greater" if one.kind == "max" else "lesser"
        lines.add(f"{total} = kh::{word}({value}, {total});")
    else:
        lines.add(f"{total} {_SIGNS[one.kind]}= {value};")


def total_of(one: Reduce, lane: str) -> str:
    """The result of a lane."""
    kind = value_type(one.dtype)
    text = f"{one.name}_sum[{lane}]"
    if one.dtype is BOOL:
        return f"{text} != 0"
    return f"static_cast<{kind}>({text})" if _is_wide(one) else text


def _is_wide(reduce: Reduce) -> bool:
    """Whether it is kept in another type than its own, as …_sum."""
    return reduce.kind in {"any", "all"} or (reduce.kind in {"sum", "prod"} and reduce.dtype.is_float)


def _flag(reduce: Reduce) -> str:
    """An integer as wide as a float: then both are lanes of one kind of vector."""
    return "int64_t" if reduce.dtype is FLOAT64 else "int"


def _has_nan(reduce: Reduce) -> bool:
    return reduce.kind in {"max", "min"} and reduce.dtype.is_float


def extreme(kind: str, dtype: DType, body: CppBody) -> str:
    """What is beaten by everything."""
    if dtype.is_float:
        return body.scalars.literal(float("-inf" if kind == "max" else "inf"), dtype)
    return body.scalars.literal(dtype.limits[0 if kind == "max" else 1], dtype)
