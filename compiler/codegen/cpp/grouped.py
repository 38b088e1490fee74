"""Products of rows in groups: one after the other on the runtime's microkernels, each shared by all threads."""

from __future__ import annotations

from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.cpp.epilogue import print_epilogue
from kernels_hub.compiler.codegen.cpp.packed import PackedOperands
from kernels_hub.compiler.codegen.cpp.product import element_of, packed_weight
from kernels_hub.compiler.codegen.cpp.scalar import Cpp
from kernels_hub.compiler.codegen.cpp.text import Parameters, pointer, print_nothing
from kernels_hub.compiler.codegen.loops import is_empty
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.schedule.index import Ranges
from kernels_hub.compiler.schedule.kernel import GroupedProduct, Nest

_PIECE = "int64_t row_of, int64_t j, int64_t count, const float* acc) {"


def print_grouped(
    name: str, nest: Nest, lines: Lines, names: Names, packed: PackedOperands, *, round_ops: bool
) -> Parameters:
    """Write the function of a nest whose anchor is a product in groups."""
    anchor = nest.anchor
    assert isinstance(anchor, GroupedProduct)
    parameters = Parameters.of(nest)
    rows, columns = nest.outer
    groups, k, n = anchor.b.shape
    index = Cpp(Ranges(nest.outer)).index

    left, right, ends = (pointer(view, names, index) for view in (anchor.a, anchor.b, anchor.ends))
    a_strides, (step, *b_strides) = map(index, anchor.a.strides), map(index, anchor.b.strides)
    row_stride, k_stride = a_strides
    sizes = f"end - done, {index(columns.extent)}, {index(k)}"
    memory = packed_weight(nest, anchor, parameters, packed, names)
    own = f"{memory} + group * kh::right_size<{element_of(anchor.b)}>({k}, {n})"
    if groups == 1 or anchor.b.strides[0] == 0:  # there is one packed matrix
        own = str(memory)

    def epilogue() -> None:
        lines.depth += 1
        lines.add("const int64_t row = done + row_of;")
        lines.depth -= 1
        print_epilogue(lines, names, nest, [("row", 1)], round_ops=round_ops, tail="});")

    if is_empty(nest.outer):
        print_nothing(name, parameters, lines, names)
        return parameters
    with lines.block(f"static void {name}({', '.join(parameters.declared(names))})"):
        count = index(rows.extent)
        lines.add("int64_t done = 0;")
        with lines.block(f"for (int64_t group = 0; group < {index(groups)}; ++group)"):
            stride = index(anchor.ends.strides[0])
            lines.add(f"const int64_t end = kh::clamp<int64_t>(*({ends} + group * {stride}), done, {count});")
            lines.add("if (end == done) continue;")
            if memory:
                lines.add(
                    f"kh::multiply(0, {sizes}, {left} + done * {row_stride}, {row_stride}, {k_stride}, {own},"
                )
                lines.add(f"             [=](int64_t, {_PIECE}")
            else:
                operands = f"kh::Operands{{{left} + done * {row_stride}, {right} + group * {step}}}"
                lines.add(f"kh::multiply_batched(1, {sizes}, [=](int64_t) {{ return {operands}; }},")
                lines.add(f"                     {row_stride}, {k_stride}, {', '.join(b_strides)},")
                lines.add(f"                     [=](int64_t, {_PIECE}")
            epilogue()
            lines.add("done = end;")
        lines.add(f"kh::give_zeros({count} - done, {index(columns.extent)}, [=](int64_t, {_PIECE}")
        epilogue()
    return parameters
