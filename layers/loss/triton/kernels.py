"""The Triton backend: a program a row of logits, read once for the loss and once more for a gradient."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import reference
from .forms import LossForm
from .triton_launches import launch, next_power_of_2

# Under the interpreter kernels run on CPU tensors.
DISPATCH_KEYS = ("CUDA", "CPU") if triton.knobs.runtime.interpret else ("CUDA",)

_TYPES = (torch.float32, torch.bfloat16, torch.float16)


@triton.jit
def _capped(x, softcap, CAPPED: tl.constexpr):  # type: ignore[no-untyped-def]
    """softcap tanh(x / softcap)."""
    x = x.to(tl.float32)
    if CAPPED:
        x = softcap * (2.0 * tl.sigmoid(2.0 * x / softcap) - 1.0)
    return x


@triton.jit
def _write_gradient(  # type: ignore[no-untyped-def]
    x_ptr,
    dx_ptr,
    target,
    lse,
    grad,
    width,
    label_smoothing,
    z_loss,
    softcap,
    CAPPED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradient of a row, which may lie where the row lies."""
    columns = tl.arange(0, BLOCK)
    scale = grad * (1.0 + 2.0 * z_loss * lse)
    even = grad * label_smoothing / width
    hot = grad * (1.0 - label_smoothing)
    for start in range(0, width, BLOCK):
        at = start + columns
        y = _capped(tl.load(x_ptr + at, mask=at < width, other=0.0), softcap, CAPPED)
        dy = tl.exp(y - lse) * scale - even
        dy = tl.where(at == target, dy - hot, dy)
        if CAPPED:
            dy *= 1.0 - (y / softcap) * (y / softcap)
        tl.store(dx_ptr + at, dy.to(dx_ptr.dtype.element_ty), mask=at < width)


@triton.jit
def _write_zeros(dx_ptr, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    columns = tl.arange(0, BLOCK)
    zeros = tl.zeros((BLOCK,), dtype=dx_ptr.dtype.element_ty)
    for start in range(0, width, BLOCK):
        tl.store(dx_ptr + start + columns, zeros, mask=start + columns < width)


@triton.jit
def cross_entropy_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    target_ptr,
    loss_ptr,
    lse_ptr,
    width,
    stride,
    ignore_index,
    label_smoothing,
    z_loss,
    softcap,
    CAPPED: tl.constexpr,
    SMOOTHED: tl.constexpr,
    REPLACE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """loss and log-sum-exp of row program_id(0); with REPLACE the row becomes its gradient.

    A class that is neither in range nor ignored gives NaN.
    """
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride
    target = tl.load(target_ptr + row)
    if target == ignore_index:
        tl.store(loss_ptr + row, 0.0)
        tl.store(lse_ptr + row, 0.0)
        if REPLACE:
            _write_zeros(x_ptr, width, BLOCK)
    else:
        columns = tl.arange(0, BLOCK)
        # A maximum and a sum a lane, so that the loop has no reduction over the row; the least finite
        # number stands for nothing yet, because -inf less -inf is not a number.
        most = tl.full((BLOCK,), -3.0e38, dtype=tl.float32)
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        plain = tl.zeros((BLOCK,), dtype=tl.float32)
        for start in range(0, width, BLOCK):
            at = start + columns
            y = _capped(tl.load(x_ptr + at, mask=at < width, other=0.0), softcap, CAPPED)
            if SMOOTHED:
                plain += tl.where(at < width, y, 0.0)
            y = tl.where(at < width, y, float("-inf"))
            higher = tl.where(y > most, y, most)
            total = total * tl.exp(most - higher) + tl.exp(y - higher)
            most = higher
        top = tl.max(most, axis=0)
        lse = top + tl.log(tl.sum(total * tl.exp(most - top), axis=0))
        valid = (target >= 0) & (target < width)
        at_target = tl.load(x_ptr + target, mask=valid, other=0.0)
        lse = tl.where(valid, lse, float("nan"))
        loss = (1.0 - label_smoothing) * (lse - _capped(at_target, softcap, CAPPED)) + z_loss * lse * lse
        if SMOOTHED:
            loss += label_smoothing * (lse - tl.sum(plain, axis=0) / width)
        tl.store(loss_ptr + row, loss)
        tl.store(lse_ptr + row, lse)
        if REPLACE:
            tl.debug_barrier()  # every thread has read the target's logit before one overwrites it
            _write_gradient(
                x_ptr, x_ptr, target, lse, 1.0, width, label_smoothing, z_loss, softcap, CAPPED, BLOCK
            )


@triton.jit
def cross_entropy_gradient_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    target_ptr,
    lse_ptr,
    grad_ptr,
    dx_ptr,
    width,
    stride,
    ignore_index,
    label_smoothing,
    z_loss,
    softcap,
    CAPPED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradient of row program_id(0), for the gradient of its loss."""
    row = tl.program_id(0).to(tl.int64)
    dx_ptr += row * width
    target = tl.load(target_ptr + row)
    if target == ignore_index:
        _write_zeros(dx_ptr, width, BLOCK)
    else:
        lse, grad = tl.load(lse_ptr + row), tl.load(grad_ptr + row).to(tl.float32)
        x_ptr += row * stride
        _write_gradient(
            x_ptr, dx_ptr, target, lse, grad, width, label_smoothing, z_loss, softcap, CAPPED, BLOCK
        )


def block_for(width: int) -> tuple[int, int]:
    """(columns of a block, warps): 8 elements a thread at most."""
    block = min(next_power_of_2(width), 2048)
    return block, max(1, min(8, block // 256))


def forward(logits: Tensor, target: Tensor, form: LossForm) -> tuple[Tensor, Tensor]:
    """See `reference.forward`; a class out of range gives NaN, the log-sum-exp of ignored rows is 0."""
    if not _fits(logits):
        return reference.forward(logits, target, form)
    return _loss(logits if logits.stride(1) == 1 else logits.contiguous(), target, form, replace=False)


def replace_by_gradient(logits: Tensor, target: Tensor, form: LossForm) -> Tensor:
    """See `reference.replace_by_gradient`; logits are contiguous."""
    if not _fits(logits):
        return reference.replace_by_gradient(logits, target, form)
    return _loss(logits, target, form, replace=True)[0]


def _loss(logits: Tensor, target: Tensor, form: LossForm, replace: bool) -> tuple[Tensor, Tensor]:
    rows, width = logits.shape
    loss = logits.new_empty(rows, dtype=torch.float32)
    lse = torch.empty_like(loss)
    block, warps = block_for(width)
    launch(
        cross_entropy_kernel,
        (rows,),
        (logits, target.contiguous(), loss, lse, width, logits.stride(0), *form),
        CAPPED=form.softcap > 0,
        SMOOTHED=form.label_smoothing > 0,
        REPLACE=replace,
        BLOCK=block,
        num_warps=warps,
    )
    return loss, lse


def backward(grad: Tensor, logits: Tensor, target: Tensor, lse: Tensor, form: LossForm) -> Tensor:
    """See `reference.backward`."""
    if not _fits(logits):
        return reference.backward(grad, logits, target, form)
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, width = logits.shape
    gradient = logits.new_empty(rows, width)
    block, warps = block_for(width)
    launch(
        cross_entropy_gradient_kernel,
        (rows,),
        (logits, target.contiguous(), lse, grad.contiguous(), gradient, width, logits.stride(0), *form),
        CAPPED=form.softcap > 0,
        BLOCK=block,
        num_warps=warps,
    )
    return gradient


def _fits(logits: Tensor) -> bool:
    return logits.dtype in _TYPES and logits.numel() > 0
