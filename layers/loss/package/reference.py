"""The formulas of `LossForm` in plain PyTorch: the oracle, and what runs where no kernel does.

logits (N, V); target (N,) int64. float64 stays float64, everything else is computed in float32.
Both can be differentiated, so a gradient's gradient goes through them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .forms import LossForm


def forward(logits: Tensor, target: Tensor, form: LossForm) -> tuple[Tensor, Tensor]:
    """(loss, log-sum-exp) of each row, float32 or float64; the loss of ignored rows is 0.

    Raises IndexError for a class outside [0, V), where the device allows to look.
    """
    y = _capped(logits, form)
    lse = torch.logsumexp(y, dim=1)
    kept, classes = _classes(target, y.shape[1], form)
    loss = (1 - form.label_smoothing) * (lse - y.gather(1, classes[:, None])[:, 0])
    if form.label_smoothing:
        loss = loss + form.label_smoothing * (lse - y.mean(1))
    if form.z_loss:
        loss = loss + form.z_loss * lse * lse
    return torch.where(kept, loss, 0), lse


def backward(grad: Tensor, logits: Tensor, target: Tensor, form: LossForm) -> Tensor:
    """Gradient of logits, for the gradient (N,) of each row's loss; in logits' dtype."""
    y = _capped(logits, form)
    width = y.shape[1]
    kept, classes = _classes(target, width, form)
    lse = torch.logsumexp(y, dim=1, keepdim=True)
    dy = torch.exp(y - lse) * (1 + 2 * form.z_loss * lse) - form.label_smoothing / width
    hot = torch.nn.functional.one_hot(classes, width).to(dy.dtype)
    dy = dy - (1 - form.label_smoothing) * hot
    if form.softcap:
        dy = dy * (1 - (y / form.softcap) ** 2)
    scale = torch.where(kept, grad, 0)[:, None].to(dy.dtype)
    return torch.where(kept[:, None], scale * dy, 0).to(logits.dtype)


def replace_by_gradient(logits: Tensor, target: Tensor, form: LossForm) -> Tensor:
    """The loss of each row (N,); the logits become its gradient, in place."""
    loss, _ = forward(logits, target, form)
    logits.copy_(backward(torch.ones_like(loss), logits, target, form))
    return loss


def check_target(target: Tensor, width: int, form: LossForm) -> None:
    """Raise IndexError for a class that is neither in [0, width) nor ignored; on a GPU that would mean to wait."""
    if target.device.type == "cpu":
        wrong = (target != form.ignore_index) & ((target < 0) | (target >= width))
        if wrong.any():
            raise IndexError(f"Target {int(target[wrong][0])} is out of bounds: expected [0, {width})")


def _capped(logits: Tensor, form: LossForm) -> Tensor:
    x = logits if logits.dtype == torch.float64 else logits.float()
    return form.softcap * torch.tanh(x / form.softcap) if form.softcap else x


def _classes(target: Tensor, width: int, form: LossForm) -> tuple[Tensor, Tensor]:
    """(which rows count, a class for every row)."""
    check_target(target, width, form)
    kept = target != form.ignore_index
    return kept, torch.where(kept, target, 0)
