"""Orders as C++: rows by threads, the places of each in memory of the thread's own, then the rest of the nest."""

from __future__ import annotations

from kernels_hub.compiler.codegen.cpp_function import Function
from kernels_hub.compiler.codegen.cpp_loops import is_empty, levels, turns
from kernels_hub.compiler.codegen.cpp_text import Lines, Names, Parameters, print_nothing
from kernels_hub.compiler.codegen.lines import note_of
from kernels_hub.compiler.codegen.scalar import storage_type, variable_name
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.types import INT64
from kernels_hub.compiler.schedule.kernel import Nest, Order

COMPARISONS = 8
"""What an element of a row costs to be sorted in, an addition being 1, about."""


def print_order(name: str, nest: Nest, lines: Lines, names: Names, *, round_ops: bool) -> Parameters:
    """Write the function of a nest whose root is an order."""
    root = nest.root
    assert isinstance(root, Order)
    *rows, places = nest.outer
    x = root.x
    length = x.shape[root.axis]
    parameters = Parameters.of(nest)
    function = Function(name, nest, parameters, lines, names, round_ops=round_ops)
    body = function.body
    body.dtypes[root.name] = INT64
    if is_empty(nest.outer):
        print_nothing(name, parameters, lines, names)
        return parameters
    at = levels(nest.body, nest.outer, own={root.name: len(nest.outer)})
    first: Dim = x.offset
    for stride, loop in zip((*x.strides[: root.axis], *x.strides[root.axis + 1 :]), rows, strict=True):
        first = first + loop.index * stride

    def row() -> None:
        for level in range(len(nest.outer)):
            body.emit_at(nest.body, at, level)
        source, stride = names.buffers[x.buffer], body.index(x.strides[root.axis])
        lines.add(
            f"{root.name}_places.order<{'true' if root.descending else 'false'}>"
            f"({source} + {body.index(first)}, {stride}, {body.index(places.extent)});",
            note_of(root.origin),
        )
        with lines.block(function.loop(places)):
            lines.add(f"const int64_t {root.name} = {root.name}_places[{variable_name(places.name)}];")
            body.emit_at(nest.body, at, len(nest.outer))

    def inside() -> None:
        kind = storage_type(x.buffer.dtype)
        lines.add(f"kh::Places<{kind}> {root.name}_places({body.index(length)});")
        if not rows:
            row()
            return
        with lines.block(function.row_loop(rows)):
            function.row_variables(rows)
            row()

    function.rows(turns(rows), length * COMPARISONS + places.extent * function.work, inside)
    return parameters
