"""Convolutions on the runtime's implicit product, the rest of the nest as their epilogue."""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.cpp.epilogue import print_epilogue
from kernels_hub.compiler.codegen.cpp.packed import PackedOperands
from kernels_hub.compiler.codegen.cpp.product import element_of
from kernels_hub.compiler.codegen.cpp.scalar import Cpp
from kernels_hub.compiler.codegen.cpp.text import Parameters
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.schedule.index import Ranges
from kernels_hub.compiler.schedule.kernel import Convolution, Load, Nest


def print_convolution(
    name: str, nest: Nest, lines: Lines, names: Names, packed: PackedOperands, *, round_ops: bool
) -> Parameters:
    """Write the function of a nest whose anchor is a convolution of floats over one to three dims."""
    anchor = nest.anchor
    assert isinstance(anchor, Convolution)
    scalars = Cpp(Ranges(nest.outer))
    index = scalars.index
    parameters = Parameters.of(nest, [dim for pair in anchor.padding for dim in pair])
    weight = packed.takes(anchor.w)
    source = names.buffers[anchor.w.buffer] + _plus(index(anchor.w.offset))
    size = f"kh::filter_size<{element_of(anchor.w)}>"
    w_strides = _list([index(one) for one in _five(anchor.w.strides, 0)])
    if weight:
        if not any(
            isinstance(statement, Load) and statement.buffer is anchor.w.buffer for statement in nest.body
        ):
            del parameters.reads[anchor.w.buffer]
        any_size = _shape(anchor, (1,) * 3, scalars, out=(1,) * 3, n=1)
        fill = f"const int64_t strides[] = {w_strides}; kh::pack_filter({any_size}, {source}, strides, $to);"
        right = packed.add(anchor.w, f"{size}({any_size})", fill)
        parameters.packed[right] = None
    _, *spatial, _ = nest.outer
    with lines.block(f"static void {name}({', '.join(parameters.declared(names))})"):
        sizes = _three(anchor.x.shape[2:], 1)
        out = _three([loop.extent for loop in spatial], 1)
        lines.add(
            f"const kh::Convolution shape{_shape(anchor, sizes, scalars, out=out, n=anchor.x.shape[0])[15:]};"
        )
        x = anchor.x.strides
        x_strides = _list([index(one) for one in (x[0], *_three(x[2:], 0), x[1])])
        lines.add(f"const int64_t strides[] = {x_strides};")
        if not weight:
            right = "packed"
            lines.add(f"const kh::Row<float> space({size}(shape));")
            lines.add("float* const packed = &space[0];")
            lines.add(f"const int64_t w_strides[] = {w_strides};")
            lines.add(f"kh::pack_filter(shape, {source}, w_strides, packed);")
        first = names.buffers[anchor.x.buffer] + _plus(index(anchor.x.offset))
        lines.add(f"kh::convolve(shape, {first}, strides, {right},")
        lines.add("             [=](int64_t, int64_t row, int64_t j, int64_t count, const float* acc) {")
        counted = [("row", len(spatial) + 1)]
        print_epilogue(lines, names, nest, counted, round_ops=round_ops, tail="});")
    return parameters


def _shape(anchor: Convolution, sizes: Sequence[Dim], scalars: Cpp, *, out: Sequence[Dim], n: Dim) -> str:
    """The runtime's record of the sizes: triples (d, h, w)."""
    index = scalars.index
    triples = (
        sizes,
        _three(anchor.w.shape[2:], 1),
        _three(anchor.strides, 1),
        _three([low for low, _ in anchor.padding], 0),
        _three(anchor.dilations, 1),
        out,
    )
    heads = (n, anchor.x.shape[1], anchor.w.shape[0], anchor.groups)
    parts = [*(index(head) for head in heads), *(_list([index(one) for one in triple]) for triple in triples)]
    return f"kh::Convolution{_list(parts)}"


def _three(dims: Sequence[Dim], filler: int) -> tuple[Dim, ...]:
    """Spatial dims as (d, h, w)."""
    return (*(filler,) * (3 - len(dims)), *dims)


def _five(strides: Sequence[Dim], filler: int) -> tuple[Dim, ...]:
    return (*strides[:2], *_three(strides[2:], filler))


def _list(parts: Sequence[str]) -> str:
    return f"{{{', '.join(parts)}}}"


def _plus(offset: str) -> str:
    return "" if offset == "0" else f" + {offset}"
