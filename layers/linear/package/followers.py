"""What follows a linear layer and is computed with it: see kernels_hub/kernelization/chains.py.

An activation, and dropouts, which do nothing in eval mode.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from .blocks import has_written_forward, passes_on, written_activation
from .fused_linear import linear


def count(module: nn.Module, followers: Sequence[nn.Module]) -> int:
    """How many of the modules that get a layer's result, one after the other, are computed with it."""
    if type(module) is not nn.Linear or written_activation(followers[0]) is None:
        return 0
    others = enumerate(followers[1:], start=1)
    return next((index for index, other in others if not passes_on(other)), len(followers))


def gains_as(module: nn.Module, follower: nn.Module) -> str | None:
    """The layer as which a linear layer was measured with an activation that saves a pass over its result."""
    return "LinearActivation" if written_activation(follower) in _IN_THE_PRODUCT else None


_IN_THE_PRODUCT = ("silu", "gelu", "gelu_tanh")


def takes(module: nn.Module, input: Tensor) -> bool:
    """Whether a call may be one for `forward`."""
    return True


def forward(module: nn.Module, input: Tensor, followers: Sequence[nn.Module]) -> Tensor | None:
    """activation(x W^T + b); x (..., in_features). None where a follower is not what was counted."""
    activation, *others = followers
    name = written_activation(activation)
    if name is None or type(module) is not nn.Linear or not has_written_forward(nn.Linear):
        return None
    for other in others:
        if other.training or not passes_on(other):
            return None
    return linear(input, module.weight, module.bias, name)
