"""Tensors as rows of contiguous elements, without a copy where their strides allow it."""

from __future__ import annotations

import torch
from torch import Tensor


def rows_of(target: Tensor, *tensors: Tensor) -> tuple[int, int, tuple[tuple[Tensor, int], ...]]:
    """(rows, columns, ((tensor, row stride), …)): how to read `tensors` in the memory order of `target`.

    `target` is a new tensor without gaps. Tensors that fit neither its strides nor rows are copied.
    """
    size = target.numel()
    if target.is_contiguous():
        for tensor in tensors:
            if not tensor.is_contiguous():
                break
        else:
            return 1, size, tuple([(tensor, size) for tensor in tensors])
        columns = target.shape[-1]
        return size // columns if columns else 0, columns, tuple(_in_rows(tensor) for tensor in tensors)
    strides = target.stride()
    same = (t if t.stride() == strides else torch.empty_like(target).copy_(t) for t in tensors)
    return 1, size, tuple((tensor, size) for tensor in same)


def packed_rows(x: Tensor) -> tuple[int, int, Tensor, int]:
    """(rows, columns, x or a copy of it, row stride) of gate and up, the halves of x (…, 2 * columns)."""
    columns = x.shape[-1] // 2
    x, stride = _in_rows(x)
    return x.numel() // (2 * columns) if columns else 0, columns, x, stride


def _in_rows(x: Tensor) -> tuple[Tensor, int]:
    """`x` (a copy, if it must be) and the distance of its rows along the last dimension, in elements."""
    width = x.shape[-1]
    if x.is_contiguous():
        return x, width
    *strides, last = x.stride()
    *sizes, _ = x.shape
    if last != 1 and width != 1:
        return x.contiguous(), width
    row_stride, span = None, 0
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size == 1:
            continue
        if row_stride is None:
            row_stride, span = stride, stride * size
        elif stride == span:
            span = stride * size
        else:
            return x.contiguous(), width
    return x, width if row_stride is None else row_stride
