"""Conv2d and Conv1d, and the convolution blocks of ResNet-like models.

The blocks are fused where only numbers flow: in eval mode, where no gradient is needed, where
nobody watches their children through hooks. Otherwise they are the composition of their children,
called as modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.compiler import is_compiling

from .blocks import has_written_forward, needs_gradient, runs_own_forward
from .direct import is_for_any_size, is_transformed, is_unwatched
from .kernels import TRAINS, at_once, fuses, loses, pays, takes_planes
from .operators import conv2d, conv_norm


class Conv2d(nn.Module):
    """torch.nn.Conv2d: 2-d cross-correlation of (N, C, H, W) or (C, H, W) with weight (K, C / groups, R, S).

    float32, bfloat16, float16; any stride, padding, dilation and groups. Padding modes other than
    "zeros", autocast, tensor subclasses and, on the CPU, calls that need a gradient run the
    module's own code. The memory format of the result is PyTorch's.
    """

    has_backward = True
    can_torch_compile = True

    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, int]
    padding: tuple[int, int] | str
    dilation: tuple[int, int]
    groups: int
    padding_mode: str
    _reversed_padding_repeated_twice: list[int]
    _conv_forward: Callable[[Tensor, Tensor, Tensor | None], Tensor]

    def forward(self, input: Tensor) -> Tensor:
        weight, bias, padding = self.weight, self.bias, self.padding
        is_plane = at_once is None or input.is_contiguous()
        if not is_plane and _loses(self, input, weight):
            return self._conv_forward(input, weight, bias)
        if (
            at_once is not None
            and input.dtype is torch.float32
            and (is_plane or self.groups > 1)
            and type(padding) is tuple
            and self.padding_mode == "zeros"
            and is_unwatched(("CPU",), input, weight, bias)
        ):
            result = at_once(input, weight, bias, self.stride, padding, self.dilation, self.groups)
            if result is not None:
                return result
        if is_plane and _loses(self, input, weight):
            return self._conv_forward(input, weight, bias)
        if self.padding_mode != "zeros" or not _is_ours(input, weight, bias):
            return self._conv_forward(input, weight, bias)
        if not TRAINS and needs_gradient(input, weight, bias):
            return self._conv_forward(input, weight, bias)
        batch = input.unsqueeze(0) if input.dim() == 3 else input
        if batch.dim() != 4 or is_for_any_size(batch):
            return self._conv_forward(input, weight, bias)
        if not pays(batch, weight, self.stride, self.dilation, self.groups):
            return self._conv_forward(input, weight, bias)
        if isinstance(padding, str):  # "same" may need one more row or column at the end than at the start
            left, right, top, bottom = self._reversed_padding_repeated_twice
            padding = (top, left)
            if (right, bottom) != (left, top):
                batch = F.pad(batch, (0, right - left, 0, bottom - top))
        output = conv2d(batch, weight, bias, self.stride, padding, self.dilation, self.groups)
        return output if input.dim() == 4 else output.squeeze(0)


def _loses(convolution: Conv2d, input: Tensor, weight: Tensor) -> bool:
    """Whether it is known that no kernel is faster for these: asked first, since all other questions take as long."""
    return (
        loses is not None
        and type(input) is Tensor
        and not is_compiling()
        and not input.is_nested
        and loses(input, weight, convolution.stride, convolution.dilation, convolution.groups)
    )


class Conv1d(nn.Module):
    """torch.nn.Conv1d: cross-correlation of (N, C, L) or (C, L) with weight (K, C / groups, S).

    float32 and contiguous, without a gradient; all else runs the module's own code. Any stride, padding, dilation and
    groups.
    """

    has_backward = True
    can_torch_compile = True

    weight: Tensor
    bias: Tensor | None
    stride: tuple[int]
    padding: tuple[int] | str
    dilation: tuple[int]
    groups: int
    padding_mode: str
    _conv_forward: Callable[[Tensor, Tensor, Tensor | None], Tensor]

    def forward(self, input: Tensor) -> Tensor:
        weight, bias, padding = self.weight, self.bias, self.padding
        if type(padding) is not tuple or self.padding_mode != "zeros":
            return self._conv_forward(input, weight, bias)
        if at_once is not None and is_unwatched(("CPU",), input, weight, bias):
            result = at_once(input, weight, bias, self.stride, padding, self.dilation, self.groups)
            return self._conv_forward(input, weight, bias) if result is None else result
        is_batch = input.dim() == 3 and _is_ours(input, weight, bias)
        if not is_batch or needs_gradient(input, weight, bias) or is_for_any_size(input):
            return self._conv_forward(input, weight, bias)
        # One line of pixels: an operator that profilers see.
        lines, filters, stride = input.unsqueeze(2), weight.unsqueeze(2), (1, *self.stride)
        if not takes_planes(lines, filters, stride):
            return self._conv_forward(input, weight, bias)
        geometry = (stride, (0, *padding), (1, *self.dilation), self.groups)
        return conv2d(lines, filters, bias, *geometry).squeeze(2)


class ConvNormActivation(nn.Module):
    """activation(normalization(convolution(x))): transformers' ResNetConvLayer and blocks of its form.

    Fused where convolution is a Conv2d, normalization a BatchNorm2d in eval mode and activation ReLU
    or Identity. On the CPU the result is channels_last, in which following convolutions are fastest.
    Sources: transformers/models/resnet/modeling_resnet.py; arXiv 1502.03167.
    """

    has_backward = True
    can_torch_compile = True

    convolution: nn.Conv2d
    normalization: nn.BatchNorm2d
    activation: nn.Module

    def forward(self, hidden_states: Tensor) -> Tensor:
        operands = _operands(self, hidden_states)
        if operands is not None:
            return _fused(hidden_states, operands, None, type(self.activation) is nn.ReLU)
        hidden_states = self.convolution(hidden_states)
        hidden_states = self.normalization(hidden_states)
        output: Tensor = self.activation(hidden_states)
        return output


class ConvNorm(nn.Module):
    """normalization(convolution(x)): transformers' ResNetShortCut. Fused as ConvNormActivation is."""

    has_backward = True
    can_torch_compile = True

    convolution: nn.Conv2d
    normalization: nn.BatchNorm2d

    def forward(self, input: Tensor) -> Tensor:
        operands = _operands(self, input)
        if operands is not None:
            return _fused(input, operands, None, False)
        return self.normalization(self.convolution(input))  # type: ignore[no-any-return]


class ResNetBottleneck(nn.Module):
    """relu(layer(x) + shortcut(x)): transformers' ResNetBottleNeckLayer.

    layer: a Sequential of convolution, norm and activation blocks, the last without an activation;
    shortcut: a convolution and norm block, or Identity. Fused, the sum is made where the last
    convolution's result is still in registers. Sources: arXiv 1512.03385; ResNetConvLayer as above.
    """

    has_backward = True
    can_torch_compile = True

    layer: nn.Sequential
    shortcut: nn.Module
    activation: nn.Module

    def forward(self, hidden_state: Tensor) -> Tensor:
        return _residual_block(self, hidden_state)


class ResNetBasic(nn.Module):
    """relu(layer(x) + shortcut(x)): transformers' ResNetBasicLayer. As ResNetBottleneck."""

    has_backward = True
    can_torch_compile = True

    layer: nn.Sequential
    shortcut: nn.Module
    activation: nn.Module

    def forward(self, hidden_state: Tensor) -> Tensor:
        return _residual_block(self, hidden_state)


# What a block of a residual block may be, to be fused: class of transformers -> the children that its forward calls.
_BLOCKS = {
    "ResNetConvLayer": ("convolution", "normalization", "activation"),
    "ResNetShortCut": ("convolution", "normalization"),
    "RTDetrResNetConvLayer": ("convolution", "normalization", "activation"),
    "RTDetrResNetShortCut": ("convolution", "normalization"),
}

# What `conv_norm` takes of a block: (weight, bias and the norm's tensors), (eps and the geometry).
_Operands = tuple[tuple[Tensor | None, ...], tuple[Any, ...]]


def _residual_block(module: ResNetBottleneck | ResNetBasic, hidden_state: Tensor) -> Tensor:
    blocks, shortcut = list(module.layer), module.shortcut
    projects = type(shortcut) is not nn.Identity
    operands = _residual_operands(module, [*blocks, shortcut] if projects else blocks, hidden_state)
    if operands is not None and type(blocks[-1]._modules.get("activation")) is nn.Identity:
        residual = _fused(hidden_state, operands[-1], None, False) if projects else hidden_state
        for block, its in zip(blocks[:-1], operands, strict=False):
            hidden_state = _fused(hidden_state, its, None, type(block.activation) is nn.ReLU)
        return _fused(hidden_state, operands[len(blocks) - 1], residual, True)
    residual = hidden_state
    hidden_state = module.layer(hidden_state)
    residual = shortcut(residual)
    hidden_state += residual
    return module.activation(hidden_state)  # type: ignore[no-any-return]


def _residual_operands(
    module: ResNetBottleneck | ResNetBasic, parts: list[nn.Module], input: Tensor
) -> list[_Operands] | None:
    """The operands of every part, None where one of them is not what it was or its children are watched."""
    if type(module.activation) is not nn.ReLU or not _is_plain(module.activation):
        return None
    if (
        type(module.layer) is not nn.Sequential
        or not _is_plain(module.layer)
        or not _is_plain(module.shortcut)
    ):
        return None
    residual_operands = []
    for part in parts:
        kind = type(part)
        if not kind.__module__.startswith("transformers.models.") or not _is_plain(part):
            return None
        if tuple(part._modules) != _BLOCKS.get(kind.__name__):
            return None
        operands = _operands(part, input)
        if operands is None:
            return None
        residual_operands.append(operands)
    return residual_operands


def _operands(block: nn.Module, input: Tensor) -> _Operands | None:
    """What to run a block's convolution, norm and activation as one operator with; None where that is not right.

    Read from the modules' dictionaries: their attributes cost ten microseconds a block.
    """
    children = block._modules
    convolution, normalization, activation = map(children.get, ("convolution", "normalization", "activation"))
    if type(convolution) is not nn.Conv2d or type(normalization) is not nn.BatchNorm2d:
        return None
    if activation is not None and not (type(activation) in _ACTIVATIONS and _is_plain(activation)):
        return None
    if block.training or normalization.training or not (_is_plain(convolution) and _is_plain(normalization)):
        return None
    if convolution.padding_mode != "zeros" or type(convolution.padding) is str or input.dim() != 4:
        return None
    weight, bias = convolution._parameters.get("weight"), convolution._parameters.get("bias")
    scale, shift = normalization._parameters.get("weight"), normalization._parameters.get("bias")
    mean, variance = normalization._buffers.get("running_mean"), normalization._buffers.get("running_var")
    tensors = (weight, bias, scale, shift, mean, variance)
    if weight is None or mean is None or variance is None or not _is_ours(input, *tensors):
        return None
    if (
        needs_gradient(input, *tensors)
        or is_for_any_size(input)
        or not fuses(input, weight, convolution.stride)
    ):
        return None
    return tensors, (
        normalization.eps,
        convolution.stride,
        convolution.padding,
        convolution.dilation,
        convolution.groups,
    )


_ACTIVATIONS = (nn.ReLU, nn.Identity)


def _fused(input: Tensor, operands: _Operands, residual: Tensor | None, relu: bool) -> Tensor:
    tensors, (eps, *geometry) = operands
    return conv_norm(input, *tensors, residual, eps, *geometry, relu)


def _is_ours(input: Tensor, *tensors: Tensor | None) -> bool:
    """Whether the operators take these tensors: plain ones on one device, outside of autocast and of transforms."""
    device = input.device
    for tensor in tensors:
        if tensor is not None and (type(tensor) not in _PLAIN or tensor.device != device):
            return False
    return type(input) in _PLAIN and not torch.is_autocast_enabled(device.type) and not is_transformed()


_PLAIN = (Tensor, nn.Parameter)


def _is_plain(module: nn.Module) -> bool:
    """Whether calling a module computes what its class says: no hooks, no forward but one of this file."""
    if "forward" not in module.__dict__:
        return has_written_forward(type(module)) and runs_own_forward(module)
    return has_own_kernel(module) and not (module._forward_hooks or module._forward_pre_hooks)


def has_own_kernel(module: nn.Module) -> bool:
    """Whether `kernelize` has bound a layer of this file to a module."""
    forward = module.__dict__.get("forward")  # a partial of the layer's forward
    return forward is not None and getattr(getattr(forward, "func", None), "__module__", None) == __name__
