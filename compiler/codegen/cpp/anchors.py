"""Nests with an anchor as C++: the runtime's kernel for it if there is one, else its loops."""

from __future__ import annotations

from kernels_hub.compiler.codegen.anchor_loops import as_loops
from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.cpp.attention import print_attention
from kernels_hub.compiler.codegen.cpp.conv import print_convolution
from kernels_hub.compiler.codegen.cpp.ensembles import print_coupling, print_trees
from kernels_hub.compiler.codegen.cpp.few_bits import print_few_bits
from kernels_hub.compiler.codegen.cpp.fourier import print_transform
from kernels_hub.compiler.codegen.cpp.grouped import print_grouped
from kernels_hub.compiler.codegen.cpp.nest import print_nest
from kernels_hub.compiler.codegen.cpp.order import print_order
from kernels_hub.compiler.codegen.cpp.packed import PackedOperands
from kernels_hub.compiler.codegen.cpp.planned import HEADER as PLANNED_HEADER
from kernels_hub.compiler.codegen.cpp.product import print_product
from kernels_hub.compiler.codegen.cpp.recurrent import print_recurrent
from kernels_hub.compiler.codegen.cpp.text import Parameters
from kernels_hub.compiler.codegen.loops import is_empty
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.ir.types import FLOAT32
from kernels_hub.compiler.schedule.kernel import (
    Anchor,
    Attention,
    Convolution,
    Coupling,
    FewBitsProduct,
    FourierTransform,
    GroupedProduct,
    Nest,
    Order,
    Product,
    Recurrence,
    Trees,
)
from kernels_hub.compiler.schedule.scores import ANCHOR_DTYPES


def print_anchor(
    name: str, nest: Nest, lines: Lines, names: Names, packed: PackedOperands, *, round_ops: bool = False
) -> Parameters:
    """Write the function of a nest with an anchor; returns what it is given."""
    start = len(lines.lines)
    parameters = _print(name, nest, lines, names, packed, round_ops=round_ops)
    if parameters.fails:  # what reads by index in an epilogue reports there
        lines.lines[start:] = [line.replace("[=](", "[=, &failure](") for line in lines.lines[start:]]
    return parameters


def _print(
    name: str, nest: Nest, lines: Lines, names: Names, packed: PackedOperands, *, round_ops: bool
) -> Parameters:
    anchor = nest.anchor
    assert anchor is not None
    if isinstance(anchor, Attention):
        return print_attention(name, nest, lines, names, round_ops=round_ops)
    if isinstance(anchor, Order):
        return print_order(name, nest, lines, names, round_ops=round_ops)
    if isinstance(anchor, GroupedProduct):
        return print_grouped(name, nest, lines, names, packed, round_ops=round_ops)
    if isinstance(anchor, FewBitsProduct):
        return print_few_bits(name, nest, lines, names, packed, round_ops=round_ops)
    if isinstance(anchor, Recurrence):
        return print_recurrent(name, nest, lines, names, packed, round_ops=round_ops)
    if isinstance(anchor, Trees):
        return print_trees(name, nest, lines, names, packed, round_ops=round_ops)
    if isinstance(anchor, Coupling):
        return print_coupling(name, nest, lines, names, round_ops=round_ops)
    if isinstance(anchor, FourierTransform):
        return print_transform(name, nest, lines, names, round_ops=round_ops)
    if not is_known(anchor, round_ops=round_ops) or nest.inner or is_empty(nest.outer):
        return print_nest(name, as_loops(nest), lines, names, round_ops=round_ops)
    if isinstance(anchor, Product):
        return print_product(name, nest, lines, names, packed, round_ops=round_ops)
    return print_convolution(name, nest, lines, names, packed, round_ops=round_ops)


def is_known(anchor: Product | Convolution, *, round_ops: bool) -> bool:
    """Whether the runtime has a kernel: it takes narrow floats, and sums in float32 what is rounded at the end."""
    first = anchor.views[0].buffer.dtype
    if first not in ANCHOR_DTYPES or any(view.buffer.dtype is not first for view in anchor.views):
        return False
    return anchor.dtype is FLOAT32 or (anchor.dtype is first and not round_ops)


def runtime_of(nest: Nest) -> tuple[str, ...]:
    """The source files of the runtime that the text of a nest needs."""
    anchor = nest.anchor
    if anchor is None:
        return ()
    files = FILES[type(anchor)]
    if files and files[0] in _NARROW and anchor.views[0].buffer.dtype in ANCHOR_DTYPES - {FLOAT32}:
        return (_NARROW[files[0]], *files[1:])
    return files


def header_of(nest: Nest) -> str | None:
    """The header of the runtime that the text of a nest needs."""
    if nest.anchor is None:
        return None if nest.plan is None else PLANNED_HEADER
    return _HEADERS.get(type(nest.anchor), "linked.h")


_HEADERS: dict[type[Anchor], str] = {
    FewBitsProduct: "linked_few_bits.h", Order: "order.h", Recurrence: "linked_recurrent.h",
    Trees: "linked_ensembles.h", Coupling: "linked_ensembles.h", FourierTransform: "linked_fourier.h",
}  # fmt: skip

FILES: dict[type[Anchor], tuple[str, ...]] = {
    Product: ("linked_product.cpp",),
    GroupedProduct: ("linked_product.cpp",),
    FewBitsProduct: ("linked_few_bits.cpp",),
    Order: (),
    Convolution: ("linked_convolution.cpp", "linked_grouped.cpp"),
    Attention: ("linked_attention.cpp",),
    Recurrence: ("linked_recurrent.cpp",),
    Trees: ("linked_ensembles.cpp",),
    Coupling: ("linked_ensembles.cpp",),
    FourierTransform: ("linked_fourier.cpp",),
}
"""What the runtime computes -> its source files for that, of float32."""
_NARROW = {
    "linked_product.cpp": "linked_product_narrow.cpp",
    "linked_convolution.cpp": "linked_convolution_narrow.cpp",
    "linked_attention.cpp": "linked_attention_narrow.cpp",
}
"""Source file for float32 -> for narrow floats: each takes seconds to compile."""
