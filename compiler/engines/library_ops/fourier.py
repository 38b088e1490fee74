"""Fourier transforms with PyTorch: MKL or pocketfft on CPUs, cuFFT and hipFFT on GPUs."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.site import LibraryKernel, Run, Site

_ONE_SIDED = True
_UNSCALED = 0


def _make(site: Site) -> Run:
    axis, form, scale = site["axis"], site["form"], site["scale"]
    shape, dtype, is_forward, length = site.shape, site.dtype, not site["inverse"], site["length"]

    def spectrum(real: Tensor, *imaginary: Tensor) -> Tensor:
        if form == "half":
            return torch._fft_r2c(real, [axis], _UNSCALED, _ONE_SIDED)
        if not imaginary and is_forward:
            return torch._fft_r2c(real, [axis], _UNSCALED, not _ONE_SIDED)
        whole = torch.complex(real, imaginary[0] if imaginary else torch.zeros_like(real))
        return torch._fft_c2c(whole, [axis], _UNSCALED, is_forward)

    def in_parts(*parts: Tensor) -> Tensor:
        if not parts[0].numel():
            return parts[0].new_empty(shape)
        found = torch.view_as_real(spectrum(*parts)).reshape(shape)
        return found if scale == 1 else found * scale

    def samples(real: Tensor, imaginary: Tensor) -> Tensor:
        if not real.numel():
            return real.new_empty(shape, dtype=dtype)
        found = torch._fft_c2r(torch.complex(real, imaginary), [axis], _UNSCALED, length)
        return found if scale == 1 else found * scale

    return samples if form == "real" else in_parts


KERNELS = {"fourier": LibraryKernel(_make, frozenset({"float32", "float64"}))}
