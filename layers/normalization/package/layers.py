"""The layers: each forward runs on the module it replaces, and reads that module's parameters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .functional import add_layer_norm, add_rms_norm, layer_norm, rms_norm, rms_norm_gated

_EPS = ("variance_epsilon", "eps", "epsilon")
_NARROW = (torch.bfloat16, torch.float16)


def _eps(module: nn.Module) -> float:
    """The constant under the root, by the names that model code gives it."""
    state, cls = module.__dict__, type(module)
    for name in _EPS:  # to ask a module for what it does not have costs a microsecond
        if (eps := state.get(name)) is not None:
            return float(eps)
        if hasattr(cls, name):
            break
    for name in _EPS:
        eps = getattr(module, name, None)
        if eps is not None:
            return float(eps)
    raise AttributeError(f"{type(module).__name__} has none of variance_epsilon, eps, epsilon")


def _flatten(x: Tensor, normalized_shape: tuple[int, ...]) -> Tensor:
    """x with the dims that are normalized as one; an error, as torch's own, if they are not its last."""
    dims = len(normalized_shape)
    if dims == 1 and x.shape[-1] == normalized_shape[0]:
        return x
    if x.shape[-dims:] != normalized_shape:
        raise RuntimeError(
            f"expected an input whose last dims are {tuple(normalized_shape)}, got shape {tuple(x.shape)}"
        )
    return x.flatten(-dims)


def _autocast(x: Tensor) -> Tensor:
    """float32 where torch.autocast runs torch's own norms in float32: on any device but the CPU."""
    if x.dtype in _NARROW and x.device.type != "cpu" and torch.is_autocast_enabled(x.device.type):
        return x.float()
    return x


class RMSNorm(nn.Module):
    """weight * (x / sqrt(mean(x²) + eps)).to(x.dtype), over the last dim: transformers' LlamaRMSNorm.

    hidden_states (…, H) float32, bfloat16 or float16; weight (H,). Computed in float32; the result has
    the promoted dtype of both. eps is read from variance_epsilon, eps or epsilon.
    Source: arXiv 1910.07467.
    """

    has_backward: bool = True
    can_torch_compile: bool = True
    weight: Tensor

    def forward(self, hidden_states: Tensor) -> Tensor:
        return rms_norm(hidden_states, self.weight, _eps(self))


class RMSNormRoundedOnce(nn.Module):
    """(weight * x / sqrt(mean(x²) + eps)).to(x.dtype): transformers' GptOssRMSNorm, NemotronHRMSNorm.

    As `RMSNorm`, but the product with weight is float32 too, and the result has the input's dtype.
    """

    has_backward: bool = True
    can_torch_compile: bool = True
    weight: Tensor

    def forward(self, hidden_states: Tensor) -> Tensor:
        weight = self.weight if self.__dict__.get("with_scale", True) else None  # a setting of Gemma 3n's
        return rms_norm(hidden_states, weight, _eps(self), round_first=False)


class RMSNormZeroCentered(nn.Module):
    """((1 + weight) * x / sqrt(mean(x²) + eps)).to(x.dtype): Gemma, Qwen 3.5.

    The weight is stored around zero; everything is float32 until the last rounding.
    """

    has_backward: bool = True
    can_torch_compile: bool = True
    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, _eps(self), offset=1.0, round_first=False)


class TorchRMSNorm(nn.Module):
    """torch.nn.RMSNorm: over the dims of normalized_shape; weight may be None.

    eps=None is the machine epsilon of the arithmetic: that of float32 for bfloat16 and float16.
    Returns x's dtype.
    """

    has_backward: bool = True
    can_torch_compile: bool = True
    normalized_shape: tuple[int, ...]
    eps: float | None
    weight: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        x, eps, weight = _autocast(x), self.eps, self.weight
        if not x.is_floating_point():  # complex numbers, and what PyTorch refuses
            return F.rms_norm(x, self.normalized_shape, weight, eps)
        shape = tuple(self.normalized_shape)
        if eps is None:
            eps = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
        if weight is not None and len(shape) > 1:
            weight = weight.flatten()
        y = rms_norm(_flatten(x, shape).contiguous(), weight, eps, round_first=False)
        return y if len(shape) == 1 else y.view(x.shape)


class LayerNorm(nn.Module):
    """torch.nn.LayerNorm: (x - mean) / sqrt(var + eps) * weight + bias over the dims of normalized_shape.

    input (…, *normalized_shape) float; weight and bias of that shape or None. Computed in float32;
    returns the input's dtype. Source: arXiv 1607.06450.
    """

    has_backward: bool = True
    can_torch_compile: bool = True
    normalized_shape: tuple[int, ...]
    eps: float
    weight: Tensor | None
    bias: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        x, shape, weight, bias = _autocast(input), tuple(self.normalized_shape), self.weight, self.bias
        if not x.is_floating_point():
            return F.layer_norm(x, shape, weight, bias, self.eps)
        if len(shape) > 1:
            weight, bias = (
                None if weight is None else weight.flatten(),
                None if bias is None else bias.flatten(),
            )
        y = layer_norm(_flatten(x, shape), weight, bias, self.eps)
        return y if len(shape) == 1 else y.view(x.shape)


class RMSNormGated(nn.Module):
    """weight * norm(x) * activation(gate): the gated delta layers of Qwen3-Next, Qwen 3.5, OLMo hybrid.

    hidden_states, gate (…, H); weight (H,); `activation` of the module is silu or sigmoid. norm(x) is
    rounded to x's dtype before the product with weight, and the gate's activation is float32; returns
    x's dtype. Source: arXiv 2412.06464.
    """

    has_backward: bool = True
    can_torch_compile: bool = True
    weight: Tensor
    activation: str

    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
        return rms_norm_gated(hidden_states, gate, self.weight, _eps(self), activation=self.activation)


class RMSNormGatedFloat32(nn.Module):
    """`RMSNormGated` in float32 up to one rounding at the end: Kimi Linear, GLM 5 next, Bailing hybrid."""

    has_backward: bool = True
    can_torch_compile: bool = True
    weight: Tensor
    activation: str

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        return rms_norm_gated(
            hidden_states, gate, self.weight, _eps(self), activation=self.activation, round_first=False
        )


class MambaRMSNormGated(nn.Module):
    """weight * norm(x * silu(gate)), normalized in groups of `group_size`: Mamba 2, Bamba, Nemotron H.

    hidden_states, gate (…, H); weight (H,). The normalized value is rounded to x's dtype before the
    product with weight; the result has the promoted dtype. Source: arXiv 2405.21060.
    """

    has_backward: bool = True
    can_torch_compile: bool = True
    weight: Tensor
    group_size: int

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        groups = hidden_states.shape[-1] // self.group_size
        return rms_norm_gated(hidden_states, gate, self.weight, _eps(self), gate_first=True, groups=groups)


class AddRMSNorm(nn.Module):
    """(rms_norm(hidden_states + residual), hidden_states + residual), rounded as `RMSNorm`."""

    has_backward: bool = True
    can_torch_compile: bool = True
    weight: Tensor

    def forward(self, hidden_states: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return add_rms_norm(hidden_states, residual, self.weight, _eps(self))


class AddLayerNorm(nn.Module):
    """(layer_norm(input + residual), input + residual), over the last dim."""

    has_backward: bool = True
    can_torch_compile: bool = True
    eps: float
    weight: Tensor | None
    bias: Tensor | None

    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return add_layer_norm(input, residual, self.weight, self.bias, self.eps)
