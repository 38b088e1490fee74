"""Random numbers of an ATen graph: PyTorch draws them before each run, and the graph takes them as arguments.

By the operators of the graph and in their order, so that a seed gives what it gives without a compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch

from kernels_hub.compiler.importers.further_arguments import FurtherArgument
from kernels_hub.compiler.importers.torch_direct import name_of

if TYPE_CHECKING:
    from torch.fx import Graph, Node

_OF_A_SHAPE = frozenset(
    {
        *("rand_like", "randn_like", "randint_like", "uniform", "normal_functional", "exponential"),
        *("geometric", "log_normal", "cauchy", "random"),
    }
)
"""Operators that take a tensor for its shape, dtype and device alone."""


def draws(node: Node) -> bool:
    """Whether an operator draws numbers that depend on no values."""
    tags = getattr(node.target, "tags", ())
    if node.op != "call_function" or torch.Tag.nondeterministic_seeded not in tags:
        return False
    name = name_of(node.target)
    if name == "native_dropout.default":
        return node.args[2:] != (False,) and isinstance(node.args[1], (int, float))
    of_tensors = any(isinstance(one.meta.get("val"), torch.Tensor) for one in node.all_input_nodes)
    packet = name.partition(".")[0]
    return isinstance(node.meta.get("val"), torch.Tensor) and (
        not of_tensors or packet in _OF_A_SHAPE or name == "bernoulli.p"
    )


def take_out(graph: Graph) -> list[FurtherArgument]:
    """Put arguments in the place of the operators of a graph that draw numbers; returns their calls.

    The arguments stand behind all others, in the order of the operators, which are in the graph no longer. Of a
    dropout, the mask is drawn, and the product stays.
    """
    taken = []
    arguments = graph.find_nodes(op="placeholder")
    anchor = arguments[-1] if arguments else None
    for node in [node for node in graph.nodes if draws(node)]:
        dropout = name_of(node.target) == "native_dropout.default"
        first = next(iter(graph.nodes))
        with graph.inserting_before(first) if anchor is None else graph.inserting_after(anchor):
            anchor = graph.placeholder(f"drawn_{node.name}")
        if dropout:
            anchor.meta["val"] = node.meta["val"][1]
            taken.append(FurtherArgument(_mask, node.args[:2]))
            _multiply(graph, node, anchor)
        else:
            anchor.meta["val"] = node.meta["val"]
            taken.append(
                FurtherArgument(
                    cast("Callable[..., torch.Tensor]", node.target), node.args, dict(node.kwargs)
                )
            )
            node.replace_all_uses_with(anchor)
        graph.erase_node(node)
    return taken


def _multiply(graph: Graph, dropout: Node, mask: Node) -> None:
    """Put products in the place of a dropout: of what it drops of with its mask, and with 1 / (1 - p)."""
    source, share = dropout.args[0], dropout.args[1]
    assert isinstance(share, (int, float))
    kept = 1 - share
    with graph.inserting_before(dropout):
        product = graph.call_function(torch.ops.aten.mul.Tensor, (source, mask))
        scaled = graph.call_function(torch.ops.aten.mul.Tensor, (product, 1 / kept if kept else 0.0))
    for made in (product, scaled):
        made.meta = {**dropout.meta, "val": dropout.meta["val"][0]}
    for user in list(dropout.users):  # each takes one of its two results
        user.replace_all_uses_with(scaled if user.args[1] == 0 else mask)
        graph.erase_node(user)


def _mask(like: torch.Tensor, share: float) -> torch.Tensor:
    """What a dropout keeps, as aten.native_dropout draws it."""
    return torch.empty_like(like, dtype=torch.bool).bernoulli_(1 - share)
