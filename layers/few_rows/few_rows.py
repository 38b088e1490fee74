"""Linear layers and gated feed-forward blocks of a few rows, as when a model writes token by token; of float16, of any
number of rows, where oneDNN has no products of it.

`few_rows.cpp` through ctypes, on the memory of the tensors themselves: weights are read as PyTorch has them, so there
is no packed copy to find and to compare first, and a call costs 5 microseconds before it multiplies, not 25.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Parameter

from .activation_numbers import ACTIVATION_NUMBERS
from .direct import is_observed, is_plain, records_gradient
from .native import load, when_built
from .processor import has_half, has_vectors

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_LARGE = 1 << 23
_PAYS = {
    torch.float32: (1, 16, 4, 131_072),
    torch.bfloat16: (1, 32, 16, 65_536),
    torch.float16: (2, 16, 16, 262_144),
}
"""dtype -> the fewest and the most rows, the most for more than _LARGE weights, and the fewest weights, for which this
is the fastest: measured on Zen 4, 2 threads. One row, float32, weights out of the caches: 2.6 times the speed of MKL
and packed oneDNN at 512 x 512, 1.5 times at 4096 x 4096. PyTorch has a product of its own for one row of float16."""
_PAYS_WITHOUT_HALF = (1, math.inf, math.inf, 16_384)
"""The same of float16 where oneDNN has none for the processor: one row is a tie; of more, PyTorch's products are loops,
and this has 3 to 6 times their speed, however many the rows."""
_NEVER = (1, 0, 0, 0)
MOST_WEIGHTS = 3

# The records of linear_records.h, field for field: x and out, three weights (values, bias, columns), then numbers.
_RECORD = struct.Struct("=2Q" + 3 * "2Qq" + "4q")
_ABSENT = (0, 0, 0)


@when_built
def _library() -> ctypes.CDLL | None:
    library = load(Path(__file__).with_name("few_rows.cpp"), is_extra=True)
    if library is not None:
        for function in (library.few_rows_linears, library.few_rows_gated):
            function.argtypes, function.restype = (ctypes.c_char_p,), None
    return library


def pays(x: Tensor, weight: Tensor) -> bool:
    """Whether this is the fastest for the rows of x (..., K) with weight (N, K)."""
    fewest, most, most_of_large, least = _bounds(x.dtype)
    width, size = x.shape[-1] if x.dim() else 0, weight.numel()
    return (
        size >= least and fewest * width <= x.numel() <= (most if size <= _LARGE else most_of_large) * width
    )


@lru_cache(maxsize=8)
def _bounds(dtype: torch.dtype) -> tuple[float, float, float, float]:
    if not has_vectors():
        return _NEVER
    if dtype is torch.float16 and not has_half():
        return _PAYS_WITHOUT_HALF
    return _PAYS.get(dtype, _NEVER)


def takes(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> bool:
    """Whether x (..., K), weights (N, K) and biases (N,) are as the C++ reads them, and it can be built.

    An x of any strides: it is copied where it is not contiguous, which costs far less than its product.
    """
    return (
        x.dtype in _TYPES
        and x.numel() > 0
        and len(weights) <= MOST_WEIGHTS
        and are_like(x.dtype, x.shape[-1], weights, biases)
        and _library() is not None
    )


def are_like(
    dtype: torch.dtype, width: int, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> bool:
    """Whether weights (N, width) and biases (N,) are contiguous and of a dtype."""
    for weight, bias in zip(weights, biases, strict=True):  # a loop: this runs at every call
        if weight.dtype is not dtype or weight.dim() != 2:
            return False
        columns, depth = weight.shape
        if depth != width or not weight.is_contiguous():
            return False
        if bias is not None and (
            bias.dtype is not dtype or bias.dim() != 1 or bias.shape[0] != columns or not bias.is_contiguous()
        ):
            return False
    return True


def runs_directly(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> bool:
    """Whether a call of these is for this kernel alone, past the operators that hold it and others: see `direct`."""
    return may_run_directly(x, weights, biases, pays) and takes(x, weights, biases)


def may_run_directly(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    pays: Callable[[Tensor, Tensor], bool],
) -> bool:
    """Whether nobody sees that a kernel of linear layers, which `pays`, is called past the dispatcher."""
    first = weights[0]
    if type(first) not in _KINDS or is_observed() or x.is_nested:  # which has no sizes
        return False
    if not pays(x, first) or not is_plain(x):
        return False
    for tensor in (*weights, *biases):
        if tensor is not None and not is_plain(tensor):
            return False
    return not records_gradient(x, *weights, *biases)


_KINDS = (Parameter, Tensor)


def linears(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], activation: str = "none"
) -> Tensor:
    """activation(x weight^T + bias) of up to three weights, side by side; for what `takes` says yes to."""
    library = _library()
    assert library is not None
    return call(library.few_rows_linears, x, weights, biases, activation)


def call(
    function: Callable[[bytes], None],
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    activation: str,
    columns: int | None = None,
) -> Tensor:
    """What a function in C++ makes of x (..., K), made contiguous, and up to three weights (N, K): (..., columns).

    columns: of the result; by default, those of all weights side by side.
    """
    fields, all_columns = _fields(weights, biases)
    fields += _ABSENT * (MOST_WEIGHTS - len(weights))
    x = x.contiguous()
    *leading, width = x.shape
    out = x.new_empty((*leading, all_columns if columns is None else columns))
    numbers = (x.numel() // width, width, _TYPES[x.dtype], ACTIVATION_NUMBERS[activation])
    function(_RECORD.pack(x.data_ptr(), out.data_ptr(), *fields, *numbers))
    return out


def gated_mlp(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], activation: str
) -> Tensor:
    """(activation(x gate^T) * (x up^T)) down^T of weights gate, up and down, with their biases.

    For a gate and an up of one shape (N, K) that `takes` says yes to, and a down (M, N) that is like them.
    """
    fields, _ = _fields(weights, biases)
    x = x.contiguous()
    *leading, width = x.shape
    out = x.new_empty((*leading, fields[-1]))
    numbers = (x.numel() // width, width, _TYPES[x.dtype], ACTIVATION_NUMBERS[activation])
    library = _library()
    assert library is not None
    library.few_rows_gated(_RECORD.pack(x.data_ptr(), out.data_ptr(), *fields, *numbers))
    return out


def _fields(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> tuple[list[int], int]:
    """The fields of weights in a record, and the number of columns of all of them."""
    fields: list[int] = []
    columns = 0
    for weight, bias in zip(weights, biases, strict=True):
        own = weight.shape[0]
        columns += own
        fields += (weight.data_ptr(), 0 if bias is None else bias.data_ptr(), own)
    return fields, columns
