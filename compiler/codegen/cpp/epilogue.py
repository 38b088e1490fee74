"""Epilogues: the function that an anchor calls on each piece of a row, which computes the rest of the nest there."""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.cpp.scalar import storage_type
from kernels_hub.compiler.codegen.cpp.text import CppBody
from kernels_hub.compiler.codegen.lines import note_of
from kernels_hub.compiler.codegen.loops import levels, merged, turns, without_single
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.scalar import Scalars, variable_name
from kernels_hub.compiler.ir.types import FLOAT32, DType
from kernels_hub.compiler.schedule.index import Loop
from kernels_hub.compiler.schedule.kernel import Nest, variables


def print_epilogue(
    lines: Lines,
    names: Names,
    nest: Nest,
    counted: Sequence[tuple[str, int]],
    *,
    round_ops: bool,
    tail: str,
    dtype: DType = FLOAT32,
) -> None:
    """Write the inside of `[=](…, int64_t j, int64_t count, const float* acc) {…}` and its end. dtype: of `acc`.

    The nest's outer loops but for the last are counted row-major by parameters: (name, how many loops) each, in order.
    The last is the row: elements j to j + count, which lie in `acc`.
    """
    assert nest.anchor is not None
    *outer, column = nest.outer
    body = nest.body
    groups: list[tuple[str, tuple[Loop, ...]]] = []
    for name, count in counted:
        mine, outer = outer[:count], outer[count:]
        single = without_single(Nest(tuple(mine), (), body))
        loops, body = merged(single.outer, single.body)
        groups.append((name, loops))
    single = without_single(Nest((column,), (), body))
    body = single.body
    loops = (*(loop for _, group in groups for loop in group), column)
    printer = CppBody(lines, names, loops, round_ops=round_ops)
    printer.know(body)
    printer.know_stores(body)
    printer.dtypes[nest.anchor.name] = dtype
    at = levels(body, loops, own={nest.anchor.name: len(loops)})
    lines.depth += 1
    for name, group in groups:
        _counted(lines, printer.scalars, name, group)
    for level in range(len(loops)):
        printer.emit_at(body, at, level)
    lines.add("#pragma omp simd")
    with lines.block("for (int64_t l = 0; l < count; ++l)"):
        if any(column.name in variables(statement) for statement in body):
            lines.add(f"const int64_t {variable_name(column.name)} = j + l;")
        lines.add(f"const {storage_type(dtype)} {nest.anchor.name} = acc[l];", note_of(nest.anchor.origin))
        printer.emit_at(body, at, len(loops))
    lines.depth -= 1
    lines.add(tail)


def _counted(lines: Lines, scalars: Scalars, name: str, loops: Sequence[Loop]) -> None:
    """Declare the variables of loops that one number counts."""
    parts = []
    for index, loop in enumerate(loops):
        below = turns(loops[index + 1 :])
        row = name if isinstance(below, int) and below == 1 else f"{name} / {scalars.factor(below)}"
        if index:
            row = f"{row} % {scalars.factor(loop.extent)}"
        parts.append(f"{variable_name(loop.name)} = {row}")
    if parts:
        lines.add(f"const int64_t {', '.join(parts)};")
