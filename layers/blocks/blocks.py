"""Checks that a block's children still are what its kernel computes: exact class, its own forward, no hooks.

A block's kernel computes what its children compute, without calling them. That is right only while
every child is of exactly the expected class, runs the forward that this was written with, and has no
hooks. Adapters (LoRA), quantisation, pruning and observers all change one of these, some of them for a
whole class (`nn.Linear.forward = ...`), so this is asked at every call (a microsecond a child) and the
children are called, as the original does, where the answer is no.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.modules import module as _module

from .activation_code import activation_of_code


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


FORMULAS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "quick_gelu": _quick_gelu,
}
"""The activations that are fused, in plain PyTorch.

relu        max(x, 0)
silu        x sigmoid(x)                                              Source: arXiv 1702.03118
gelu        x (1 + erf(x / sqrt(2))) / 2                              Source: arXiv 1606.08415
gelu_tanh   x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2         Source: arXiv 1606.08415
quick_gelu  x sigmoid(1.702 x)                                        Source: github.com/hendrycks/GELUs
"""

# By name: transformers need not be installed. Its New, Fast and Accurate GELU are one formula.
_OF_TRANSFORMERS: Mapping[str, str] = {
    "SiLUActivation": "silu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "AccurateGELUActivation": "gelu_tanh",
    "QuickGELUActivation": "quick_gelu",
}

_OF_FUNCTIONS: Mapping[Any, str] = {F.relu: "relu", torch.relu: "relu", F.silu: "silu", F.gelu: "gelu"}


def activation_name(activation: Any) -> str | None:
    """The key in FORMULAS of what a module or function computes; None where it is none of them.

    Modules of torch.nn and of transformers by their exact class, those of others by the code of their forward, with no
    hooks and no forward of their own; the functions of torch.nn.functional.
    """
    if not isinstance(activation, nn.Module):
        return _OF_FUNCTIONS.get(activation) if callable(activation) else None
    return written_activation(activation) if runs_own_forward(activation) else None


def written_activation(activation: nn.Module) -> str | None:
    """The key in FORMULAS of what the forward of a module's class computes; None where it is none of them."""
    kind = type(activation)
    if not has_written_forward(kind):
        return None
    if kind is nn.SiLU:
        return "silu"
    if kind is nn.ReLU:
        return "relu"
    if kind is nn.GELU:
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(str(activation.approximate))
    if kind.__module__ == "transformers.activations":
        return _OF_TRANSFORMERS.get(kind.__name__)
    return None if is_compiling() else activation_of_code(kind.forward)


def passes_on(module: nn.Module) -> bool:
    """Whether the forward of a module's class returns what it is given, in eval mode."""
    kind = type(module)
    return kind in (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d) and has_written_forward(kind)


def is_plain_linear(module: Any) -> bool:
    """Whether calling `module` computes F.linear(x, module.weight, module.bias) and nothing else."""
    return type(module) is nn.Linear and has_written_forward(nn.Linear) and runs_own_forward(module)


def is_conv1d(module: Any) -> bool:
    """Whether a module is a Conv1D of transformers: a linear layer whose weight is (in, out)."""
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


def runs_own_forward(module: nn.Module) -> bool:
    """Whether calling a module runs the forward of its class and nothing else."""
    return not (
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
        or "forward" in module.__dict__
        or _module._global_forward_pre_hooks
        or _module._global_forward_hooks
        or _module._global_backward_pre_hooks
        or _module._global_backward_hooks
    )


def has_written_forward(kind: type[nn.Module]) -> bool:
    """Whether a class has the forward that its module defines, and none that somebody put in its place."""
    return is_compiling() or has_written_forward_now(kind)


def has_written_forward_now(kind: type[nn.Module]) -> bool:
    """As `has_written_forward`, where nothing is being compiled."""
    known, forward = _FORWARDS.get(kind), kind.forward
    if known is None or known[0] is not forward:
        owner = next(base for base in kind.__mro__ if "forward" in vars(base))
        known = _FORWARDS[kind] = (forward, _is_of_module(forward, owner.__module__))
    return known[1]


def _is_of_module(forward: Any, name: str) -> bool:
    """Whether a forward was defined in a module, inside of wrappers that transformers' classes are defined with."""
    while getattr(forward, "__module__", None) == name and _is_wrapper_of_transformers(forward):
        forward = forward.__wrapped__
    return getattr(forward, "__globals__", None) is vars(sys.modules[name])


def _is_wrapper_of_transformers(forward: Any) -> bool:
    wrapped = getattr(forward, "__wrapped__", None)
    place = getattr(forward, "__globals__", {}).get("__name__")
    return wrapped is not None and place in ("transformers.utils.deprecation", "transformers.modeling_layers")


_FORWARDS: dict[type[nn.Module], tuple[Any, bool]] = {}
"""The forward that a class had when it was asked for last, and whether it is the one of its module."""


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether an operation on these would be recorded for backward."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
