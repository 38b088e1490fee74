"""Products of rows in groups: one after the other on the runtime's microkernels, each shared by all threads."""

from __future__ import annotations

from kernels_hub.compiler.codegen.cpp_epilogue import print_epilogue
from kernels_hub.compiler.codegen.cpp_loops import is_empty
from kernels_hub.compiler.codegen.cpp_packed import PackedOperands
from kernels_hub.compiler.codegen.cpp_product import element_of, packed_weight
from kernels_hub.compiler.codegen.cpp_text import Lines, Names, Parameters, print_nothing
from kernels_hub.compiler.codegen.scalar import Cpp
from kernels_hub.compiler.schedule.index import Ranges
from kernels_hub.compiler.schedule.kernel import GroupedProduct, Nest, View

_PIECE = "int64_t row_of, int64_t j, int64_t count, const float* acc) {"


def print_grouped(
    name: str, nest: Nest, lines: Lines, names: Names, packed: PackedOperands, *, round_ops: bool
) -> Parameters:
    """Write the function of a nest whose root is a product in groups."""
    root = nest.root
    assert isinstance(root, GroupedProduct)
    parameters = Parameters.of(nest)
    rows, columns = nest.outer
    groups, k, n = root.b.shape
    index = Cpp(Ranges(nest.outer)).index

    def at(view: View) -> str:
        return names.buffers[view.buffer] + ("" if view.offset == 0 else f" + {index(view.offset)}")

    left, right = at(root.a), at(root.b)
    a_strides, (step, *b_strides) = map(index, root.a.strides), map(index, root.b.strides)
    row_stride, k_stride = a_strides
    sizes = f"end - done, {index(columns.extent)}, {index(k)}"
    memory = packed_weight(nest, root, parameters, packed, names)
    own = f"{memory} + group * kh::right_size<{element_of(root.b)}>({k}, {n})"
    if groups == 1 or root.b.strides[0] == 0:  # there is one packed matrix
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
            stride = index(root.ends.strides[0])
            lines.add(
                f"const int64_t end = std::clamp<int64_t>(*({at(root.ends)} + group * {stride}), done, {count});"
            )
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
