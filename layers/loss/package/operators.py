"""The operators on rows of logits: schemas, shapes for tracing, gradients.

`cross_entropy_rows` saves what its gradient needs: the logits themselves and one number a row, not
their log-softmax. Its `_inference` twin has no gradient and skips the autograd layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import kernels, reference
from .forms import LossForm
from .registration import define, implementations

_FORM = "int ignore_index, float label_smoothing, float z_loss, float softcap"


def rows_dtype(logits: Tensor) -> torch.dtype:
    """Dtype of losses: float32, or float64 for float64."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def _forward(logits: Tensor, target: Tensor, *form: Any) -> tuple[Tensor, Tensor]:
    return kernels.forward(logits, target, LossForm(*form))


def _reference_forward(logits: Tensor, target: Tensor, *form: Any) -> tuple[Tensor, Tensor]:
    return reference.forward(logits, target, LossForm(*form))


def _fake_forward(logits: Tensor, target: Tensor, *form: Any) -> tuple[Tensor, Tensor]:
    rows = logits.new_empty(logits.shape[0], dtype=rows_dtype(logits))
    return rows, torch.empty_like(rows)


def _backward(grad: Tensor, logits: Tensor, target: Tensor, lse: Tensor, *form: Any) -> Tensor:
    return kernels.backward(grad, logits, target, lse, LossForm(*form))


def _reference_backward(grad: Tensor, logits: Tensor, target: Tensor, lse: Tensor, *form: Any) -> Tensor:
    return reference.backward(grad, logits, target, LossForm(*form))


def _fake_backward(grad: Tensor, logits: Tensor, target: Tensor, lse: Tensor, *form: Any) -> Tensor:
    return logits.new_empty(logits.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits, target, *ctx.form = inputs
    ctx.save_for_backward(logits, target, output[1])
    ctx.mark_non_differentiable(output[1])


def _derivative(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    logits, target, lse = ctx.saved_tensors
    if torch.is_grad_enabled():  # a gradient's gradient goes through the formula
        gradient = reference.backward(grad, logits, target, LossForm(*ctx.form))
    else:
        gradient = _ROWS_BACKWARD(grad, logits, target, lse, *ctx.form)
    return gradient, *[None] * 5


_ROWS_BACKWARD = define(
    f"cross_entropy_rows_backward(Tensor grad, Tensor logits, Tensor target, Tensor lse, {_FORM}) -> Tensor",
    implementations(kernels.DISPATCH_KEYS, _backward, _reference_backward),
    _fake_backward,
)
_IMPLEMENTATIONS = implementations(kernels.DISPATCH_KEYS, _forward, _reference_forward)
cross_entropy_rows = define(
    f"cross_entropy_rows(Tensor logits, Tensor target, {_FORM}) -> (Tensor, Tensor)",
    _IMPLEMENTATIONS,
    _fake_forward,
    backward=_derivative,
    setup_context=_save,
)
cross_entropy_rows_inference = define(
    f"cross_entropy_rows_inference(Tensor logits, Tensor target, {_FORM}) -> (Tensor, Tensor)",
    _IMPLEMENTATIONS,
    _fake_forward,
)
