# ruff: noqa: D103
"""Backward ops of ATen, which graphs of training have: of convolutions, pooling and attention.

Where nothing else is said, a gradient is the derivative of what the forward op is imported as.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernels_hub.compiler.autodiff.reverse import Reverse, varying_from
from kernels_hub.compiler.autodiff.rule import NotDifferentiable, zeros
from kernels_hub.compiler.importers.aten_ops.call import AtenCall, Handler, aten
from kernels_hub.compiler.importers.aten_ops.linear import convolution, every_head, scores
from kernels_hub.compiler.importers.aten_ops.pool import adaptive_avg_pool, average_pool, max_pool
from kernels_hub.compiler.ir.graph import Node, Value


def _gradients(
    result: Value, gradient: Value, given: Sequence[Value], wanted: Sequence[bool] = (True,)
) -> list[Value | None]:
    """Of those of `given` that are wanted, where a result that was made of them has this gradient.

    Raises NotDifferentiable with the reason of a rule.
    """
    nodes = _between(given, result)
    asked = [value for value, is_wanted in zip(given, wanted, strict=True) if is_wanted]
    reverse = Reverse(result.graph, varying_from(nodes, asked), {})
    reverse.add(result, gradient)
    reverse.run(nodes)
    if reverse.refused:
        raise NotDifferentiable("; ".join(reverse.refused.values()))
    found: list[Value | None] = []
    for value, is_wanted in zip(given, wanted, strict=True):
        one = reverse.of(value) if is_wanted else None
        found.append(zeros(result.graph, value) if is_wanted and one is None else one)
    return found


def _between(given: Sequence[Value], result: Value) -> list[Node]:
    """The nodes that make a result of given values, operands before users."""
    found: dict[Node, None] = {}
    known = {value.node for value in given}

    def visit(node: Node) -> None:
        if node in known:
            return
        known.add(node)
        for operand in node.operands:
            visit(operand.node)
        found[node] = None

    visit(result.node)
    return list(found)


@aten("convolution_backward.default")
def convolution_backward(
    call: AtenCall, gradient: Value, x: Value, weight: Value, _: Sequence[int] | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
    wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    """Of the input, the weight and the bias; None where it is not wanted."""
    result = convolution(call, x, weight, None, stride, padding, dilation, transposed, output_padding, groups)
    found = _gradients(result, gradient, (x, weight), wanted[:2])
    axes = [axis for axis in range(gradient.rank) if axis != 1]
    return (*found, gradient.sum(axes) if wanted[2] else None)


def _max_pool(count: int) -> Handler:
    forward = max_pool(count, places=False)

    def handler(
        call: AtenCall, gradient: Value, x: Value, kernel: Sequence[int], stride: Sequence[int],
        padding: Sequence[int], dilation: Sequence[int], ceil: bool, _: Value,
    ) -> Value | None:  # fmt: skip
        result = forward(call, x, kernel, stride, padding, dilation, ceil)
        return _gradients(result, gradient, (x,))[0]

    return handler


def _avg_pool(count: int) -> Handler:
    forward = average_pool(count)

    def handler(call: AtenCall, gradient: Value, x: Value, *how: object) -> Value | None:
        return _gradients(forward(call, x, *how), gradient, (x,))[0]

    return handler


for _count in (2, 3):
    aten(f"max_pool{_count}d_with_indices_backward.default")(_max_pool(_count))
    aten(f"avg_pool{_count}d_backward.default")(_avg_pool(_count))


@aten("_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool_backward(call: AtenCall, gradient: Value, x: Value) -> Value | None:
    count = 3 if "3d" in call.name else 2
    return _gradients(adaptive_avg_pool(call, x, gradient.shape[-count:]), gradient, (x,))[0]


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
