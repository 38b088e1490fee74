"""Attention as a function."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

from . import operators, reference
from .blocks import needs_gradient
from .direct import is_transformed
from .form import Form


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    offset: int = 0,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """softmax(scale query key^T, masked) value, without the matrix of weights in memory.

    query: (B, H, Lq, D). key: (B, Hk, Lk, D), value: (B, Hk, Lk, Dv), where Hk divides H: heads H / Hk
        side by side share one of them. Any strides.
    mask: broadcasts to (B, H, Lq, Lk); bool, True where a query sees a key, or a float that is added.
    causal: query i sees keys 0 .. i + offset, of those that the mask shows it. With an offset of
        Lk - Lq the last query sees all keys, as in decoding.
    scale: 1 / sqrt(D) by default. softcap: c makes c tanh(score / c) of a scaled score, before masks.
    Returns (B, H, Lq, Dv) in query's dtype, lying in memory as (B, Lq, H, Dv). A query that sees no key
    gives 0. float32, bfloat16 and float16 run on the kernel and are computed in float32 (products of
    narrow types on a GPU take the types as they are); other dtypes, gradients of masks and of gradients
    run on PyTorch's operators. Under autocast the inputs are cast first.
    Raises ValueError for shapes and dtypes that do not fit together.
    Sources: arXiv 1706.03762; 1805.02867 and 2205.14135 (online softmax, FlashAttention).
    """
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if (problem := _problem(query, key, value, mask)) is not None:
        raise ValueError(f"attention: {problem}")
    form = Form(causal, offset, query.shape[-1] ** -0.5 if scale is None else scale, softcap or 0.0)
    if (
        not all(type(x) is Tensor or type(x) is Parameter for x in (query, key, value))
        or needs_gradient(mask)
        or is_transformed()
    ):
        return reference.differentiable(query, key, value, mask, form)
    if needs_gradient(query, key, value):
        return operators.attention(query, key, value, mask, *form)[0]  # type: ignore[no-any-return]
    return operators.attention_inference(query, key, value, mask, *form)  # type: ignore[no-any-return]


def attention_with_sinks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
) -> Tensor:
    """`attention`, its softmax taken over the keys and one more score a head, whose share nobody gets.

    sinks: (H,). The share of the keys is known from the statistics of a row, its greatest score m and
    1 / sum(exp(score - m)): with a sink s its result is to be multiplied by 1 / (1 + exp(s - m) share).
    Whatever needs a gradient runs on PyTorch's operators. Source: arXiv 2309.17453, arXiv 2508.10925 (GPT-OSS).
    """
    if (problem := _problem(query, key, value, mask)) is not None:
        raise ValueError(f"attention_with_sinks: {problem}")
    if sinks.shape != query.shape[1:2]:
        raise ValueError(
            f"attention_with_sinks: expected sinks ({query.shape[1]},), one a head of query, got {tuple(sinks.shape)}"
        )
    form = Form(False, 0, query.shape[-1] ** -0.5 if scale is None else scale, 0.0)
    if (
        not all(type(x) is Tensor or type(x) is Parameter for x in (query, key, value, sinks))
        or needs_gradient(query, key, value, mask, sinks)
        or is_transformed()
    ):
        return reference.differentiable(query, key, value, mask, form, sinks)
    result, statistics = operators.attention(query, key, value, mask, *form)
    greatest, share = statistics.unbind(0)
    of_keys = ((sinks.view(-1, 1) - greatest).exp_() * share).add_(1).reciprocal_().unsqueeze(-1)
    if result.dtype == of_keys.dtype:
        return result.mul_(of_keys)  # type: ignore[no-any-return]
    return torch.mul(result, of_keys).to(result.dtype)


def _problem(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> str | None:
    if not query.dim() == key.dim() == value.dim() == 4:
        return (
            "query, key and value must be (batch, heads, length, width), got "
            f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
        )
    if not query.dtype == key.dtype == value.dtype:
        return f"query, key and value differ in dtype: {query.dtype}, {key.dtype}, {value.dtype}; cast them to one"
    if not (query.shape[0] == key.shape[0] == value.shape[0] and key.shape[1:3] == value.shape[1:3]):
        return (
            "batch, and heads and length of key and value, must agree, got "
            f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
        )
    if query.shape[3] != key.shape[3]:
        return f"query is {query.shape[3]} wide and key {key.shape[3]}; they must be equally wide"
    if query.shape[1] and (not key.shape[1] or query.shape[1] % key.shape[1]):
        return f"{query.shape[1]} heads of queries cannot share {key.shape[1]} heads of keys evenly"
    if mask is None:
        return None
    if mask.dtype != torch.bool and not mask.is_floating_point():
        return f"a mask is bool (True: seen) or a float to add, got {mask.dtype}"
    wanted = (*query.shape[:3], key.shape[2])
    if mask.dim() > 4 or any(
        size not in (1, full) for size, full in zip(reversed(mask.shape), reversed(wanted), strict=False)
    ):
        return f"the mask {tuple(mask.shape)} does not broadcast to {wanted}"
    return None
