"""Linear layers on packed weights, with the activation fused where oneDNN computes it as PyTorch does.

oneDNN's ReLU turns NaN into 0, so ReLU is a pass of its own, in place; so is the sigmoid GELU, which
oneDNN lacks. Its erf and tanh GELU and its swish agree with PyTorch's to float32 rounding, infinities
and NaN included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from . import cache, held

# activation -> oneDNN's attribute and algorithm
_FUSED: Mapping[str, tuple[str, str]] = {
    "none": ("none", ""),
    "silu": ("swish", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
}


def _quick_gelu(x: Tensor) -> Tensor:
    return x.mul_((1.702 * x).sigmoid_())


_IN_PLACE: Mapping[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "silu": lambda x: F.silu(x, inplace=True),
    "relu": torch.relu_,
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": lambda x: torch.ops.aten.gelu_(x, approximate="tanh"),
    "quick_gelu": _quick_gelu,
}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """activation(x weight^T + bias); x (..., K), weight (N, K) dense or the ticket of a PackedWeight."""
    packed, weight = _operands(x, weight, bias)
    if packed is None:
        return _IN_PLACE[activation](F.linear(x, weight, bias))
    attribute, algorithm = _FUSED.get(activation, _FUSED["none"])
    result: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, attribute, [], algorithm)
    cache.finished()
    return result if activation in _FUSED else _IN_PLACE[activation](result)


def transposed_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x weight + bias; x (..., K), weight (K, N) dense, bias (N,)."""
    packs = pays_transposed(x, weight) and _fits(x, weight.t(), bias)
    packed = cache.packed_copy(weight, transposed=True) if packs else None
    if packed is None:
        return torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight).view(*x.shape[:-1], -1)
    result: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")
    cache.finished()
    return result


def gated(
    x: Tensor, gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None, activation: str
) -> Tensor:
    """activation(x gate^T + gate_bias) * (x up^T + up_bias); x (..., K), gate and up (N, K) as in `linear`."""
    activated = linear(x, gate, gate_bias, activation)
    packed, up = _operands(x, up, up_bias)
    if packed is None:
        return activated.mul_(F.linear(x, up, up_bias))
    result: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, activated, packed, up_bias, "mul")
    cache.finished()
    return result


def pays(x: Tensor, weight: Tensor) -> bool:
    """Whether packing wins for the rows of x (..., K) with weight (N, K).

    oneDNN takes about 15 microseconds a call before it multiplies, and finding the packed copy 10
    more. Measured on Zen 4, 2 threads. float32, against MKL, which starts at once: break-even at
    700,000 multiplications for few rows (MKL then reads the weight at half the speed), at six million
    for many. bfloat16, where PyTorch calls oneDNN too, but lays the weight out anew for each call:
    break-even by the size of the weight, or where the product dwarfs both.
    """
    if weight.dim() != 2 or weight.dtype not in cache.dtypes():
        return False
    columns, size = weight.shape[0], weight.numel()
    work = x.numel() * columns  # rows x size
    if weight.dtype is torch.float32:
        return work >= (700_000 if work < 16 * size else 6_000_000)
    return size >= 300_000 or work >= 40_000_000


def pays_transposed(x: Tensor, weight: Tensor) -> bool:
    """Whether packing wins for the rows of x (..., K) with a weight (K, N).

    As `pays`, but for one row of float32, which MKL multiplies with a weight of this layout at the speed of
    the memory: packed it had 0.85 to 0.88 of that (Intel Xeon with AMX, 1 thread, 768 x 2304 to 3072 x 768).
    """
    if weight.dim() != 2 or (weight.dtype is torch.float32 and x.numel() <= weight.shape[0]):
        return False
    return pays(x, weight.t())


def _operands(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor | None, Tensor]:
    """(packed weight or None, dense weight): the packed one if it may be used, and should."""
    if weight.dtype is torch.int64:
        holder = held.holder_of(weight)
        packed, truth = holder.usable()
        if packed is None:
            assert truth is not None
            return None, truth
        if not _fits(x, packed, bias):
            return None, holder.read()
        return packed, packed
    if not pays(x, weight) or not _fits(x, weight, bias):
        return None, weight
    return cache.packed_copy(weight), weight


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether oneDNN takes these operands; what it does not take, F.linear computes or refuses."""
    return (
        x.dtype is weight.dtype
        and x.layout is torch.strided
        and x.shape[-1:] == weight.shape[1:]
        and (
            bias is None
            or (bias.dtype is weight.dtype and bias.is_contiguous() and bias.shape == weight.shape[:1])
        )
    )
