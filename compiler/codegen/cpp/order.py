"""Sorts as C++: rows by threads, the permutation of each in thread-local memory, then the rest of the nest."""

from __future__ import annotations

from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.cpp.function import Function
from kernels_hub.compiler.codegen.cpp.scalar import storage_type
from kernels_hub.compiler.codegen.cpp.text import Parameters, print_nothing
from kernels_hub.compiler.codegen.lines import note_of
from kernels_hub.compiler.codegen.loops import is_empty, levels, turns
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.scalar import variable_name
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.types import INT64
from kernels_hub.compiler.schedule.kernel import Nest, Order

COMPARISONS = 8
"""What an element of a row costs to be sorted in, an addition being 1, about."""


def print_order(name: str, nest: Nest, lines: Lines, names: Names, *, round_ops: bool) -> Parameters:
    """Write the function of a nest whose anchor is an order."""
    anchor = nest.anchor
    assert isinstance(anchor, Order)
    rows, places = (nest.outer, None) if anchor.kth is not None else (nest.outer[:-1], nest.outer[-1])
    x = anchor.x
    length = x.shape[anchor.axis]
    parameters = Parameters.of(nest)
    function = Function(name, nest, parameters, lines, names, round_ops=round_ops)
    body = function.body
    body.dtypes[anchor.name] = INT64
    if is_empty(nest.outer):
        print_nothing(name, parameters, lines, names)
        return parameters
    kept = f"{anchor.name}_places"
    at = levels(nest.body, nest.outer, own={anchor.name: len(nest.outer)})
    first: Dim = x.offset
    for stride, loop in zip((*x.strides[: anchor.axis], *x.strides[anchor.axis + 1 :]), rows, strict=True):
        first = first + loop.index * stride

    def row() -> None:
        for level in range(len(nest.outer)):
            body.emit_at(nest.body, at, level)
        source, stride = names.buffers[x.buffer], body.index(x.strides[anchor.axis])
        row, note = f"{source} + {body.index(first)}, {stride}", note_of(anchor.origin)
        if places is None:
            lines.add(f"const int64_t {anchor.name} = {kept}.kth({row}, {body.index(anchor.kth)});", note)
            body.emit_at(nest.body, at, len(nest.outer))
            return
        order = f"order<{'true' if anchor.descending else 'false'}>"
        lines.add(f"{kept}.{order}({row}, {body.index(places.extent)});", note)
        with lines.block(function.loop(places)):
            lines.add(f"const int64_t {anchor.name} = {kept}[{variable_name(places.name)}];")
            body.emit_at(nest.body, at, len(nest.outer))

    def inside() -> None:
        kind = storage_type(x.buffer.dtype)
        lines.add(f"kh::Places<{kind}> {kept}({body.index(length)});")
        if not rows:
            row()
            return
        with lines.block(function.row_loop(rows)):
            function.row_variables(rows)
            row()

    work = length * COMPARISONS + (1 if places is None else places.extent) * function.work
    function.rows(turns(rows), work, inside)
    return parameters
