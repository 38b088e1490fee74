"""Several linear layers of one input as one product: of many rows on a joined packed copy of their weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter

from . import few_or_many, joined_weights
from .fused_linear import linear
from .guard import finished
from .packing import products
from .registration import define


def project(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> list[Tensor]:
    """F.linear(x, weight, bias) of each pair, without gradients.

    The outputs are parts of one tensor, side by side, where that pays. Weights that were freed, and
    whatever does not join, are multiplied one by one.
    """
    if len(weights) > 1:
        joined = few_or_many.joined_linear_directly(x, weights, biases)
        if joined is None and _joins(x, weights, biases):
            joined = _joined_linear(x, weights, biases)
        if joined is not None:
            return list(joined.split([weight.shape[0] for weight in weights], dim=-1))
    return [linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)]


def _joins(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> bool:
    return (
        all(type(weight) is Parameter and weight.dim() == 2 and weight.dtype is x.dtype for weight in weights)
        and all(bias is None or (type(bias) is Parameter and bias.dtype is x.dtype) for bias in biases)
        and x.device.type == "cpu"
        and (torch.compiler.is_compiling() or few_or_many.pays(x, max(weights, key=Tensor.numel)))
    )


def _reference(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([F.linear(x, *pair) for pair in zip(weights, biases, strict=True)], dim=-1)


def _kernel(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Tensor:
    few = few_or_many.joined_linear(x, weights, biases)
    if few is not None:
        return few
    packed = joined_weights.packed_copy(weights) if products.pays(x, max(weights, key=Tensor.numel)) else None
    if packed is None:
        return _reference(x, weights, biases)
    bias = None
    if any(biase is not None for biase in biases):
        parts = [
            weight.new_zeros(weight.shape[0]) if biase is None else biase
            for weight, biase in zip(weights, biases, strict=True)
        ]
        bias = torch.cat(parts)
    result: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")
    finished()
    return result


def _fake(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Tensor:
    return x.new_empty((*x.shape[:-1], sum(weight.shape[0] for weight in weights)))


_joined_linear = define(
    "joined_linear(Tensor x, Tensor[] weights, Tensor?[] biases) -> Tensor",
    {"CPU": _kernel, "CompositeExplicitAutograd": _reference},
    _fake,
)
