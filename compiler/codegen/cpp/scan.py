"""A nest with running sums as C++: rows by threads, and in each the inner loop in order.

What is carried from turn to turn (`…_so_far`) is float64 for sums and products of floats. NaN wins over all in max and
min.
"""

from __future__ import annotations

from kernels_hub.compiler.codegen.cpp.accumulate import extreme
from kernels_hub.compiler.codegen.cpp.function import Function
from kernels_hub.compiler.codegen.cpp.scalar import value_type
from kernels_hub.compiler.codegen.cpp.text import CppBody
from kernels_hub.compiler.codegen.lines import note_of
from kernels_hub.compiler.codegen.loops import levels, turns
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
        for statement in nest.body:
            if isinstance(statement, Scan):
                _start(statement, body)
        with lines.block(function.loop(nest.inner[0]) if nest.inner else ""):
            for statement, level in zip(nest.body, at, strict=True):
                if isinstance(statement, Scan):
                    _turn(statement, body)
                elif level > outside:
                    body.emit(statement)

    def inside() -> None:
        if not nest.outer:
            row()
            return
        with lines.block(function.row_loop(nest.outer)):
            function.row_variables(nest.outer)
            row()

    function.rows(turns(nest.outer), turns(nest.inner) * function.work, inside)


def _start(scan: Scan, body: CppBody) -> None:
    """Declare what is carried."""
    wide = scan.kind in _STARTS and scan.dtype.is_float
    kind = value_type(FLOAT64 if wide else scan.dtype)
    start = _STARTS.get(scan.kind) or extreme(scan.kind, scan.dtype, body)
    body.lines.add(f"{kind} {scan.name}_so_far = {start};", note_of(scan.origin))


def _turn(scan: Scan, body: CppBody) -> None:
    """Take in a turn's argument."""
    total, value, kind = f"{scan.name}_so_far", body.use(scan.arg), value_type(scan.dtype)
    if scan.kind in _STARTS:
        body.lines.add(f"{total} {'+' if scan.kind == 'sum' else '*'}= {value};")
    else:
        body.lines.add(f"{total} = kh::{'greater' if scan.kind == 'max' else 'lesser'}({value}, {total});")
    body.lines.add(f"const {kind} {scan.name} = static_cast<{kind}>({total});")
