"""Derivative of attention: scores and weights are recomputed, so that nothing of their size is stored.

    P = softmax(q @ k^T * scale + mask)    dv = P^T @ g    dP = g @ v^T    dS = P * (dP - sum(P * dP))
    dq = scale * dS @ k    dk = scale * dS^T @ q
    Source: arXiv 1706.03762; of computing scores again: arXiv 2205.14135

The forward stays one fused kernel; what is kept is q, k and v (and its result where something else needs that).
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.autodiff.reverse import Reverse, varying_from
from kernels_hub.compiler.autodiff.rule import NotDifferentiable, Site
from kernels_hub.compiler.ir.graph import Graph, Node, Value


def attention(site: Site) -> Sequence[Value | None]:
    """The gradients of a call's operands, by the rules of the ops that it consists of."""
    graph, callee = site.graph, site.attrs["callee"]
    nodes, mapped = _written_out(graph, callee, site.operands)
    asked = [value for value, wanted in zip(site.operands, site.wanted, strict=True) if wanted]
    reverse = Reverse(graph, varying_from(nodes, asked), {})
    (result,) = (mapped[value] for value in callee.outputs.values())
    reverse.add(result, site.gradient)
    reverse.run(nodes, _without_blanks(nodes) if "blank" in callee.inputs else None)
    if reverse.refused:
        raise NotDifferentiable("; ".join(reverse.refused.values()))
    return [
        reverse.of(operand) if wanted else None
        for operand, wanted in zip(site.operands, site.wanted, strict=True)
    ]


def _written_out(
    graph: Graph, callee: Graph, operands: Sequence[Value]
) -> tuple[list[Node], dict[Value, Value]]:
    mapped = dict(zip(callee.inputs.values(), operands, strict=True))
    nodes = []
    for node in callee.live():
        if node.op.name != "input":
            copied = graph.copy(node, tuple(mapped[operand] for operand in node.operands))
            mapped.update(zip(node.results, copied.results, strict=True))
            nodes.append(copied)
    return nodes, mapped


def _without_blanks(nodes: Sequence[Node]) -> dict[Value, Value]:
    """Weights with 0 in rows that are masked whole, which are NaN before they are made blank."""
    without_blanks = {}
    for node in nodes:
        if node.op.name == "softmax":
            (soft,) = node.results
            without_blanks[soft] = soft.unary("isnan").select(0.0, soft)
    return without_blanks
