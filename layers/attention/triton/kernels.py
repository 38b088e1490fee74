"""The Triton backend: what launches the kernels, with tiles from a small table; no tuning at run time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from . import reference
from .form import Form, broadcast, result_like, takes
from .forward_kernels import attention_kernel
from .gradient_kernels import key_gradient_kernel, query_gradient_kernel
from .releases import other_fields
from .triton_launches import cdiv, launch, next_power_of_2

# Under the interpreter kernels run on CPU tensors.
DISPATCH_KEYS = ("CUDA", "CPU") if triton.knobs.runtime.interpret else ("CUDA",)

weights = None
"""Nothing is packed on this backend."""

_HIP = torch.version.hip is not None

_WIDEST = 256
"""Wider heads do not fit the registers."""


@dataclass(frozen=True)
class AttentionTile:
    """Queries and keys of a tile, and what runs it."""

    rows: int
    columns: int
    warps: int
    stages: int


# Per kernel: tiles for heads up to 64, 128 and 256 wide, the largest tried that neither NVIDIA's architectures nor
# AMD's spill: what a tile needs does not grow evenly, as the compilers keep other things in registers.
_NARROW = {
    "forward": (AttentionTile(128, 64, 8, 2), AttentionTile(64, 64, 8, 2), AttentionTile(32, 32, 8, 1)),
    "query gradient": (AttentionTile(32, 32, 8, 1), AttentionTile(16, 32, 8, 1), AttentionTile(32, 32, 8, 1)),
    "key gradient": (AttentionTile(32, 32, 8, 1), AttentionTile(16, 32, 8, 1), AttentionTile(32, 32, 8, 1)),
}
_FLOAT32 = {
    "forward": (AttentionTile(32, 32, 4, 1), AttentionTile(16, 16, 8, 1), AttentionTile(16, 16, 8, 1)),
    "query gradient": (AttentionTile(16, 16, 8, 1), AttentionTile(16, 16, 4, 1), AttentionTile(16, 16, 8, 1)),
    "key gradient": (AttentionTile(32, 32, 4, 1), AttentionTile(16, 32, 8, 1), AttentionTile(16, 16, 8, 1)),
}


def tile_for(kernel: str, widest: int, dtype: torch.dtype, *, hip: bool = False) -> AttentionTile:
    """The tile of "forward", "query gradient" or "key gradient"; widest: of the padded widths."""
    if hip:
        wide = kernel == "forward" and dtype is not torch.float32
        side, case = (32, "hip narrow") if wide else (16, "hip")
        tile = AttentionTile(side, side, 4, 1)
    else:
        table, name = (_FLOAT32, "float32") if dtype is torch.float32 else (_NARROW, "narrow")
        place = 0 if widest <= 64 else 1 if widest <= 128 else 2
        tile, case = table[kernel][place], f"{name} {64 << place}"
    others = other_fields(f"attention {kernel}", case)
    return replace(tile, **others) if others else tile


def padded(width: int) -> int:
    """The width of a tile that holds a row."""
    return max(16, next_power_of_2(width))


def forward(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, form: Form, save: bool
) -> tuple[Tensor, Tensor | None]:
    """See `reference.forward`."""
    batch, heads, lq, width = query.shape
    values = value.shape[3]
    if not _fits(query, key, value):
        return reference.forward(query, key, value, mask, form, save)
    query, key, value, mask = *map(_rows, (query, key, value)), broadcast(mask, query, key)
    result = result_like(query, value)
    statistics = query.new_empty((2, batch, heads, lq), dtype=torch.float32) if save else None
    tile = tile_for("forward", max(padded(width), padded(values)), query.dtype, hip=_HIP)
    if result.numel():
        launch(
            attention_kernel,
            (cdiv(lq, tile.rows), batch * heads),
            (
                *(query, key, value, _bytes(mask), result, statistics),
                *(heads, heads // key.shape[1], lq, key.shape[2], width, values),
                *(form.offset, form.scale, form.softcap),
                *(
                    *_strides(query),
                    *_strides(key),
                    *_strides(value),
                    *_mask_strides(mask),
                    *_strides(result),
                ),
            ),
            SAVE=save,
            **_constants(query, mask, form, width, values, tile),
        )
    return result, statistics


def backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    result: Tensor,
    statistics: Tensor,
    form: Form,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `reference.backward`."""
    if not _fits(query, key, value):
        return reference.backward(grad, query, key, value, mask, result, statistics, form)
    batch, heads, lq, width = query.shape
    values, lk, shared = value.shape[3], key.shape[2], key.shape[1]
    gradients = [torch.empty_like(x) for x in (query, key, value)]
    dquery, dkey, dvalue = written = [_rows(x) for x in gradients]
    delta = (grad.float() * result.float()).sum(-1).contiguous()
    grad, query, key, value, mask = *map(_rows, (grad, query, key, value)), broadcast(mask, query, key)
    widest = max(padded(width), padded(values))
    inputs = (grad, query, key, value, _bytes(mask), statistics.contiguous(), delta)
    numbers = (heads // shared, lq, lk, width, values, form.offset, form.scale, form.softcap)
    strides = (*_strides(grad), *_strides(query), *_strides(key), *_strides(value), *_mask_strides(mask))
    if dquery.numel():
        tile = tile_for("query gradient", widest, query.dtype, hip=_HIP)
        launch(
            query_gradient_kernel,
            (cdiv(lq, tile.rows), batch * heads),
            (*inputs, dquery, heads, *numbers, *strides, *_strides(dquery)),
            **_constants(query, mask, form, width, values, tile),
        )
    if dkey.numel():
        tile = tile_for("key gradient", widest, query.dtype, hip=_HIP)
        launch(
            key_gradient_kernel,
            (cdiv(lk, tile.columns), batch * shared),
            (*inputs, dkey, dvalue, shared, *numbers, *strides, *_strides(dkey), *_strides(dvalue)),
            **_constants(query, mask, form, width, values, tile),
        )
    for gradient, found in zip(gradients, written, strict=True):
        if gradient is not found:
            gradient.copy_(found)
    return gradients[0], gradients[1], gradients[2]


def _fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    return (
        takes(query, key, value)
        and 0 < query.shape[3] <= _WIDEST
        and 0 < value.shape[3] <= _WIDEST
        and key.shape[1] > 0
    )


def _rows(x: Tensor) -> Tensor:
    """x, copied only if its rows are not contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _bytes(mask: Tensor | None) -> Tensor | None:
    return mask.view(torch.uint8) if mask is not None and mask.dtype == torch.bool else mask


def _strides(x: Tensor) -> tuple[int, int, int]:
    return x.stride(0), x.stride(1), x.stride(2)


def _mask_strides(mask: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0, 0) if mask is None else mask.stride()


def _constants(
    query: Tensor, mask: Tensor | None, form: Form, width: int, values: int, tile: AttentionTile
) -> dict[str, Any]:
    tf32 = query.dtype is torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    return {
        "CAUSAL": form.causal,
        "MASK": 0 if mask is None else 1 if mask.dtype == torch.bool else 2,
        "SOFTCAP": form.softcap != 0.0,
        "PRECISION": "tf32" if tf32 and not _HIP else "ieee",
        "UPCAST": triton.knobs.runtime.interpret and query.dtype is not torch.float32,
        "EVEN": width == padded(width) and values == padded(values),
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "WIDTH": padded(width),
        "VALUES": padded(values),
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }
