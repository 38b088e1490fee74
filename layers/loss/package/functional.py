"""Cross-entropy as functions of tensors.

What the kernels do not take (tensor subclasses, forward-mode differentiation) runs the formula in
plain PyTorch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

from . import linear_operators, operators, reference
from .blocks import needs_gradient
from .direct import is_transformed
from .forms import LossForm

REDUCTIONS = ("mean", "sum", "none")

# A chunk's logits: enough rows to keep a product busy, few enough to be small beside the rest.
_CHUNK_NUMEL = {"cpu": 2**22, "other": 2**26}
_LEAST_ROWS = {"cpu": 32, "other": 256}


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy of rows of logits with class indices, without holding their log-softmax.

    logits (..., V) float32, bfloat16, float16 or float64; target (...) int64, each in [0, V) or
    `ignore_index`. Returns a scalar ("mean" over the rows that are not ignored, or "sum"), or (...)
    ("none"), in float32 (float64 for float64): computed in float32 and not rounded to logits' dtype.
    z_loss: weight of log(sum(exp))², which keeps logits near normalized (PaLM, arXiv 2204.02311).
    softcap: logits are softcap tanh(logits / softcap) first (Gemma 2, arXiv 2408.00118).

    Raises ValueError for shapes, dtypes or a reduction that do not fit; IndexError for a class out of
    range (on a GPU the loss is NaN instead).
    """
    form = _form("cross_entropy", ignore_index, label_smoothing, z_loss, softcap, reduction)
    _check_target("cross_entropy", logits.shape[:-1], target)
    rows, flat = logits.reshape(-1, logits.shape[-1]), target.reshape(-1)
    if not _are_plain(logits, target):
        losses = reference.forward(rows, flat, form)[0]
    elif needs_gradient(logits):
        losses = operators.cross_entropy_rows(rows, flat, *form)[0]
    else:
        losses = operators.cross_entropy_rows_inference(rows, flat, *form)[0]
    if reduction == "none":
        return losses.reshape(target.shape)
    return _reduced(losses.sum(), flat, form, reduction)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    reduction: str = "mean",
    chunk_rows: int | None = None,
) -> Tensor:
    """cross_entropy(hidden weight^T + bias, target) without ever holding the logits.

    hidden (..., H); weight (V, H); bias (V,) or None, all of one dtype; target (...) int64. The other
    arguments, the result and the errors are those of `cross_entropy`. Logits are computed, and rounded
    to hidden's dtype, as a linear layer would, `chunk_rows` rows at a time (default: by V and the
    device). Beyond operands and gradients it holds chunk_rows x V logits, and, where weight is narrow
    and needs a gradient, that gradient in float32 until the backward is done.
    Under autocast operands are cast as a linear layer's are.

    >>> loss = linear_cross_entropy(hidden, lm_head.weight, labels)
    """
    form = _form("linear_cross_entropy", ignore_index, label_smoothing, z_loss, softcap, reduction)
    _check_target("linear_cross_entropy", hidden.shape[:-1], target)
    if weight.dim() != 2 or weight.shape[1:] != hidden.shape[-1:]:
        raise ValueError(
            f"linear_cross_entropy: expected weight (V, {hidden.shape[-1]}) for hidden {tuple(hidden.shape)}, "
            f"got {tuple(weight.shape)}"
        )
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    if weight.dtype != hidden.dtype or (bias is not None and bias.dtype != hidden.dtype):
        raise ValueError(
            f"linear_cross_entropy: expected operands of one dtype, got hidden {hidden.dtype}, "
            f"weight {weight.dtype}{'' if bias is None else f', bias {bias.dtype}'}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"linear_cross_entropy: expected bias ({weight.shape[0]},), got {tuple(bias.shape)}")
    if chunk_rows is not None and chunk_rows < 1:
        raise ValueError(
            f"linear_cross_entropy: expected chunk_rows of at least 1, or None, got {chunk_rows}"
        )
    rows, flat = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1)
    if not _are_plain(hidden, weight, bias, target):
        losses = linear_operators.losses_of_formula(rows, weight, bias, flat, form)
        return (
            losses.reshape(target.shape)
            if reduction == "none"
            else _reduced(losses.sum(), flat, form, reduction)
        )
    chunk = chunk_rows or default_chunk_rows(rows.shape[0], weight.shape[0], kind)
    if reduction != "none" and needs_gradient(hidden, weight, bias):
        needs = (hidden.requires_grad, weight.requires_grad, bias is not None and bias.requires_grad)
        with torch.autocast(kind, enabled=False):
            total = linear_operators.linear_cross_entropy_total(
                rows, weight, bias, flat, *form, chunk, *needs
            )[0]
        return _reduced(total, flat, form, reduction)
    with torch.autocast(kind, enabled=False):
        losses = linear_operators.linear_cross_entropy_rows(rows, weight, bias, flat, *form, chunk)
    return (
        losses.reshape(target.shape) if reduction == "none" else _reduced(losses.sum(), flat, form, reduction)
    )


def default_chunk_rows(rows: int, width: int, kind: str) -> int:
    """Rows whose logits (V = width) are computed at once on a device type: a quarter of them at most, but for few."""
    kind = kind if kind in _CHUNK_NUMEL else "other"
    by_size, by_rows = _CHUNK_NUMEL[kind] // max(width, 1) // 64 * 64, (rows + 3) // 4
    return max(_LEAST_ROWS[kind], min(by_size, by_rows))


def _reduced(total: Tensor, target: Tensor, form: LossForm, reduction: str) -> Tensor:
    return total if reduction == "sum" else total / (target != form.ignore_index).sum()


def _form(
    name: str, ignore_index: int, smoothing: float, z_loss: float, softcap: float | None, reduction: str
) -> LossForm:
    if reduction not in REDUCTIONS:
        raise ValueError(f"{name}: unknown reduction {reduction!r}; expected one of {', '.join(REDUCTIONS)}")
    if not 0.0 <= smoothing <= 1.0:
        raise ValueError(f"{name}: expected a label_smoothing in [0, 1], got {smoothing}")
    if softcap is not None and softcap <= 0:
        raise ValueError(f"{name}: expected a softcap above 0, or None, got {softcap}")
    return LossForm(ignore_index, float(smoothing), float(z_loss), float(softcap or 0.0))


def _check_target(name: str, shape: torch.Size, target: Tensor) -> None:
    if target.dtype != torch.int64 or target.shape != shape:
        raise ValueError(
            f"{name}: expected an int64 class for each row, target {tuple(shape)}; "
            f"got {target.dtype} {tuple(target.shape)}"
        )


def _are_plain(*tensors: Tensor | None) -> bool:
    if is_transformed():
        return False
    return all(t is None or type(t) is Tensor or type(t) is Parameter for t in tensors)
