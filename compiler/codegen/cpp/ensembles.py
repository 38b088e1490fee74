"""Tree ensembles and pairwise coupling: calls of the runtime, which hands out the results row by row."""

from __future__ import annotations

from collections.abc import Callable

from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.cpp.epilogue import print_epilogue
from kernels_hub.compiler.codegen.cpp.packed import PackedOperands
from kernels_hub.compiler.codegen.cpp.scalar import Cpp
from kernels_hub.compiler.codegen.cpp.text import Parameters, pointer, print_nothing
from kernels_hub.compiler.codegen.loops import is_empty
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.schedule.index import Ranges
from kernels_hub.compiler.schedule.kernel import Coupling, Nest, Trees, View

_AGGREGATES = {"sum": "kSum", "min": "kMin", "max": "kMax"}
_TAIL = "[=](int64_t, int64_t row, int64_t j, int64_t count, const float* acc) {"


def print_trees(
    name: str, nest: Nest, lines: Lines, names: Names, packed: PackedOperands, *, round_ops: bool
) -> Parameters:
    """Write the function of a nest whose anchor is an ensemble of trees."""
    anchor = nest.anchor
    assert isinstance(anchor, Trees)
    parameters = Parameters.of(nest)
    if is_empty(nest.outer):
        print_nothing(name, parameters, lines, names)
        return parameters
    parameters.fails = True
    index = Cpp(Ranges(nest.outer)).index
    memory = _packed_nodes(nest, anchor, parameters, packed, names)
    with lines.block(f"static void {name}({', '.join(parameters.declared(names))})"):
        (rows, features), (trees,) = anchor.x.shape, anchor.roots.shape
        count, columns = anchor.weights.shape
        sizes = ", ".join(map(index, (rows, features, trees, count, columns)))
        lines.add(f"const kh::Trees shape{{{sizes}, kh::Aggregate::{_AGGREGATES[anchor.aggregate]},")
        lines.add(f"                      {_strided(anchor.x, names, index)},")
        lines.add(f"                      {_strided(anchor.roots, names, index)},")
        lines.add(f"                      {_strided(anchor.weights, names, index)}}};")
        if memory is None:
            lines.add(f"const int64_t strides[2] = {{{', '.join(map(index, anchor.nodes.strides))}}};")
            lines.add(
                f"const bool ended = kh::climb_unpacked(shape, {pointer(anchor.nodes, names, index)}, strides,"
            )
        else:
            lines.add(f"const bool ended = kh::climb(shape, {memory},")
        lines.add(f"          {_TAIL}")
        print_epilogue(lines, names, nest, [("row", 1)], round_ops=round_ops, tail="});")
        message = f"{anchor.origin or 'tree_ensemble'}: its nodes are no trees, or look at more features than there are"
        lines.add(f"if (!ended) failure = {names.code(message)};")
    return parameters


def print_coupling(name: str, nest: Nest, lines: Lines, names: Names, *, round_ops: bool) -> Parameters:
    """Write the function of a nest whose anchor is a pairwise coupling."""
    anchor = nest.anchor
    assert isinstance(anchor, Coupling)
    parameters = Parameters.of(nest)
    if is_empty(nest.outer):
        print_nothing(name, parameters, lines, names)
        return parameters
    index = Cpp(Ranges(nest.outer)).index
    rows, classes = (loop.extent for loop in nest.outer)
    with lines.block(f"static void {name}({', '.join(parameters.declared(names))})"):
        lines.add(f"const int64_t strides[2] = {{{', '.join(map(index, anchor.sure.strides))}}};")
        lines.add(
            f"kh::couple({index(rows)}, {index(classes)}, {pointer(anchor.sure, names, index)}, strides,"
        )
        lines.add(f"           {_TAIL}")
        print_epilogue(lines, names, nest, [("row", 1)], round_ops=round_ops, tail="});")
    return parameters


def _strided(view: View, names: Names, index: Callable[[Dim], str]) -> str:
    """A pointer and the strides of a view."""
    return f"{pointer(view, names, index)}, {{{', '.join(map(index, view.strides))}}}"


def _packed_nodes(
    nest: Nest, anchor: Trees, parameters: Parameters, packed: PackedOperands, names: Names
) -> str | None:
    """The memory of nodes that are packed once, which the function is given instead of them; None of others."""
    view = anchor.nodes
    if not packed.takes(view) or not all(isinstance(dim, int) for dim in view.shape):
        return None
    count = view.shape[0]
    source = pointer(view, names)
    strides = ", ".join(map(str, view.strides))
    name = packed.add(
        view,
        f"kh::trees_size({count})",
        f"const int64_t strides[2] = {{{strides}}}; kh::pack_trees({count}, {source}, strides, $to);",
    )
    parameters.take_packed(nest, view, name)
    return name
