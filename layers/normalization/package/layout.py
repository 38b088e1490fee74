"""Rows in memory: which tensors can be read as they lie, and the layout that a result has.

Kernels read rows of contiguous elements at one stride, and write contiguous results in the order of
the dims. RMSNorm written in PyTorch is a chain of elementwise operators, which keep the layout of
their input (a transposed view gives a transposed result); `in_layout_of` gives the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

import torch
from torch import Tensor


def rows(x: Tensor) -> tuple[Tensor, int]:
    """x (…, H), copied only if it must be, and the stride of its rows in elements."""
    width = x.shape[-1]
    if x.is_contiguous():
        return x, width
    if x.stride(-1) == 1:
        stride = expected = 0  # no leading dim longer than 1: one row, no stride
        for size, step in zip(reversed(x.shape[:-1]), reversed(x.stride()[:-1]), strict=True):
            if size == 1:
                continue
            if not expected:
                stride = step
            elif step != expected:
                break
            expected = size * step
            if not step:
                break
        else:
            return x, stride
    return x.contiguous(), width


_DTYPES = frozenset((torch.float32, torch.bfloat16, torch.float16))


def fits(x: Tensor, second: Tensor | None, *parameters: Tensor | None) -> bool:
    """Whether a kernel takes these: x and another tensor like it, vectors as long as a row."""
    if x.dtype not in _DTYPES or not x.dim():
        return False
    if second is not None and (second.dtype != x.dtype or second.shape != x.shape):
        return False
    width = x.shape[-1]
    for vector in parameters:  # a loop: this runs at every call
        if vector is not None and (
            vector.numel() != width or vector.dim() != 1 or vector.dtype not in _DTYPES
        ):
            return False
    return True


def vector(parameter: Tensor | None) -> Tensor | None:
    """A parameter, copied only if its elements do not lie side by side."""
    return parameter if parameter is None or parameter.is_contiguous() else parameter.contiguous()


def in_layout_of(
    x: Tensor, second: Tensor | None, run: Callable[[Tensor, Tensor | None], tuple[Tensor | None, ...]]
) -> tuple[Tensor | None, ...]:
    """run(x, second), its contiguous results laid out as elementwise operators on x would."""
    if x.is_contiguous():
        return run(x, second)
    order = _dense_order(x)
    if order is not None:
        back = sorted(range(x.dim()), key=order.__getitem__)
        results = run(x.permute(order), None if second is None else second.permute(order))
        return tuple(None if result is None else result.permute(back) for result in results)
    return tuple(like(result, x) for result in run(x, second))


@overload
def like(result: Tensor, x: Tensor) -> Tensor: ...
@overload
def like(result: None, x: Tensor) -> None: ...
def like(result: Tensor | None, x: Tensor) -> Tensor | None:
    """A contiguous result in the layout that an elementwise operator on x gives."""
    if result is None or x.is_contiguous():
        return result
    out = torch.empty_like(x, dtype=result.dtype)
    return result if out.is_contiguous() else out.copy_(result)


def _dense_order(x: Tensor) -> list[int] | None:
    """The order of dims, the last one staying last, in which x is contiguous; None if there is none."""
    if not x.numel():
        return None
    steps = x.stride()
    order = [*sorted(range(x.dim() - 1), key=lambda dim: (-steps[dim], dim)), x.dim() - 1]
    return order if x.permute(order).is_contiguous() else None
