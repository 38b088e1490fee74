"""Recurrent cells: a call of the runtime, which hands out the states of a step row by row."""

from __future__ import annotations

from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.cpp.epilogue import print_epilogue
from kernels_hub.compiler.codegen.cpp.packed import PackedOperands
from kernels_hub.compiler.codegen.cpp.scalar import Cpp
from kernels_hub.compiler.codegen.cpp.text import Parameters, pointer, print_nothing
from kernels_hub.compiler.codegen.loops import is_empty
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.schedule.index import Ranges
from kernels_hub.compiler.schedule.kernel import Nest, Recurrence, View

_CELLS = {
    "lstm": "kLstm", "gru": "kGru", "gru_after": "kGruAfter", "tanh": "kTanh", "relu": "kRelu",
}  # fmt: skip


def print_recurrent(
    name: str, nest: Nest, lines: Lines, names: Names, packed: PackedOperands, *, round_ops: bool
) -> Parameters:
    """Write the function of a nest whose anchor is a recurrent cell."""
    anchor = nest.anchor
    assert isinstance(anchor, Recurrence)
    parameters = Parameters.of(nest)
    if is_empty(nest.outer):
        print_nothing(name, parameters, lines, names)
        return parameters
    index = Cpp(Ranges(nest.outer)).index

    def at(view: View | None) -> str:
        return "nullptr" if view is None else pointer(view, names, index)

    def strided(view: View | None, rank: int) -> str:
        strides = ", ".join(map(index, view.strides)) if view is not None else ", ".join(["0"] * rank)
        return f"{at(view)}, {{{strides}}}"

    cell = f"kh::Cell::{_CELLS[anchor.cell]}"
    ways, _, hidden = anchor.weight.shape
    memory = _packed_weight(nest, anchor, cell, parameters, packed, names)
    with lines.block(f"static void {name}({', '.join(parameters.declared(names))})"):
        time, batch, _ = anchor.x.shape
        lines.add(
            f"const kh::Recurrence shape{{{cell}, {index(time)}, {index(batch)}, {index(hidden)}, {index(ways)}, "
            f"{'true' if anchor.reverse else 'false'}}};"
        )
        step = "0" if anchor.lengths is None else index(anchor.lengths.strides[0])
        lines.add(f"const kh::RecurrentInputs in{{{strided(anchor.x, 3)}, {strided(anchor.h, 3)},")
        lines.add(f"                              {strided(anchor.c, 3)}, {strided(anchor.bias, 2)},")
        weights = f"{strided(anchor.scales, 2)}, {strided(anchor.zeros, 2)}"
        lines.add(f"                              {weights}, {at(anchor.lengths)}, {step}}};")
        if memory is None:
            lines.add(f"const int64_t strides[3] = {{{', '.join(map(index, anchor.weight.strides))}}};")
            lines.add(f"kh::recur_unpacked(shape, in, {at(anchor.weight)}, strides,")
        else:
            lines.add(f"kh::recur(shape, in, {memory},")
        lines.add("          [=](int64_t, int64_t row, int64_t j, int64_t count, const float* acc) {")
        print_epilogue(lines, names, nest, [("row", 4)], round_ops=round_ops, tail="});")
    return parameters


def _packed_weight(
    nest: Nest, anchor: Recurrence, cell: str, parameters: Parameters, packed: PackedOperands, names: Names
) -> str | None:
    """The memory of a weight that is packed once, which the function is given instead of it; None of others."""
    view = anchor.weight
    if not packed.takes(view) or not all(isinstance(dim, int) for dim in view.shape):
        return None
    ways, _, hidden = view.shape
    source = pointer(view, names)
    strides = ", ".join(map(str, view.strides))
    if anchor.scales is None:
        size, pack = f"recurrent_size({cell}, {ways}, {hidden})", f"pack_recurrent({cell}, {ways}"
    else:
        size, pack = f"recurrent_size_of_bytes({ways}, {hidden})", f"pack_recurrent_bytes({ways}"
    name = packed.add(
        view,
        f"kh::{size}",
        f"const int64_t strides[3] = {{{strides}}}; kh::{pack}, {hidden}, {source}, strides, $to);",
    )
    parameters.take_packed(nest, view, name)
    return name
