"""A nest with running sums as C++: rows by threads, and in each the inner loop in order.

What is carried from turn to turn (`…_so_far`) is float64 for sums and products of floats. NaN wins over all in max and
min.
"""

from __future__ import annotations

from kernels_hub.compiler.codegen.cpp_accumulate import extreme
from kernels_hub.compiler.codegen.cpp_function import Function
from kernels_hub.compiler.codegen.cpp_loops import levels, turns
from kernels_hub.compiler.codegen.cpp_text import Body
from kernels_hub.compiler.codegen.lines import note_of
from kernels_hub.compiler.codegen.scalar import value_type
from kernels_hub.compiler.ir.types import FLOAT64
from kernels_hub.compiler.schedule.kernel import Scan

_STARTS = {"sum": "0", "prod": "1"}


def print_scan(function: Function) -> None:
    """Write the functions of a nest with running sums."""
    nest, lines, body = function.nest, function.lines, function.body
    at = levels(nest.body, nest.inner, lambda one: isinstance(one, Scan))

    def row() -> None:
        outside = 0 if nest.inner else -1  # without a loop, all is a turn
        body.emit_at(nest.body, at, outside)
        for one in nest.body:
            if isinstance(one, Scan):
                _start(one, body)
        with lines.block(function.loop(nest.inner[0]) if nest.inner else ""):
            for one, level in zip(nest.body, at, strict=True):
                if isinstance(one, Scan):
                    _turn(one, body)
                elif level > outside:
                    body.emit(one)

    def inside() -> None:
        if not nest.outer:
            row()
            return
        with lines.block(function.row_loop(nest.outer)):
            function.row_variables(nest.outer)
            row()

    function.rows(turns(nest.outer), turns(nest.inner) * function.work, inside)


def _start(one: Scan, body: Body) -> None:
    """Declare what is carried."""
    wide = one.kind in _STARTS and one.dtype.is_float
    kind = value_type(FLOAT64 if wide else one.dtype)
    start = _STARTS.get(one.kind) or extreme(one.kind, one.dtype, body)
    body.lines.add(f"{kind} {one.name}_so_far = {start};", note_of(one.origin))


def _turn(one: Scan, body: Body) -> None:
    """Take in a turn's argument."""
    total, value, kind = f"{one.name}_so_far", body.use(one.arg), value_type(one.dtype)
    if one.kind in _STARTS:
        body.lines.add(f"{total} {'+' if one.kind == 'sum' else '*'}= {value};")
    else:
        body.lines.add(f"{total} = kh::{'greater' if one.kind == 'max' else 'lesser'}({value}, {total});")
    body.lines.add(f"const {kind} {one.name} = static_cast<{kind}>({total});")
