"""The CPU backend: `moe.cpp` through ctypes, on the memory of the tensors themselves.

Where the C++ cannot be built, or for dtypes that it does not take, PyTorch runs: the reference, and,
for many tokens an expert, grouped products on torch.mm, whose blocking wins once each weight is used
often enough.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import struct
from pathlib import Path

import torch
from torch import Tensor

from . import reference
from .activation_numbers import ACTIVATION_NUMBERS
from .blocks import FORMULAS
from .native import load, when_built
from .processor import has_half, has_tiles, has_vectors
from .reference import grouped_outer, grouped_product
from .routing import route

__all__ = [
    "DISPATCH_KEYS",
    "clamped_experts",
    "gated_experts",
    "grouped_outer",
    "grouped_product",
    "top_k_softmax",
]

DISPATCH_KEYS = ("CPU",)

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

# Tokens an expert above which torch.mm is faster than dot products: of float16 it never is where oneDNN has none.
_MOST_TOKENS = {torch.float32: 64, torch.bfloat16: 32, torch.float16: 64}

# The same where the weights lie transposed: of them torch.mm reads rows, and is soon faster; less so where the weights
# are small (AMD Zen 5, and, where there are tiles, Intel Xeon with AMX; 1 thread).
_SMALL = 1 << 17
_MOST_CLAMPED_TOKENS = {True: 6, False: 8}
_MOST_OF_SMALL = {torch.float32: {True: 6, False: 16}, torch.bfloat16: {True: 24, False: 24}}

# The records of moe.cpp, field for field.
_EXPERTS = struct.Struct("=6Q 8q")
_CLAMPED = struct.Struct("=8Q 7q 2d")
_GATES = struct.Struct("=2Q 2q 2d")
_ROUTER = struct.Struct("=3Q 6q")


def _most_tokens(dtype: torch.dtype) -> float:
    return math.inf if _has_loops_alone(dtype) else _MOST_TOKENS[dtype]


def _most_clamped_tokens(dtype: torch.dtype, weights: int) -> float:
    """Tokens an expert above which torch.mm is faster, for experts of so many weights in their second product."""
    if _has_loops_alone(dtype):
        return math.inf
    if weights > _SMALL:
        return _MOST_CLAMPED_TOKENS[has_tiles()]
    return _MOST_OF_SMALL.get(dtype, _MOST_OF_SMALL[torch.bfloat16])[has_tiles()]


def _has_loops_alone(dtype: torch.dtype) -> bool:
    """Whether PyTorch's products of a dtype are plain loops."""
    return dtype is torch.float16 and has_vectors() and not has_half()


@when_built
def _library() -> ctypes.CDLL | None:
    library = load(Path(__file__).with_name("moe.cpp"))
    if library is not None:
        library.moe_experts.argtypes, library.moe_experts.restype = (ctypes.c_char_p,), ctypes.c_int64
        library.moe_clamped_experts.argtypes = (ctypes.c_char_p,)
        library.moe_clamped_experts.restype = ctypes.c_int64
        for function in (library.moe_clamped_gates, library.moe_route):
            function.argtypes, function.restype = (ctypes.c_char_p,), None
    return library


def _fits(x: Tensor, index: Tensor, weight: Tensor, down: Tensor) -> bool:
    return x.dtype in _TYPES and weight.dtype in _TYPES and min(x.numel(), index.numel(), down.numel()) > 0


def gated_experts(
    x: Tensor, gate_up: Tensor, down: Tensor, index: Tensor, weight: Tensor, activation: str
) -> Tensor:
    """See `functional.gated_experts`."""
    library = _library()
    experts, width, inner = down.shape
    if library is None or not _fits(x, index, weight, down):
        return reference.gated_experts(x, gate_up, down, index, weight, activation)
    if index.numel() > _most_tokens(x.dtype) * experts:
        routing = route(index, experts)
        gate, up = grouped_product(routing.gather(x), gate_up, routing.ends).chunk(2, dim=-1)
        y = grouped_product(FORMULAS[activation](gate).mul(up), down, routing.ends)
        return routing.sum(y.mul_(weight.flatten()[routing.order][:, None]))
    x, gate_up, down, index, weight = (t.contiguous() for t in (x, gate_up, down, index, weight))
    out = torch.empty_like(x)
    wrong = library.moe_experts(
        _EXPERTS.pack(
            *(t.data_ptr() for t in (x, gate_up, down, index, weight, out)),
            *(x.shape[0], index.shape[1], experts, width, inner),
            *(_TYPES[x.dtype], _TYPES[weight.dtype], ACTIVATION_NUMBERS[activation]),
        )
    )
    if wrong >= 0:
        raise IndexError(
            f"gated_experts: expected experts in [0, {experts}], got {int(index.flatten()[wrong])}"
        )
    return out


def clamped_experts(
    x: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor,
    down: Tensor,
    down_bias: Tensor,
    index: Tensor,
    weight: Tensor,
    alpha: float,
    limit: float,
) -> Tensor:
    """See `functional.clamped_experts`."""
    library = _library()
    experts, inner, width = down.shape
    operands = (x, gate_up, gate_up_bias, down, down_bias, index, weight)
    if library is None or not _fits(x, index, weight, down):
        return reference.clamped_experts(*operands, alpha, limit)
    if index.numel() > _most_clamped_tokens(x.dtype, inner * width) * experts:
        return _clamped_by_products(*operands, alpha, limit)
    x, gate_up, gate_up_bias, down, down_bias, index, weight = (t.contiguous() for t in operands)
    out = torch.empty_like(x)
    wrong = library.moe_clamped_experts(
        _CLAMPED.pack(
            *(t.data_ptr() for t in (x, gate_up, gate_up_bias, down, down_bias, index, weight, out)),
            *(x.shape[0], index.shape[1], experts, width, inner),
            *(_TYPES[x.dtype], _TYPES[weight.dtype]),
            *(alpha, limit),
        )
    )
    if wrong >= 0:
        raise IndexError(
            f"clamped_experts: expected experts in [0, {experts}], got {int(index.flatten()[wrong])}"
        )
    return out


def _clamped_by_products(
    x: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor,
    down: Tensor,
    down_bias: Tensor,
    index: Tensor,
    weight: Tensor,
    alpha: float,
    limit: float,
) -> Tensor:
    """`clamped_experts` of many tokens an expert: products by PyTorch, everything between them in one pass."""
    library = _library()
    assert library is not None
    routing = route(index, gate_up.shape[0])
    ends = [0, *routing.ends.tolist()]

    def products(rows: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
        out = rows.new_empty(rows.shape[0], weights.shape[2])
        for expert, (begin, end) in enumerate(itertools.pairwise(ends)):
            if end > begin:
                torch.addmm(biases[expert], rows[begin:end], weights[expert], out=out[begin:end])
        out[ends[-1] :] = 0  # nobody's
        return out

    pre = products(routing.gather(x), gate_up, gate_up_bias)
    hidden = pre.new_empty(pre.shape[0], pre.shape[1] // 2)
    library.moe_clamped_gates(
        _GATES.pack(pre.data_ptr(), hidden.data_ptr(), hidden.numel(), _TYPES[x.dtype], alpha, limit)
    )
    y = products(hidden, down, down_bias)
    return routing.sum(y.mul_(weight.flatten()[routing.order][:, None]))


def top_k_softmax(logits: Tensor, k: int, renormalise: bool, rounded: bool) -> tuple[Tensor, Tensor]:
    """See `functional.top_k_softmax`."""
    library = _library()
    if library is None or logits.dtype not in _TYPES or not logits.numel() or k > 64:
        return reference.top_k_softmax(logits, k, renormalise, rounded)
    logits = logits.contiguous()
    shape = (*logits.shape[:-1], k)
    score = logits.new_empty(shape, dtype=logits.dtype if rounded else torch.float32)
    index = logits.new_empty(shape, dtype=torch.int64)
    experts = logits.shape[-1]
    library.moe_route(
        _ROUTER.pack(
            *(t.data_ptr() for t in (logits, score, index)),
            *(logits.numel() // experts, experts, k),
            *(_TYPES[logits.dtype], _TYPES[score.dtype], renormalise),
        )
    )
    return score, index
