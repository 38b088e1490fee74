"""A nest that writes where data say as C++: each place is written by one thread, in the order of the inner loops.

The last of the outer loops is innermost where it writes side by side (`lanes`): an index is read once for all of them.
Threads share the other outer loops; where there are none, blocks of lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernels_hub.compiler.codegen.cpp.function import Function
from kernels_hub.compiler.codegen.cpp.scalar import storage_type, value_type
from kernels_hub.compiler.codegen.loops import levels, merged, stride, turns, without_single
from kernels_hub.compiler.codegen.scalar import variable_name
from kernels_hub.compiler.ir.dims import ceildiv
from kernels_hub.compiler.schedule.index import Loop
from kernels_hub.compiler.schedule.kernel import Bound, Nest, Statement, Update

BLOCK = 16
"""Lanes that stay with one thread: a cache line of float32."""

_SIGNS = {"add": "+", "mul": "*"}
_CHOICES = {"max": "greater", "min": "lesser"}


def simplified_scatter(nest: Nest) -> Nest:
    """The nest with as few loops as may be; the inner ones in their order."""
    nest = without_single(nest)
    outer, body = merged(nest.outer, nest.body)
    inner, body = merged(nest.inner, body)
    return replace(nest, outer=outer, inner=inner, body=body)


def print_scatter(function: Function) -> None:
    """Write the functions of a nest that scatters."""
    nest, lines, body = function.nest, function.lines, function.body
    lanes = _lanes(nest)
    rows = nest.outer[: len(nest.outer) - len(lanes)]
    blocks = not rows and bool(lanes)
    order = (*rows, *nest.inner, *lanes)
    at = levels(nest.body, order)
    test = _test(function)

    def emit(level: int) -> None:
        for statement, depth in zip(nest.body, at, strict=True):
            if depth == level:
                _emit(function, statement, test)

    def nested(loops: Sequence[Loop], level: int) -> None:
        if not loops:
            return
        head = function.loop(loops[0])
        if loops[0] in lanes:
            lines.add("#pragma omp simd")
            if blocks:
                name = variable_name(loops[0].name)
                head = f"for (int64_t {name} = first_lane; {name} < last_lane; ++{name})"
        with lines.block(head):
            emit(level + 1)
            nested(loops[1:], level + 1)

    def inside() -> None:
        own = turns((*nest.inner, *lanes))
        if not isinstance(own, int):
            lines.add(f"if ({body.index(own)} <= 0) return;")
        emit(0)
        if not rows:
            if blocks:
                width = body.index(lanes[0].extent)
                lines.add(
                    f"const int64_t first_lane = begin * {BLOCK}, "
                    f"last_lane = kh::min<int64_t>(end * {BLOCK}, {width});"
                )
            nested(order, 0)
            return
        with lines.block(function.row_loop(rows)):
            function.row_variables(rows)
            for level in range(1, len(rows) + 1):
                emit(level)
            nested(order[len(rows) :], len(rows))

    if blocks:
        work = turns(nest.inner) * BLOCK * function.work
        function.rows(ceildiv(lanes[0].extent, BLOCK), work, inside)
    else:
        function.rows(turns(rows), turns((*nest.inner, *lanes)) * function.work, inside)


def _lanes(nest: Nest) -> tuple[Loop, ...]:
    (update,) = (statement for statement in nest.body if isinstance(statement, Update))
    last = nest.outer[-1:]
    return last if last and stride(update.place, last[0]) == 1 else ()


def _test(function: Function) -> str:
    """Whether there is anything to write to: an index of an empty dim is out of range, and counts as 0."""
    extents = dict.fromkeys(one.extent for one in function.nest.body if isinstance(one, Bound))
    unsure = [extent for extent in extents if not isinstance(extent, int) or extent < 1]
    return " && ".join(f"{function.body.index(extent)} > 0" for extent in unsure)


def _emit(function: Function, one: Statement, test: str) -> None:
    if not isinstance(one, Update):
        function.body.emit(one)
        return
    body, row = function.body, one.buffer.dtype
    element, value = f"{function.names.buffers[one.buffer]}[{body.index(one.place)}]", body.use(one.arg)
    if one.reduction in _SIGNS:
        value = f"static_cast<{storage_type(row)}>({element} {_SIGNS[one.reduction]} {value})"
    elif one.reduction in _CHOICES:
        value = f"kh::{_CHOICES[one.reduction]}<{value_type(row)}>({value}, {element})"
    function.lines.add(f"{f'if ({test}) ' if test else ''}{element} = {value};")
