"""Weights of few bits with PyTorch: floats at each call, as many at once as a product takes."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.site import NATIVE_FLOATS, LibraryKernel, Run, Site, narrowed


def _floats(
    w: Tensor, bits: int, depth: int, scales: Tensor, zeros: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """A weight (N, K), in float32 or float64."""
    numbers = w
    if bits < 8:
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=w.device)
        numbers = (w[..., None] >> shifts & (1 << bits) - 1).flatten(2)
    wide = numbers.to(dtype)
    wide -= float(1 << bits - 1) if zeros is None else zeros.to(dtype)[..., None]
    wide *= scales.to(dtype)[..., None]
    return wide.flatten(1)[:, :depth]


def _make_dequantize(site: Site) -> Run:
    bits, depth, finish = site["bits"], site.shape[1], narrowed(site.row)
    wide = torch.float64 if site.operand_row(1).bits == 64 else torch.float32
    return lambda w, scales, zeros=None: finish(_floats(w, bits, depth, scales, zeros, wide))


def _make_matmul(site: Site) -> Run:
    bits, depth, finish = site["bits"], site.operand_shape(0)[1], narrowed(site.row)
    rows = [site.operand_row(0), site.operand_row(2), site.row]
    wide = torch.float64 if any(row.bits == 64 for row in rows) else torch.float32

    def run(a: Tensor, w: Tensor, scales: Tensor, zeros: Tensor | None = None) -> Tensor:
        return finish(torch.matmul(a.to(wide), _floats(w, bits, depth, scales, zeros, wide).mT))

    return run


KERNELS = {
    "dequantize": LibraryKernel(_make_dequantize, NATIVE_FLOATS | {"uint8"}),
    "matmul_few_bits": LibraryKernel(_make_matmul, NATIVE_FLOATS | {"uint8"}),
}
