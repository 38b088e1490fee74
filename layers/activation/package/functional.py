"""The functions of this package. Inputs are float32, bfloat16 or float16 (other dtypes run as plain PyTorch);
results have the input's dtype, computed in float32 and rounded once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from . import kernels, operators, reference
from .direct import is_strided, is_transformed, is_unwatched
from .kinds import GELU, GELU_TANH, QUICK_GELU, SILU, number


def activation(input: Tensor, kind: int | str) -> Tensor:
    """The activation `kind` (a name or number of `kinds`) of every element; returns like `input`.

    Raises ValueError for an unknown kind.
    """
    kind = number(kind)
    small = kernels.SMALL[kind]
    strided = is_strided(input)
    if kind == GELU and strided and not input.is_contiguous():
        small = kernels.SMALL_STRIDED_GELU
    if not strided or _is_for_pytorch(input.numel(), small, input.requires_grad):
        return reference.value(input, kind)
    return operators.activation(input, kind)


def activation_and_mul(input: Tensor, kind: int | str) -> Tensor:
    """act(input[…, :d]) * input[…, d:] for `input` (…, 2d); returns (…, d), contiguous.

    Raises ValueError for an unknown kind or an odd last dimension.
    """
    if input.dim() == 0 or input.shape[-1] % 2:
        raise ValueError(
            f"the last dimension must be even, to hold gate and up; got the shape {tuple(input.shape)}"
        )
    kind = number(kind)
    if _is_for_pytorch(input.numel() // 2, kernels.SMALL_GATED, input.requires_grad):
        gate, up = input.chunk(2, dim=-1)
        return (reference.value(gate, kind) * up).contiguous()
    return operators.activation_and_mul(input, kind)


def activation_mul(gate: Tensor, up: Tensor, kind: int | str) -> Tensor:
    """act(gate) * up; returns like `gate`.

    Tensors of different shapes or dtypes are broadcast and promoted, in two operations instead of one.
    Raises ValueError for an unknown kind.
    """
    kind = number(kind)
    if gate.shape != up.shape or gate.dtype != up.dtype:
        return activation(gate, kind) * up
    if _is_for_pytorch(gate.numel(), kernels.SMALL_GATED, gate.requires_grad or up.requires_grad):
        return reference.value(gate, kind) * up
    return operators.activation_mul(gate, up, kind)


def _is_for_pytorch(size: int, small: tuple[int, int], requires_grad: bool) -> bool:
    """Whether PyTorch's own operators are to compute `size` elements.

    They start faster than an operator written in Python, by 4 microseconds, and by 25 where that has a gradient:
    `small` are the sizes, for either case, below which that decides.
    """
    if is_transformed():
        return True
    # A size that an export leaves open must not be compared.
    return not torch.compiler.is_compiling() and size < small[int(requires_grad and torch.is_grad_enabled())]


def silu(input: Tensor) -> Tensor:
    """x sigmoid(x). Source: arXiv 1702.03118."""
    return activation(input, SILU)


def silu_(input: Tensor) -> Tensor:
    """silu, written to `input`, which is returned."""
    if is_unwatched(kernels.DISPATCH_KEYS, input) and kernels.forward_in_place(input, SILU):
        return input
    return F.silu(input, inplace=True)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x Phi(x), or with approximate="tanh" `gelu_tanh`, as `torch.nn.functional.gelu`.

    Source: arXiv 1606.08415. Raises ValueError for another `approximate`.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate must be 'none' or 'tanh', got {approximate!r}")
    return activation(input, GELU_TANH if approximate == "tanh" else GELU)


def gelu_tanh(input: Tensor) -> Tensor:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). Source: arXiv 1606.08415."""
    return activation(input, GELU_TANH)


def quick_gelu(input: Tensor) -> Tensor:
    """x sigmoid(1.702 x). Source: arXiv 1606.08415."""
    return activation(input, QUICK_GELU)


def silu_and_mul(input: Tensor) -> Tensor:
    """SwiGLU's gate: silu(input[…, :d]) * input[…, d:]. Source: arXiv 2002.05202."""
    return activation_and_mul(input, SILU)


def gelu_and_mul(input: Tensor) -> Tensor:
    """GEGLU's gate: gelu(input[…, :d]) * input[…, d:]. Source: arXiv 2002.05202."""
    return activation_and_mul(input, GELU)


def gelu_tanh_and_mul(input: Tensor) -> Tensor:
    """GEGLU's gate with the tanh approximation: gelu_tanh(input[…, :d]) * input[…, d:]."""
    return activation_and_mul(input, GELU_TANH)
