"""Brings the views among results (`torch_aliases`) into the graph: values in the place of ops, dims of sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kernels_hub.compiler.importers.aten_ops import UnsupportedArgumentsError
from kernels_hub.compiler.importers.torch_aliases import Shared, View
from kernels_hub.compiler.importers.torch_direct import is_size
from kernels_hub.compiler.importers.torch_sizes import Sizes
from kernels_hub.compiler.ir.graph import Graph, Value


def in_graph(
    shared: Shared,
    outputs: Sequence[tuple[str, object]],
    graph: Graph,
    of_node: Callable[[object], Value | None],
    sizes: Sizes,
) -> Shared:
    """What results share, of the graph. outputs: leaves of the result, as `TorchProgram` has them.

    of_node: the value of an op of the traced program; None of one that a decomposed program has no more: what is a
    view of it is refused where no result is all of that memory.
    """
    views: dict[int, View] = {}
    refused = [*shared.refused]
    memory: dict[object, Value | None] = {}
    for place, view in shared.views.items():
        name = str(outputs[place][1])
        try:
            steps = tuple(
                (op, tuple(_sized(one, sizes) for one in arguments)) for op, arguments in view.steps
            )
        except UnsupportedArgumentsError as error:
            refused.append(f"{name} is a view of another tensor, and {error}")
            continue
        root = view.root
        if view.kind == "result":
            if root not in memory:
                memory[root] = _memory(view, outputs, graph, of_node)
            if memory[root] is None:
                refused.append(f"{name} shares memory with another result, and none is all of it")
                continue
            root = memory[root]
        views[place] = replace(view, root=root, steps=steps)
    return replace(shared, views=views, refused=tuple(refused))


def _memory(
    view: View,
    outputs: Sequence[tuple[str, object]],
    graph: Graph,
    of_node: Callable[[object], Value | None],
) -> Value | None:
    """The memory that results are views of, its axes in the order of eager; None where it is not known."""
    value = of_node(view.root) if view.at is None else graph.outputs.get(str(outputs[view.at][1]))
    if value is None or view.order is None or view.order == tuple(range(len(view.order))):
        return value
    return value.permute(*view.order)


def _sized(value: object, sizes: Sizes) -> object:
    if isinstance(value, tuple):
        return tuple(_sized(one, sizes) for one in value)
    return sizes.dim(value) if is_size(value) else value
