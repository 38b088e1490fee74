# ruff: noqa: D103
"""Matrix products, convolutions and attention."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

from kernels_hub.compiler.importers.aten_ops.activation import gelu
from kernels_hub.compiler.importers.aten_ops.call import (
    AtenCall,
    Scalar,
    UnsupportedArgumentsError,
    aten,
    spread,
)
from kernels_hub.compiler.importers.einsum import einsum
from kernels_hub.compiler.ir.dims import Expr
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.ir.types import DType


@aten("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default")
def matmul(_: AtenCall, a: Value, b: Value) -> Value:
    return a @ b


@aten("transformers.grouped_mm_fallback.default")
def grouped_matmul(_: AtenCall, x: Value, weight: Value, ends: Value) -> Value:
    return x.graph.apply("grouped_matmul", x, weight, ends)


@aten("_grouped_mm.default")
def grouped_mm(
    call: AtenCall, x: Value, weight: Value, ends: Value | None, bias: Value | None, dtype: DType | None
) -> Value:
    if ends is None or x.rank != 2 or weight.rank != 3 or bias is not None:
        raise UnsupportedArgumentsError(
            "takes rows (S, K) and a matrix (G, K, N) for each group, with their ends, and no bias"
        )
    del dtype  # that of the result
    return x.graph.apply("grouped_matmul", x, weight, ends, dtype=call.dtype)


@aten("einsum.default")
def einsum_of_tensors(call: AtenCall, equation: str, values: Sequence[Value], **_: object) -> Value:
    return einsum(equation, [call.tensor(value) for value in values])


@aten("linear.default")
def linear(_: AtenCall, x: Value, weight: Value, bias: Value | None) -> Value:
    product = x @ (weight.transpose() if weight.rank > 1 else weight)
    return product if bias is None else product + bias


@aten("addmm.default", "baddbmm.default", "addmv.default")
def addmm(call: AtenCall, x: Value, a: Value, b: Value, *, beta: Scalar, alpha: Scalar) -> Value:
    product = a @ b
    if alpha != 1:
        product = call.rounded_once(operator.mul, product, alpha)
    if beta == 0:
        return product
    return product + (x if beta == 1 else call.rounded_once(operator.mul, x, beta))


@aten("addbmm.default")
def addbmm(call: AtenCall, x: Value, a: Value, b: Value, *, beta: Scalar, alpha: Scalar) -> Value:
    """Products of a batch, added up: one product of all."""
    count, rows, depth = a.shape
    wide, long = a.permute(1, 0, 2).reshape((rows, count * depth)), b.reshape((count * depth, b.shape[2]))
    return addmm(call, x, wide, long, beta=beta, alpha=alpha)


@aten("_addmm_activation.default")
def addmm_activation(
    call: AtenCall, x: Value, a: Value, b: Value, *, beta: Scalar, alpha: Scalar, use_gelu: bool
) -> Value:
    total = addmm(call, x, a, b, beta=beta, alpha=alpha)
    return gelu(call, total, approximate="none") if use_gelu else total.relu()


@aten("_int_mm.default")
def int_mm(_: AtenCall, a: Value, b: Value) -> Value:
    return a.apply("int_mm", a, b)


@aten("_trilinear.default")
def trilinear(
    call: AtenCall, a: Value, weight: Value, b: Value, expand_a: Sequence[int], expand: Sequence[int],
    expand_b: Sequence[int], summed: Sequence[int], _: int,
) -> Value:  # fmt: skip
    """What nn.Bilinear calls: a (rows, m), weight (n, m, k), b (rows, k); two products."""
    axes = [*map(list, (expand_a, expand, expand_b, summed))]
    call.refuse_unless(axes == [[1, 3], [0], [1, 2], [2, 3]], "other sums than those of F.bilinear")
    n, m, k = weight.shape
    with_a = (a @ weight.permute(1, 0, 2).reshape((m, n * k))).reshape((a.shape[0], n, k))
    return (with_a @ b.unsqueeze(2)).squeeze(2)


@aten("convolution.default")
def convolution(
    _: AtenCall, x: Value, weight: Value, bias: Value | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    count = weight.rank - 2
    more = {"output_padding": spread(output_padding, count)} if transposed else {}
    pairs = [(one, one) for one in spread(padding, count)]
    return _conv(x, weight, bias, spread(stride, count), pairs, spread(dilation, count), groups, **more)


def _conv(
    x: Value, weight: Value, bias: Value | None, strides: Sequence[int], padding: Sequence[tuple[int, int]],
    dilations: Sequence[int], groups: int, **of_transposed: object,
) -> Value:  # fmt: skip
    """padding: (before, after) of every dim. of_transposed: what a transposed convolution has besides."""
    count = weight.rank - 2
    batched = x if x.rank == weight.rank else x.unsqueeze(0)
    attrs = {
        "strides": strides,
        "dilations": dilations,
        "padding": padding,
        "groups": groups,
        **of_transposed,
    }
    result = batched.apply("conv_transpose" if of_transposed else "conv", batched, weight, **attrs)
    if bias is not None:
        result = result + bias.reshape((bias.shape[0], *[1] * count))
    return result if batched is x else result.squeeze(0)


@aten("conv1d.default", "conv2d.default", "conv3d.default")
def conv(
    call: AtenCall, x: Value, weight: Value, bias: Value | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    return convolution(call, x, weight, bias, stride, padding, dilation, False, [0], groups)


@aten("conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv_named(
    _: AtenCall, x: Value, weight: Value, bias: Value | None, stride: Sequence[int], padding: str,
    dilation: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    """padding: "valid", none; or "same", as many outputs as inputs, an odd one behind."""
    count = weight.rank - 2
    steps = spread(dilation, count)
    totals = [
        (size - 1) * step if padding == "same" else 0
        for size, step in zip(weight.shape[2:], steps, strict=True)
    ]
    return _conv(
        x,
        weight,
        bias,
        spread(stride, count),
        [(total // 2, total - total // 2) for total in totals],
        steps,
        groups,
    )


@aten("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    call: AtenCall, x: Value, weight: Value, bias: Value | None, stride: Sequence[int], padding: Sequence[int],
    output_padding: Sequence[int], groups: int, dilation: Sequence[int],
) -> Value:  # fmt: skip
    return convolution(call, x, weight, bias, stride, padding, dilation, True, output_padding, groups)


@aten("scaled_dot_product_attention.default")
def attention(
    call: AtenCall, query: Value, key: Value, value: Value, mask: Value | None, dropout: float, causal: bool,
    *, scale: float | None, enable_gqa: bool,
) -> Value:  # fmt: skip
    """softmax(q @ k^T * scale + mask) @ v; scores in float32 at least, a row that is masked whole gives 0.

    Source: torch.nn.functional.scaled_dot_product_attention.
    """
    call.refuse_unless(dropout == 0, "attention with dropout: call module.eval() first")
    if enable_gqa:
        key, value = every_head(key, query), every_head(value, query)
    weights, mask = scores(call, query, key, mask, scale, causal=causal)
    soft = weights.softmax(-1)
    if mask is not None and not causal:
        hidden = (
            mask.reduce("any", -1, keepdims=True).unary("bitnot")
            if mask.dtype.kind == "bool"
            else weights.max(-1, keepdims=True).binary("eq", -math.inf)
        )
        soft = hidden.select(0.0, soft)
    return soft.cast(query.dtype) @ value


@aten("_scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention_for_cpu(
    call: AtenCall, query: Value, key: Value, value: Value, dropout: float, causal: bool,
    *, attn_mask: Value | None, scale: float | None,
) -> tuple[Value, Value]:  # fmt: skip
    """Attention, and log(sum(exp(scores))) of each row, for a backward; -inf where a row is masked whole."""
    result = attention(
        call, query, key, value, attn_mask, dropout, causal, scale=scale, enable_gqa=True
    )  # fmt: skip
    sums = call.results[1]
    assert sums is not None
    weights, _ = scores(call, query, every_head(key, query), attn_mask, scale, causal=causal)
    greatest = weights.max(-1, keepdims=True)
    greatest = greatest.binary("eq", -math.inf).select(0.0, greatest)
    logarithm = (weights - greatest).unary("exp").reduce("sum", -1, keepdims=True).unary("log") + greatest
    return result, logarithm.squeeze(-1).cast(sums.dtype)


def scores(
    call: AtenCall, query: Value, key: Value, mask: Value | None, scale: float | None, *, causal: bool
) -> tuple[Value, Value | None]:
    """q @ k^T * scale + mask, in float32 at least, and the mask, which may be the causal one."""
    if scale is None:
        call.refuse_unless(not isinstance(query.shape[-1], Expr), "attention heads of a symbolic size")
        scale = 1 / math.sqrt(query.shape[-1])
    wide = query.dtype.compute
    scores = query.matmul(key.transpose(), to=wide) * float(scale)
    if causal:
        rows, columns = call.graph.iota(scores.shape[-2]), call.graph.iota(scores.shape[-1])
        mask = columns.binary("le", rows.unsqueeze(1))
    if mask is None:
        return scores, None
    if mask.dtype.kind == "bool":
        return mask.select(scores, -math.inf), mask
    return scores + mask.cast(wide), mask


def every_head(x: Value, query: Value) -> Value:
    """Heads of keys or values repeated for the group of queries that shares each."""
    heads, wanted = x.shape[-3], query.shape[-3]
    if proves_equal(heads, wanted):
        return x
    grouped = x.unsqueeze(x.rank - 2)
    shape = list(grouped.shape)
    shape[-3] = wanted // heads
    return grouped.broadcast_to(shape).reshape((*x.shape[:-3], wanted, *x.shape[-2:]))
