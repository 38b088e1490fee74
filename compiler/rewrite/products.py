"""Products whose result is exchanged: the operands are instead, which a product reads in any order."""

from __future__ import annotations

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.rewrite.heads import is_weight
from kernels_hub.compiler.rewrite.pattern import Any, Bind, Op
from kernels_hub.compiler.rewrite.rule import Match, Rule


def _exchanged(match: Match) -> str | None:
    order = tuple(match.fact("order"))
    rank = len(order)
    if order != (*range(rank - 2), rank - 1, rank - 2):
        return f"the order {order} does not only exchange rows and columns"
    if is_weight(match["b"]):
        return f"{match['b']} is a weight, which is packed once as the right operand"
    return None


def _exchange(match: Match) -> Value:
    product = match["product"]
    return match.graph.apply("matmul", match["b"].transpose(), match["a"].transpose(), **product.attrs)


PRODUCTS = (
    Rule("transposed_product",
         Op("permute", Op("matmul", Any("a"), Any("b"), name="product").once(), order=Bind("order")),
         _exchange, _exchanged, exact=False, doc="(a @ b)^T -> b^T @ a^T"),
)  # fmt: skip
