"""Products with weights of few bits: calls of the runtime, which packs the weights once and leaves them so narrow."""

from __future__ import annotations

from collections.abc import Callable

from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.cpp.epilogue import print_epilogue
from kernels_hub.compiler.codegen.cpp.packed import PackedOperands
from kernels_hub.compiler.codegen.cpp.product import element_of
from kernels_hub.compiler.codegen.cpp.scalar import Cpp
from kernels_hub.compiler.codegen.cpp.text import Parameters, pointer, print_nothing
from kernels_hub.compiler.codegen.loops import is_empty
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.ops.few_bits import block_of
from kernels_hub.compiler.schedule.index import Ranges
from kernels_hub.compiler.schedule.kernel import FewBitsProduct, Nest, View


def print_few_bits(
    name: str, nest: Nest, lines: Lines, names: Names, packed: PackedOperands, *, round_ops: bool
) -> Parameters:
    """Write the function of a nest whose anchor is a product with a weight of few bits."""
    anchor = nest.anchor
    assert isinstance(anchor, FewBitsProduct)
    parameters = Parameters.of(nest)
    if is_empty(nest.outer):
        print_nothing(name, parameters, lines, names)
        return parameters
    index = Cpp(Ranges(nest.outer)).index
    texts = {what: _Text.of(anchor, what, names, index) for what in ("words", "scales", "zeros")}
    memory = {what: text.pack(packed, nest, parameters) for what, text in texts.items() if text is not None}
    rows, columns = nest.outer
    k = index(anchor.a.shape[1])
    block = index(block_of(anchor.w.shape, anchor.bits))
    with lines.block(f"static void {name}({', '.join(parameters.declared(names))})"):
        for what, text in texts.items():
            if (
                text is not None and memory[what] is None
            ):  # no weight that is known before: packed at each call
                memory[what] = f"{what}_packed"
                lines.add(f"kh::Workspace {what}_memory;")
                lines.add(f"float* const {what}_packed = {what}_memory.floats({text.size});")
                lines.add(text.fill.replace("$to", f"{what}_packed"))
        kept = f"kh::kKeptAs<{element_of(anchor.scales)}>"
        zeros_kept = (
            "kh::Kept::kNone" if anchor.zeros is None else f"kh::kZerosKeptAs<{element_of(anchor.zeros)}>"
        )
        lines.add(f"const kh::FewBits weight{{{k}, {index(columns.extent)}, {block}, {anchor.bits}, {kept},")
        given = ", ".join(memory.get(what) or "nullptr" for what in texts)
        lines.add(f"                         {zeros_kept}, {given}}};")
        left = pointer(anchor.a, names, index)
        strides = ", ".join(map(index, anchor.a.strides))
        lines.add(f"kh::multiply_few_bits({index(rows.extent)}, weight, {left}, {strides},")
        lines.add("             [=](int64_t, int64_t row, int64_t j, int64_t count, const float* acc) {")
        print_epilogue(lines, names, nest, [("row", 1)], round_ops=round_ops, tail="});")
    return parameters


class _Text:
    """C++ that packs a part of a weight, and for how many floats that takes."""

    def __init__(self, view: View, size: str, fill: str) -> None:
        self.view, self.size, self.fill = view, size, fill

    @classmethod
    def of(cls, anchor: FewBitsProduct, what: str, names: Names, index: Callable[[Dim], str]) -> _Text | None:
        """Of the words, the scales or the zero points; None where there are no such."""
        n, blocks, _ = map(index, anchor.w.shape)
        k, block = index(anchor.a.shape[1]), index(block_of(anchor.w.shape, anchor.bits))
        view = {"words": anchor.w, "scales": anchor.scales, "zeros": anchor.zeros}[what]
        if view is None:
            return None
        source = pointer(view, names, index)
        strides = f"const int64_t strides[] = {{{', '.join(map(index, view.strides))}}};"
        if what == "words":
            size = f"kh::words_size({k}, {n}, {anchor.bits})"
            pack = f"kh::pack_words({k}, {n}, {block}, {anchor.bits}"
        else:
            size = f"kh::{what}_size<{element_of(view)}>({blocks}, {n})"
            pack = f"kh::pack_{what}({blocks}, {n}" + (f", {anchor.bits}" if what == "zeros" else "")
        return cls(view, size, f"{{ {strides} {pack}, {source}, strides, $to); }}")

    def pack(self, packed: PackedOperands, nest: Nest, parameters: Parameters) -> str | None:
        """The name of memory that is packed once; None where it cannot be."""
        view = self.view
        if not packed.takes(view) or not all(isinstance(dim, int) for dim in view.shape):
            return None
        name = packed.add(view, self.size, self.fill)
        parameters.take_packed(nest, view, name)
        return name
