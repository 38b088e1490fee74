"""A matrix product as a Metal kernel: a thread computes a tile of 4 x 4 results in registers, then their epilogue."""

from __future__ import annotations

from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.lines import note_of
from kernels_hub.compiler.codegen.loops import turns
from kernels_hub.compiler.codegen.metal.text import THREAD, MetalBody, Parameters
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.scalar import variable_name
from kernels_hub.compiler.ir.dims import Dim, ceildiv
from kernels_hub.compiler.ir.types import FLOAT32
from kernels_hub.compiler.schedule.index import Loop
from kernels_hub.compiler.schedule.kernel import Nest, Product, View

TILE = 4


def print_product(name: str, nest: Nest, lines: Lines, names: Names) -> tuple[Parameters, Dim]:
    """Write the kernel of a nest whose anchor is a product; returns what it is given, and how many threads it wants."""
    anchor = nest.anchor
    assert isinstance(anchor, Product)
    *batch, m, n = nest.outer
    parameters = Parameters.of(nest)
    body = MetalBody(lines, names, nest.outer)
    body.know(nest.body)
    body.dtypes[anchor.name] = FLOAT32
    rows, columns = Loop("$tile_row", ceildiv(m.extent, TILE)), Loop("$tile_column", ceildiv(n.extent, TILE))
    with lines.block(f"kernel void {name}({parameters.declared(names, body.scalars)})"):
        body.digits(f"static_cast<int64_t>({THREAD})", [*batch, rows, columns])
        lines.add(f"const int64_t first_row = tile_row * {TILE}, first_column = tile_column * {TILE};")
        lines.add(f"float tile[{TILE}][{TILE}] = {{}};", note_of(anchor.origin))
        with lines.block(f"for (int64_t depth = 0; depth < {body.index(anchor.a.shape[-1])}; ++depth)"):
            lines.add(f"float left[{TILE}], right[{TILE}];")
            with lines.block(f"for (int i = 0; i < {TILE}; ++i)"):
                row = f"metal::min<int64_t>(first_row + i, {body.index(m.extent)} - 1)"
                column = f"metal::min<int64_t>(first_column + i, {body.index(n.extent)} - 1)"
                lines.add(f"left[i] = {_element(body, anchor.a, batch, row, 'depth')};")
                lines.add(f"right[i] = {_element(body, anchor.b, batch, 'depth', column)};")
            with (
                lines.block(f"for (int i = 0; i < {TILE}; ++i)"),
                lines.block(f"for (int j = 0; j < {TILE}; ++j)"),
            ):
                lines.add("tile[i][j] += left[i] * right[j];")
        with (
            lines.block(f"for (int i = 0; i < {TILE} && first_row + i < {body.index(m.extent)}; ++i)"),
            lines.block(f"for (int j = 0; j < {TILE} && first_column + j < {body.index(n.extent)}; ++j)"),
        ):
            lines.add(f"const int64_t {variable_name(m.name)} = first_row + i;")
            lines.add(f"const int64_t {variable_name(n.name)} = first_column + j;")
            lines.add(f"const float {anchor.name} = tile[i][j];")
            for statement in nest.body:
                body.emit(statement)
    return parameters, turns([*batch, rows, columns])


def _element(body: MetalBody, view: View, batch: list[Loop], row: str, column: str) -> str:
    """An element of an operand as a float."""
    *strides, row_stride, column_stride = view.strides
    place = view.offset
    for loop, stride in zip(batch, strides, strict=True):
        place = place + loop.index * stride
    terms = [body.index(place)] if not isinstance(place, int) or place else []
    for at, stride in ((row, row_stride), (column, column_stride)):
        if not isinstance(stride, int) or stride:
            terms.append(f"{at} * {body.scalars.factor(stride)}")
    return f"static_cast<float>({body.names.buffers[view.buffer]}[{' + '.join(terms) or '0'}])"
