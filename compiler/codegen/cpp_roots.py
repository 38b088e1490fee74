"""Nests with a root as C++: the runtime's kernel for it if there is one, else its loops."""

from __future__ import annotations

from kernels_hub.compiler.codegen.cpp_attention import print_attention
from kernels_hub.compiler.codegen.cpp_conv import print_convolution
from kernels_hub.compiler.codegen.cpp_grouped import print_grouped
from kernels_hub.compiler.codegen.cpp_loops import is_empty
from kernels_hub.compiler.codegen.cpp_nest import print_nest
from kernels_hub.compiler.codegen.cpp_order import print_order
from kernels_hub.compiler.codegen.cpp_packed import PackedOperands
from kernels_hub.compiler.codegen.cpp_product import print_product
from kernels_hub.compiler.codegen.cpp_root_loops import as_loops
from kernels_hub.compiler.codegen.cpp_text import Lines, Names, Parameters
from kernels_hub.compiler.ir.types import FLOAT32
from kernels_hub.compiler.schedule.kernel import (
    Attention,
    Convolution,
    GroupedProduct,
    Nest,
    Order,
    Product,
    Root,
)
from kernels_hub.compiler.schedule.scores import ROOT_DTYPES


def print_root(
    name: str, nest: Nest, lines: Lines, names: Names, packed: PackedOperands, *, round_ops: bool = False
) -> Parameters:
    """Write the function of a nest with a root; returns what it is given."""
    start = len(lines.lines)
    parameters = _print(name, nest, lines, names, packed, round_ops=round_ops)
    if parameters.fails:  # what reads by index in an epilogue reports there
        lines.lines[start:] = [one.replace("[=](", "[=, &failure](") for one in lines.lines[start:]]
    return parameters


def _print(
    name: str, nest: Nest, lines: Lines, names: Names, packed: PackedOperands, *, round_ops: bool
) -> Parameters:
    root = nest.root
    assert root is not None
    if isinstance(root, Attention):
        return print_attention(name, nest, lines, names, round_ops=round_ops)
    if isinstance(root, Order):
        return print_order(name, nest, lines, names, round_ops=round_ops)
    if isinstance(root, GroupedProduct):
        return print_grouped(name, nest, lines, names, packed, round_ops=round_ops)
    if not _is_known(root, round_ops=round_ops) or nest.inner or is_empty(nest.outer):
        return print_nest(name, as_loops(nest), lines, names, round_ops=round_ops)
    if isinstance(root, Product):
        return print_product(name, nest, lines, names, packed, round_ops=round_ops)
    return print_convolution(name, nest, lines, names, packed, round_ops=round_ops)


def _is_known(root: Product | Convolution, *, round_ops: bool) -> bool:
    """Whether the runtime has a kernel: it takes narrow floats, and sums in float32 what is rounded at the end."""
    first = root.views[0].buffer.dtype
    if first not in ROOT_DTYPES or any(view.buffer.dtype is not first for view in root.views):
        return False
    return root.dtype is FLOAT32 or (root.dtype is first and not round_ops)


def runtime_of(nest: Nest) -> tuple[str, ...]:
    """The source files of the runtime that the text of a nest needs."""
    root = nest.root
    if isinstance(root, (Product, GroupedProduct)) and root.a.buffer.dtype in ROOT_DTYPES - {FLOAT32}:
        return ("linked_product_narrow.cpp",)
    return () if root is None else FILES[type(root)]


def header_of(nest: Nest) -> str | None:
    """The header of the runtime that the text of a nest needs."""
    if nest.root is None:
        return None
    return "order.h" if isinstance(nest.root, Order) else "linked.h"


FILES: dict[type[Root], tuple[str, ...]] = {
    Product: ("linked_product.cpp",),
    GroupedProduct: ("linked_product.cpp",),
    Order: (),
    Convolution: ("linked_convolution.cpp", "linked_grouped.cpp"),
    Attention: ("linked_attention.cpp",),
}
"""What the runtime computes -> its source files for that, where products are of float32."""
