"""Matrix products on the runtime's microkernels, the rest of the nest as their epilogue.

1. The second operand is the same for all the batch, and the rows of the first run on through it (a linear layer of any
   rank): one product of batch * m rows.
2. The second operand is a weight (packed once): a product for each of the batch. Where it is the same for all of a
   batch of one dim, that and the rows may change places: the longer one counts the rows (of sequences that lie batch
   first, and are computed time first).
3. It is no weight: products whose second operands are packed when their turn comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.cpp.epilogue import print_epilogue
from kernels_hub.compiler.codegen.cpp.packed import PackedOperands
from kernels_hub.compiler.codegen.cpp.scalar import Cpp, storage_type
from kernels_hub.compiler.codegen.cpp.text import Parameters, pointer
from kernels_hub.compiler.codegen.loops import turns
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.schedule.index import Loop, Ranges
from kernels_hub.compiler.schedule.kernel import GroupedProduct, Nest, Product, View

_PIECE = "int64_t j, int64_t count, const float* acc) {"


def print_product(
    name: str, nest: Nest, lines: Lines, names: Names, packed: PackedOperands, *, round_ops: bool
) -> Parameters:
    """Write the function of a nest whose anchor is a product of floats."""
    anchor = nest.anchor
    assert isinstance(anchor, Product)
    *batch, m, n = nest.outer
    scalars = Cpp(Ranges(nest.outer))
    index = scalars.index
    parameters = Parameters.of(nest)
    right = packed_weight(nest, anchor, parameters, packed, names)
    flat = is_flat(anchor, batch)
    k = index(anchor.a.shape[-1])
    strides = f"{index(anchor.a.strides[-2])}, {index(anchor.a.strides[-1])}"
    left = _at(names.buffers[anchor.a.buffer], scalars, anchor.a.offset)

    with lines.block(f"static void {name}({', '.join(parameters.declared(names))})"):
        if flat and right:
            rows = turns((*batch, m))
            stride = _row_stride(anchor, batch, scalars)
            lines.add(f"kh::multiply(0, {index(rows)}, {index(n.extent)}, {k}, {left}, {stride}, {right},")
            lines.add(f"             [=](int64_t, int64_t row, {_PIECE}")
            print_epilogue(lines, names, nest, [("row", len(batch) + 1)], round_ops=round_ops, tail="});")
        elif right and (place := shared_by(anchor, batch)) is not None:
            lines.add(f"const auto rest = [=](int64_t batch, int64_t row, {_PIECE}")
            counted = [("batch", len(batch)), ("row", 1)]
            print_epilogue(lines, names, nest, counted, round_ops=round_ops, tail="};")
            count, high = index(batch[place].extent), index(m.extent)
            apart = index(anchor.a.strides[place])
            row_at, k_at = index(anchor.a.strides[-2]), index(anchor.a.strides[-1])
            of = f"{index(n.extent)}, {k}, {left}"
            lines.add(f"if ({count} > {high}) {{")
            lines.add(f"  for (int64_t row = 0; row < {high}; ++row)")
            lines.add(f"    kh::multiply(row, {count}, {of} + row * ({row_at}), {apart}, {k_at}, {right},")
            lines.add(f"                 [=](int64_t row, int64_t batch, {_PIECE}")
            lines.add("      rest(batch, row, j, count, acc);")
            lines.add("    });")
            lines.add("} else {")
            lines.add(f"  for (int64_t batch = 0; batch < {count}; ++batch)")
            lines.add(f"    kh::multiply(batch, {high}, {of} + batch * ({apart}), {strides}, {right}, rest);")
            lines.add("}")
        elif right:
            with lines.block(f"for (int64_t batch = 0; batch < {index(turns(batch))}; ++batch)"):
                a_at, b_at = _offsets(anchor, batch, scalars, packed=True)
                size = f"kh::right_size<{element_of(anchor.b)}>({k}, {index(n.extent)})"
                second = right if b_at == "0" else f"{right} + ({b_at}) * {size}"
                sizes = f"{index(m.extent)}, {index(n.extent)}, {k}"
                lines.add(f"kh::multiply(batch, {sizes}, {left}{_plus(a_at)}, {strides}, {second},")
                lines.add(f"             [=](int64_t batch, int64_t row, {_PIECE}")
                counted = [("batch", len(batch)), ("row", 1)]
                print_epilogue(lines, names, nest, counted, round_ops=round_ops, tail="});")
        else:
            _print_batched(nest, anchor, scalars, lines, names, flat=flat, round_ops=round_ops)
    return parameters


def _print_batched(
    nest: Nest, anchor: Product, scalars: Cpp, lines: Lines, names: Names, *, flat: bool, round_ops: bool
) -> None:
    *batch, m, n = nest.outer
    index = scalars.index
    k = index(anchor.a.shape[-1])
    left = _at(names.buffers[anchor.a.buffer], scalars, anchor.a.offset)
    right = _at(names.buffers[anchor.b.buffer], scalars, anchor.b.offset)
    b_strides = f"{index(anchor.b.strides[-2])}, {index(anchor.b.strides[-1])}"
    if flat:
        rows, count, strides = turns((*batch, m)), "1", _row_stride(anchor, batch, scalars)
        a_at = b_at = "0"
        counted = [("row", len(batch) + 1)]
    else:
        rows, count = m.extent, index(turns(batch))
        strides = f"{index(anchor.a.strides[-2])}, {index(anchor.a.strides[-1])}"
        a_at, b_at = _offsets(anchor, batch, scalars, packed=False)
        counted = [("batch", len(batch)), ("row", 1)]
    word = "int64_t" if a_at == b_at == "0" else "int64_t batch"
    operands = f"kh::Operands{{{left}{_plus(a_at)}, {right}{_plus(b_at)}}}"
    lines.add(f"kh::multiply_batched({count}, {index(rows)}, {index(n.extent)}, {k},")
    lines.add(f"                     [=]({word}) {{ return {operands}; }},")
    lines.add(f"                     {strides}, {b_strides},")
    lines.add(f"                     [=](int64_t{' batch' if not flat else ''}, int64_t row, {_PIECE}")
    print_epilogue(lines, names, nest, counted, round_ops=round_ops, tail="});")


def element_of(view: View) -> str:
    """The type of an operand's elements in memory."""
    return storage_type(view.buffer.dtype)


def packed_weight(
    nest: Nest, anchor: Product | GroupedProduct, parameters: Parameters, packed: PackedOperands, names: Names
) -> str | None:
    """The memory of a second operand that is packed, which the function is given instead of it; None of others."""
    if not packed.takes(anchor.b):
        return None
    name = _packed(anchor.b, packed, names)
    parameters.take_packed(nest, anchor.b, name)
    return name


def _packed(view: View, packed: PackedOperands, names: Names) -> str:
    """The memory of a weight, packed: one matrix for each step of its batch."""
    *batch, k, n = view.shape
    *strides, stride_k, stride_n = view.strides
    own = [
        (extent, stride) for extent, stride in zip(batch, strides, strict=True) if extent != 1 and stride != 0
    ]
    count = product(extent for extent, _ in own)
    size = f"kh::right_size<{element_of(view)}>({k}, {n})"
    source = pointer(view, names)
    if not own:
        return packed.add(view, size, f"kh::pack_right({source}, {k}, {n}, {stride_k}, {stride_n}, $to);")
    at = " + ".join(_digits("batch", [extent for extent, _ in own], [stride for _, stride in own]))
    fill = (
        f"for (int64_t batch = 0; batch < {count}; ++batch) "
        f"kh::pack_right({source} + {at}, {k}, {n}, {stride_k}, {stride_n}, $to + batch * {size});"
    )
    return packed.add(view, f"{count} * {size}", fill)


def _digits(name: str, extents: Sequence[Dim], weights: Sequence[Dim]) -> list[str]:
    """The digits of a row-major number, each times a weight."""
    digits = []
    for index, (extent, weight) in enumerate(zip(extents, weights, strict=True)):
        below = product(extents[index + 1 :])
        digit = name if isinstance(below, int) and below == 1 else f"{name} / {below}"
        digit = f"{digit} % {extent}" if index else digit
        digits.append(f"{digit} * {weight}")
    return digits


def is_flat(anchor: Product, batch: Sequence[Loop]) -> bool:
    """Case 1 of the module."""
    *b_batch, _, _ = anchor.b.strides
    many = [
        index for index, loop in enumerate(batch) if not (isinstance(loop.extent, int) and loop.extent == 1)
    ]
    if any(not (isinstance(b_batch[place], int) and b_batch[place] == 0) for place in many):
        return False
    # Through the row dim of a, innermost, each stride is that of the next one times its extent.
    rows = [*many, len(batch)]
    if isinstance(anchor.a.shape[-2], int) and anchor.a.shape[-2] == 1:
        rows = rows[:-1]
    return all(anchor.a.strides[x] == anchor.a.strides[y] * anchor.a.shape[y] for x, y in pairwise(rows))


def shared_by(anchor: Product, batch: Sequence[Loop]) -> int | None:
    """The one dim of the batch that is more than 1, where the second operand is the same for all of it."""
    many = [place for place, loop in enumerate(batch) if loop.extent != 1]
    if len(many) != 1 or anchor.a.shape[-2] == 1 or anchor.b.strides[many[0]] != 0:
        return None
    return many[0]


def _row_stride(anchor: Product, batch: Sequence[Loop], scalars: Cpp) -> str:
    """Strides of rows that run on through the batch, and of k."""
    return f"{scalars.index(row_stride(anchor, batch))}, {scalars.index(anchor.a.strides[-1])}"


def row_stride(anchor: Product, batch: Sequence[Loop]) -> Dim:
    """How far apart the rows of the first operand are that run on through the batch."""
    rows = [index for index in range(len(batch) + 1) if anchor.a.shape[index] != 1]
    return anchor.a.strides[rows[-1]] if rows else anchor.a.shape[-1]


def _offsets(anchor: Product, batch: Sequence[Loop], scalars: Cpp, *, packed: bool) -> tuple[str, str]:
    """Where the operands of `batch` lie, from those of the first; packed: matrices of the second as a number."""
    many = [index for index, loop in enumerate(batch) if loop.extent != 1]
    texts = []
    for side, view in enumerate((anchor.a, anchor.b)):
        parts = []
        for at, place in enumerate(many):
            stride = view.strides[place]
            if isinstance(stride, int) and stride == 0:
                continue
            below = turns([batch[one] for one in many[at + 1 :]])
            digit = "batch" if isinstance(below, int) and below == 1 else f"batch / {scalars.factor(below)}"
            if at:
                digit = f"{digit} % {scalars.factor(batch[place].extent)}"
            if side == 1 and packed:
                after = [one for one in many[at + 1 :] if anchor.b.strides[one] != 0]
                stride = turns([batch[one] for one in after])
            parts.append(f"{digit} * {scalars.factor(stride)}")
        texts.append(" + ".join(parts) or "0")
    return texts[0], texts[1]


def _at(pointer: str, scalars: Cpp, offset: Dim) -> str:
    return f"{pointer}{_plus(scalars.index(offset))}"


def _plus(offset: str) -> str:
    return "" if offset == "0" else f" + {offset}"
