"""The Triton backend: the gradient. Looking rows up is one pass in PyTorch already, and checks its indices."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import reference
from .triton_launches import cdiv, launch, next_power_of_2

# Under the interpreter kernels run on CPU tensors.
DISPATCH_KEYS = ("CUDA", "CPU") if triton.knobs.runtime.interpret else ("CUDA",)

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_BLOCK = 1024

forward = reference.forward


@triton.jit
def embedding_gradient_kernel(
    grad_ptr,
    sorted_ptr,
    places_ptr,
    table_ptr,
    scale_ptr,
    count,
    width,
    padding,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (p, block): if the run of equal indices in `sorted` starts at p, its sum, in the order of places."""
    p = tl.program_id(0)
    index = tl.load(sorted_ptr + p)
    before = tl.load(sorted_ptr + p - 1, mask=p > 0, other=-1)
    if (index != before) & (index != padding):
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = column < width
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        place = p
        while tl.load(sorted_ptr + place, mask=place < count, other=-1) == index:
            row = tl.load(places_ptr + place)
            total += tl.load(grad_ptr + row * width + column, mask=inside, other=0.0).to(tl.float32)
            place += 1
        if SCALED:
            total *= tl.load(scale_ptr).to(tl.float32)
        tl.store(table_ptr + index * width + column, total.to(table_ptr.dtype.element_ty), mask=inside)


def backward(grad: Tensor, indices: Tensor, rows: int, padding: int, scale: Tensor | None) -> Tensor:
    """See `reference.backward`."""
    if grad.dtype not in _DTYPES:
        return reference.backward(grad, indices, rows, padding, scale)
    width, count = grad.shape[-1], indices.numel()
    table = grad.new_zeros((rows, width))
    if not table.numel() or not count:
        return table
    ordered, places = torch.sort(indices.reshape(-1).long(), stable=True)
    scale = None if scale is None else scale.to(device=grad.device, dtype=grad.dtype)
    launch(
        embedding_gradient_kernel,
        (count, cdiv(width, _BLOCK)),
        (grad.contiguous(), ordered, places, table, scale, count, width, padding),
        SCALED=scale is not None,
        BLOCK=min(_BLOCK, next_power_of_2(width)),
        num_warps=4,
    )
    return table
