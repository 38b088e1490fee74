"""Cases of the losses, shared by the CPU and the Triton tests, and their formulas in float64."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tolerances import assert_close

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "smoothed": {"label_smoothing": 0.1},
    "z-loss": {"z_loss": 1e-2},
    "capped": {"softcap": 3.0},
    "everything": {"label_smoothing": 0.2, "z_loss": 1e-3, "softcap": 5.0, "ignore_index": 3},
}
SHAPES = [(1, 1), (5, 7), (3, 1000), (16, 129), (2, 5000)]
REDUCTIONS = ("mean", "sum", "none")


def exact_cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The definition on torch's own cross-entropy, in whatever dtype the logits have."""
    y = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    losses = F.cross_entropy(
        y, target, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none"
    )
    kept = target != ignore_index
    losses = losses + torch.where(kept, z_loss * torch.logsumexp(y, 1) ** 2, 0)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / kept.sum()


def make(
    shape: tuple[int, int], dtype: torch.dtype, device: str = "cpu", ignored: int = -100
) -> tuple[Tensor, Tensor]:
    """logits (N, V) and target (N,), every fourth row ignored where there are more than two."""
    generator = torch.Generator().manual_seed(5)
    logits = 4 * torch.randn(shape, generator=generator)
    target = torch.randint(0, shape[1], shape[:1], generator=generator)
    if shape[0] > 2:
        target[::4] = ignored
    return logits.to(dtype).to(device), target.to(device)


def make_linear(
    dtype: torch.dtype,
    device: str = "cpu",
    *,
    rows: int = 37,
    width: int = 24,
    classes: int = 101,
    ignored: int = -100,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """hidden (N, H), weight (V, H), bias (V,), target (N,)."""
    generator = torch.Generator().manual_seed(6)
    hidden = torch.randn(rows, width, generator=generator)
    weight = torch.randn(classes, width, generator=generator) / width**0.5
    bias = torch.randn(classes, generator=generator)
    target = torch.randint(0, classes, (rows,), generator=generator)
    target[1::5] = ignored
    return (*(x.to(dtype).to(device) for x in (hidden, weight, bias)), target.to(device))  # type: ignore[return-value]


def check_cross_entropy(
    package: ModuleType, logits: Tensor, target: Tensor, reduction: str, form: dict[str, Any]
) -> None:
    """Loss and gradient against float64."""
    ours = logits.detach().clone().requires_grad_()
    exact = logits.detach().double().requires_grad_()
    found = package.cross_entropy(ours, target, reduction=reduction, **form)
    expected = exact_cross_entropy(exact, target, reduction=reduction, **form)
    assert found.dtype == torch.float32
    assert_close(found, expected, factor=4)  # a mean over rows of other sizes than their sum
    with torch.no_grad():
        assert_close(package.cross_entropy(ours, target, reduction=reduction, **form), expected, factor=4)
    gradient = torch.rand(expected.shape, generator=torch.Generator().manual_seed(7)).to(found) + 0.5
    found.backward(gradient)
    expected.backward(gradient.double())
    assert ours.grad is not None and exact.grad is not None
    assert ours.grad.dtype == logits.dtype
    # Where tanh saturates, its slope 1 - tanh² is a difference of almost equal numbers.
    assert_close(ours.grad, exact.grad, factor=10 if form.get("softcap") else 2)


def check_linear(
    loss: Callable[..., Tensor],
    operands: tuple[Tensor, Tensor, Tensor, Tensor],
    reduction: str,
    form: dict[str, Any],
    *,
    bias: bool = True,
    **options: Any,
) -> None:
    """Loss and gradients against float64, where logits are rounded only by their dtype."""
    *tensors, target = operands
    ours = [x.detach().clone().requires_grad_() for x in tensors]
    exact = [x.detach().double().requires_grad_() for x in tensors]
    found = loss(ours[0], ours[1], target, ours[2] if bias else None, reduction=reduction, **form, **options)
    logits = F.linear(exact[0], exact[1], exact[2] if bias else None)
    expected = exact_cross_entropy(logits, target, reduction=reduction, **form)
    assert found.dtype == torch.float32
    narrow = operands[0].dtype  # logits are rounded to it
    assert_close(found, expected, dtype=narrow, factor=2)
    gradient = torch.rand(expected.shape, generator=torch.Generator().manual_seed(7)).to(found) + 0.5
    found.backward(gradient)
    expected.backward(gradient.double())
    for mine, reference in list(zip(ours, exact, strict=True))[: 3 if bias else 2]:
        assert mine.grad is not None and reference.grad is not None
        assert mine.grad.dtype == narrow
        assert_close(mine.grad, reference.grad, factor=2)  # softmax of rounded logits
