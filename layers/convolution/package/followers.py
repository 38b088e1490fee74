"""What follows a convolution and is computed with it: see kernels_hub/kernelization/chains.py.

A batch norm by its running statistics, then an activation, and what does nothing in eval mode: made of each part of the
result while it lies in a cache, of calls that `kernels.at_once` is for. Those are images in planes, lines, and
channels_last ones with a filter a channel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from .blocks import has_written_forward, passes_on, written_activation
from .direct import is_unwatched
from .kernels import at_once

_NORMS: dict[type[nn.Module], type[nn.Module]] = {nn.Conv2d: nn.BatchNorm2d, nn.Conv1d: nn.BatchNorm1d}
_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU6: "relu6", nn.Hardswish: "hardswish"}
"""Those that a convolution has beside the ones of every layer."""


_NormTensors = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""Weight, bias, mean and variance."""


class Following(NamedTuple):
    """The norm's tensors, each None without one, its eps, and the activation after it."""

    tensors: _NormTensors
    eps: float
    activation: str


_NO_NORM = (None, None, None, None)


def count(module: nn.Module, followers: Sequence[nn.Module]) -> int:
    """How many of the modules that get a convolution's result, one after the other, are computed with it."""
    if at_once is None or type(module) not in _NORMS:
        return 0
    norms = activations = counted = 0
    for index, follower in enumerate(followers, start=1):
        if _is_norm(module, follower) and not norms and not activations:
            norms, counted = 1, index
        elif _activation(follower) is not None and not activations:
            activations, counted = 1, index
        elif passes_on(follower):
            counted = index if counted else 0
        else:
            break
    return counted


def takes(module: nn.Module, input: Tensor) -> bool:
    """Whether a call may be one for `forward`: of so few pixels, as those of squeeze and excitation, it is not."""
    if not (input.is_contiguous() or module.groups == module.in_channels):
        return False
    stride: tuple[int, ...] = module.stride  # type: ignore[assignment]
    return input.dim() > 2 and math.prod(input.shape[2:]) >= _LEAST_PIXELS * math.prod(stride)


_LEAST_PIXELS = 8


def forward(module: nn.Module, input: Tensor, followers: Sequence[nn.Module]) -> Tensor | None:
    """activation(norm(convolution(x))); x (N, C, H, W) or (N, C, L). None for calls that are not for this kernel."""
    if not isinstance(module, nn.Conv2d | nn.Conv1d) or not has_written_forward(type(module)):
        return None
    weight, bias = module.weight, module.bias
    stride, padding, dilation = module.stride, module.padding, module.dilation
    if at_once is None or type(padding) is not tuple or module.padding_mode != "zeros":
        return None
    following = _following(module, followers)
    if following is None or not is_unwatched(("CPU",), input, weight, bias, *following.tensors):
        return None
    return at_once(input, weight, bias, stride, padding, dilation, module.groups, following)


def _following(module: nn.Module, followers: Sequence[nn.Module]) -> Following | None:
    """What modules compute; None where one of them is not what is computed here, or trains."""
    tensors: _NormTensors = _NO_NORM
    eps, activation = 0.0, "none"
    for follower in followers:
        if follower.training:
            return None
        computed: nn.Module | None = follower
        if _is_norm(module, follower):
            if tensors is not _NO_NORM or activation != "none":
                return None
            held, kept = follower._parameters, follower._buffers
            tensors = (held["weight"], held["bias"], kept["running_mean"], kept["running_var"])
            if tensors[2] is None or tensors[3] is None:  # then a norm is by the statistics of its input
                return None
            eps = float(follower.eps)  # type: ignore[arg-type]
            is_plain = type(follower) is _NORMS[type(module)]  # whose forward calls no module that it holds
            computed = None if is_plain else follower._modules["act"]
        name = None if computed is None else _activation(computed)
        if name is not None and activation == "none":
            activation = name
        elif computed is not None and (name is not None or not passes_on(computed)):
            return None
    return Following(tensors, eps, activation)


def _is_norm(module: nn.Module, follower: nn.Module) -> bool:
    """Whether a module is the batch norm of a convolution's results, or one of timm with an activation in it."""
    kind = type(follower)
    if kind is not _NORMS[type(module)]:
        is_timms = kind.__name__ == "BatchNormAct2d" and kind.__module__ == "timm.layers.norm_act"
        drop, activation = follower._modules.get("drop"), follower._modules.get("act")
        if not is_timms or type(module) is not nn.Conv2d or drop is None or activation is None:
            return False
        if not passes_on(drop) or not (passes_on(activation) or _activation(activation)):
            return False
    return has_written_forward(kind)


def _activation(follower: nn.Module) -> str | None:
    kind = type(follower)
    if (name := _ACTIVATIONS.get(kind)) is not None:
        return name if has_written_forward(kind) else None
    return written_activation(follower)
