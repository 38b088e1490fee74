# ruff: noqa: D103
"""Backward ops of ATen, which graphs of training have: of pooling and attention.

Where nothing else is said, a gradient is the derivative of what the forward op is imported as. None of convolutions is
here: the gradient of a weight would be a convolution with a kernel as large as the image, and a step of a ResNet took
1.2 times as long as with PyTorch's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernels_hub.compiler.autodiff.reverse import Reverse, varying_from
from kernels_hub.compiler.autodiff.rule import NotDifferentiable, zeros
from kernels_hub.compiler.importers.aten_ops.call import AtenCall, Handler, aten
from kernels_hub.compiler.importers.aten_ops.linear import every_head, scores
from kernels_hub.compiler.importers.aten_ops.pool import adaptive_avg_pool, average_pool, max_pool
from kernels_hub.compiler.ir.graph import Node, Value

_MOST_SCORES = 1 << 24
"""Scores of attention that a backward holds at once: 64 MiB in float32. PyTorch's own holds a block of them."""


def _gradient_of(x: Value, result: Value, gradient: Value) -> Value:
    """The gradient of x, where a result that was made of it has this one.

    Raises NotDifferentiable with the reason of a rule.
    """
    nodes = _between(x, result)
    reverse = Reverse(result.graph, varying_from(nodes, [x]), {})
    reverse.add(result, gradient)
    reverse.run(nodes)
    if reverse.refused:
        raise NotDifferentiable("; ".join(reverse.refused.values()))
    found = reverse.of(x)
    return zeros(result.graph, x) if found is None else found


def _between(x: Value, result: Value) -> list[Node]:
    """The nodes that make a result of x, operands before users."""
    found: dict[Node, None] = {}
    known = {x.node}

    def visit(node: Node) -> None:
        if node in known:
            return
        known.add(node)
        for operand in node.operands:
            visit(operand.node)
        found[node] = None

    visit(result.node)
    return list(found)


def _max_pool(count: int) -> Handler:
    forward = max_pool(count, places=False)

    def handler(
        call: AtenCall, gradient: Value, x: Value, kernel: Sequence[int], stride: Sequence[int],
        padding: Sequence[int], dilation: Sequence[int], ceil: bool, _: Value,
    ) -> Value:  # fmt: skip
        return _gradient_of(x, forward(call, x, kernel, stride, padding, dilation, ceil), gradient)

    return handler


def _avg_pool(count: int) -> Handler:
    forward = average_pool(count)

    def handler(call: AtenCall, gradient: Value, x: Value, *how: object) -> Value:
        return _gradient_of(x, forward(call, x, *how), gradient)

    return handler


for _count in (2, 3):
    aten(f"max_pool{_count}d_with_indices_backward.default")(_max_pool(_count))
    aten(f"avg_pool{_count}d_backward.default")(_avg_pool(_count))


@aten("_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool_backward(call: AtenCall, gradient: Value, x: Value) -> Value:
    count = 3 if "3d" in call.name else 2
    return _gradient_of(x, adaptive_avg_pool(call, x, gradient.shape[-count:]), gradient)


@aten("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def flash_attention_backward(
    call: AtenCall, gradient: Value, query: Value, key: Value, value: Value, result: Value, sums: Value,
    dropout: float, causal: bool, *, attn_mask: Value | None, scale: float | None,
) -> tuple[Value, Value, Value]:  # fmt: skip
    """Of query, key and value; weights are computed again of the scores and log(sum(exp(scores))) of each row.

    P = exp(S - sums)    dV = P^T @ g    dS = scale * P * (g @ V^T - sum(g * result))    dQ = dS @ K    dK = dS^T @ Q
    Source: arXiv 2205.14135, algorithm 4.
    """
    call.refuse_unless(dropout == 0, "the gradient of attention with dropout")
    sizes = (*query.shape[:-1], key.shape[-2])
    call.refuse_unless(
        all(isinstance(size, int) for size in sizes) and math.prod(sizes) <= _MOST_SCORES,
        f"the gradient of attention with more than {_MOST_SCORES} scores, or with sizes that may change",
    )
    wide = query.dtype.compute
    keys, values = every_head(key, query), every_head(value, query)
    all_scores, _ = scores(call, query, keys, attn_mask, scale, causal=causal)
    row = sums.cast(wide).unsqueeze(-1)
    weights = row.binary("eq", -math.inf).select(0.0, (all_scores - row).unary("exp"))
    along = (gradient.cast(wide) * result.cast(wide)).sum(-1, keepdims=True)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    of_scores = (weights * (gradient.matmul(values.transpose(), to=wide) - along) * factor).cast(query.dtype)
    of_keys = of_scores.transpose() @ query
    of_values = weights.cast(gradient.dtype).transpose() @ gradient
    return of_scores @ keys, _of_each_head(of_keys, key), _of_each_head(of_values, value)


def _of_each_head(gradient: Value, of: Value) -> Value:
    """The sum over the group of queries that shares a head."""
    if gradient.shape[-3] == of.shape[-3]:
        return gradient
    first = gradient.rank - 3
    heads = of.shape[-3]
    shape = (*gradient.shape[:first], heads, gradient.shape[-3] // heads, *gradient.shape[-2:])
    return gradient.reshape(shape).sum(first + 1)
