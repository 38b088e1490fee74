"""The operators, and the function that calls them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from . import kernels, reference
from .direct import is_transformed
from .registration import define, implementations


def _implementations(name: str) -> dict[str, Any]:
    return implementations(kernels.DISPATCH_KEYS, getattr(kernels, name), getattr(reference, name))


def _fake(indices: Tensor, weight: Tensor, scale: Tensor | None) -> Tensor:
    return weight.new_empty((*indices.shape, weight.shape[1]))


def _fake_backward(grad: Tensor, indices: Tensor, rows: int, padding: int, scale: Tensor | None) -> Tensor:
    return grad.new_empty((rows, grad.shape[-1]))


_INFERENCE = define(
    "embedding_inference(Tensor indices, Tensor weight, Tensor? scale) -> Tensor",
    _implementations("forward"),
    _fake,
)


def _with_padding(function: Any) -> Any:
    def forward(indices: Tensor, weight: Tensor, padding: int, scale: Tensor | None) -> Tensor:
        result: Tensor = function(indices, weight, scale)
        return result

    return forward


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    indices, weight, ctx.padding, scale = inputs
    ctx.rows = weight.shape[0]
    ctx.save_for_backward(indices, scale)


def _derivative(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    indices, scale = ctx.saved_tensors
    return None, _BACKWARD(grad, indices, ctx.rows, ctx.padding, scale), None, None


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, indices, _, ctx.padding, scale = inputs
    ctx.save_for_backward(indices, scale)


def _derivative_of_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradient is linear in what it is given: its transpose looks rows up again."""
    indices, scale = ctx.saved_tensors
    found = _EMBEDDING(indices, grad, ctx.padding, scale)
    if ctx.padding >= 0:
        found = found.masked_fill((indices == ctx.padding).unsqueeze(-1), 0.0)
    return found, None, None, None, None


_EMBEDDING = define(
    "embedding(Tensor indices, Tensor weight, SymInt padding, Tensor? scale) -> Tensor",
    {key: _with_padding(function) for key, function in _implementations("forward").items()},
    lambda indices, weight, padding, scale: _fake(indices, weight, scale),
    backward=_derivative,
    setup_context=_save,
)
_BACKWARD = define(
    "embedding_backward(Tensor grad, Tensor indices, SymInt rows, SymInt padding, Tensor? scale) -> Tensor",
    _implementations("backward"),
    _fake_backward,
    backward=_derivative_of_backward,
    setup_context=_save_backward,
)


def embedding(
    indices: Tensor, weight: Tensor, padding_idx: int | None = None, scale: Tensor | float | None = None
) -> Tensor:
    """Rows of a table: weight[indices], times `scale` where there is one.

    indices: (…), int32 or int64. weight: (N, H). Returns (…, H) in weight's dtype.
    padding_idx: its row gets no gradient; counts from the end where negative, as in PyTorch.
    scale: a number, or a tensor of one, rounded to weight's dtype before it is multiplied with, as in Gemma.
    The gradient is dense; each row is summed in float32 in the order of its places, whatever runs in parallel,
    and rounded once.
    Raises IndexError for an index outside of the table on CPU (a GPU stops with PyTorch's assertion), ValueError
    for other shapes and dtypes.
    """
    if indices.dtype not in (torch.int32, torch.int64) or weight.dim() != 2:
        raise ValueError(
            "embedding: expected indices of int32 or int64 and a table (rows, width), "
            f"got {indices.dtype} and a table {tuple(weight.shape)}"
        )
    padding = -1
    if padding_idx is not None:
        padding = padding_idx + weight.shape[0] if padding_idx < 0 else padding_idx
        if not 0 <= padding < weight.shape[0]:
            raise ValueError(
                f"embedding: padding_idx {padding_idx} is outside of a table of {weight.shape[0]} rows"
            )
    if isinstance(scale, float | int):
        scale = torch.full((), float(scale), dtype=weight.dtype, device=weight.device)
    grad = torch.is_grad_enabled()
    if (
        type(weight) not in (Tensor, Parameter)
        or (grad and scale is not None and scale.requires_grad)
        or is_transformed()
    ):
        rows = torch.nn.functional.embedding(indices, weight, padding_idx)
        return rows if scale is None else rows * scale.to(weight.dtype)
    if grad and weight.requires_grad:
        return _EMBEDDING(indices, weight, padding, scale)  # type: ignore[no-any-return]
    return _INFERENCE(indices, weight, scale)  # type: ignore[no-any-return]
