"""float32 linear layers of many rows on weights of which no copy is to be kept, on processors of AMD.

`many_rows.cpp` through ctypes. PyTorch multiplies float32 with MKL, which runs at half of what these processors can do;
oneDNN does not, on a copy of the weights that it packed before. This packs what it needs at every call: at 0.8 of the
speed of such a copy for 49 rows, 0.92 for 197, 0.92 to 0.98 for 512 (Zen 5). On processors of Intel MKL is as fast.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from . import few_rows
from .native import load, when_built
from .packing import cache
from .processor import has_vectors, is_amd

_LEAST_WORK = 1 << 20
"""Multiplications that repay what a call costs before it multiplies."""


@when_built
def _library() -> ctypes.CDLL | None:
    folders = [Path(folder) for folder in sys.modules[__package__ or ""].__path__]
    headers = next(folder for folder in folders if (folder / "gemm.h").exists())
    library = load(Path(__file__).with_name("many_rows.cpp"), headers, is_extra=True)
    if library is not None:
        for function in (library.many_rows_linears, library.many_rows_transposed, library.many_rows_gated):
            function.argtypes, function.restype = (ctypes.c_char_p,), None
    return library


def serves(weight: Tensor) -> bool:
    """Whether this is faster than PyTorch for products of many rows with a weight."""
    return (
        weight.dtype is torch.float32
        and weight.dim() == 2
        and weight.device.type == "cpu"
        and is_amd()
        and has_vectors()
    )


def pays(x: Tensor, weight: Tensor) -> bool:
    """Whether this is for the rows of x (..., K) with weight (N, K): no copy is to be kept, and it beats PyTorch."""
    return cache.is_refused(weight) and serves(weight) and x.numel() * weight.shape[0] >= _LEAST_WORK


def pays_transposed(x: Tensor, weight: Tensor) -> bool:
    """As `pays`, for weight (K, N)."""
    return cache.is_refused(weight) and serves(weight) and x.numel() * weight.shape[1] >= _LEAST_WORK


def takes(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> bool:
    """Whether x (..., K), weights (N, K) and biases (N,) are as the C++ reads them, and it is there."""
    return (
        x.dtype is torch.float32
        and x.numel() > 0
        and len(weights) <= few_rows.MOST_WEIGHTS
        and few_rows.are_like(x.dtype, x.shape[-1], weights, biases)
        and _library() is not None
    )


def runs_directly(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> bool:
    """Whether a call of these is for this kernel alone, past the operators that hold it and others: see `direct`."""
    return (
        cache.refuses()  # as a rule it is not so, and nothing else is asked
        and few_rows.may_run_directly(x, weights, biases, pays)
        and takes(x, weights, biases)
    )


def linears(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], activation: str = "none"
) -> Tensor:
    """activation(x weight^T + bias) of up to three weights, side by side; for what `takes` says yes to."""
    library = _library()
    assert library is not None
    return few_rows.call(library.many_rows_linears, x, weights, biases, activation)


def transposed_takes(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether x (..., K), weight (K, N) and bias (N,) are as the C++ reads them, and it is there."""
    return (
        x.dtype is weight.dtype is bias.dtype is torch.float32
        and x.numel() > 0
        and x.shape[-1:] == weight.shape[:1]
        and bias.shape == weight.shape[1:]
        and weight.is_contiguous()
        and bias.is_contiguous()
        and _library() is not None
    )


def transposed_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x weight + bias; for what `transposed_takes` says yes to."""
    library = _library()
    assert library is not None
    return few_rows.call(library.many_rows_transposed, x, (weight.t(),), (bias,), "none")


def gated(
    x: Tensor, gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None, activation: str
) -> Tensor:
    """activation(x gate^T + gate_bias) * (x up^T + up_bias) of weights of one shape; for what `takes` says yes to."""
    library = _library()
    assert library is not None
    both = (gate, up), (gate_bias, up_bias)
    return few_rows.call(library.many_rows_gated, x, *both, activation, columns=gate.shape[0])
