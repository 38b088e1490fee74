"""The layers of this repository. `self` is the block whose forward they replace.

The block's children are not called, so they must be what they were: plain Linears, a known
activation, no hooks. Where a child is anything else (an adapter, a quantised layer), the children
are called one after the other, as the block itself does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .blocks import activation_name, is_plain_linear
from .feed_forward import gated_mlp, joined_gated_mlp, mlp

# Pairs of names under which blocks keep their first and second Linear.
_PAIRS = (
    ("fc1", "fc2"),
    ("up_proj", "down_proj"),
    ("linear_fc1", "linear_fc2"),
    ("lin1", "lin2"),
    ("linear1", "linear2"),
    ("dense_h_to_4h", "dense_4h_to_h"),
)
_ACTIVATIONS = ("activation_fn", "act_fn", "act", "activation")


class GatedMLP(nn.Module):
    """y = down_proj(act_fn(gate_proj(x)) * up_proj(x)): the feed-forward block of Llama and its kin.

    x (..., H) -> (..., H). Source: arXiv 2002.05202.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear
    act_fn: Any

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up, down = self.gate_proj, self.up_proj, self.down_proj
        name = activation_name(self.act_fn)
        if name is None or not (is_plain_linear(gate) and is_plain_linear(up) and is_plain_linear(down)):
            output: torch.Tensor = down(self.act_fn(gate(x)) * up(x))
            return output
        return gated_mlp(x, gate.weight, up.weight, down.weight, gate.bias, up.bias, down.bias, name)


class JoinedGatedMLP(nn.Module):
    """y = down_proj(up * activation_fn(gate)), gate and up the halves of gate_up_proj(x): that of Phi 3 and GLM 4.

    hidden_states (..., H) -> (..., H). Source: arXiv 2002.05202.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    gate_up_proj: nn.Linear
    down_proj: nn.Linear
    activation_fn: Any

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        both, down = self.gate_up_proj, self.down_proj
        name = activation_name(self.activation_fn)
        if name is None or not (is_plain_linear(both) and is_plain_linear(down)):
            gate, up = both(hidden_states).chunk(2, dim=-1)
            output: torch.Tensor = down(up * self.activation_fn(gate))
            return output
        return joined_gated_mlp(hidden_states, both.weight, down.weight, both.bias, down.bias, name)


class MLP(nn.Module):
    """y = fc2(activation_fn(fc1(x))): the feed-forward block of CLIP, ViT, GPT-NeoX and their kin.

    hidden_states (..., H) -> (..., H). The Linears may also be called up_proj and down_proj,
    linear_fc1 and linear_fc2, lin1 and lin2, linear1 and linear2, or dense_h_to_4h and dense_4h_to_h;
    the activation act_fn, act or activation. The block must have no dropout.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        first, activation, second = _children(self)
        name = activation_name(activation)
        if name is None or not (is_plain_linear(first) and is_plain_linear(second)):
            output: torch.Tensor = second(activation(first(hidden_states)))
            return output
        return mlp(hidden_states, first.weight, second.weight, first.bias, second.bias, name)


def _children(block: nn.Module) -> tuple[Any, Any, Any]:
    """(first Linear, activation, second Linear) of a block. Raises AttributeError without them."""
    held = block._modules
    for first, second in _PAIRS:
        if first in held and second in held:
            for name in _ACTIVATIONS:
                if name in held or name in block.__dict__:  # some keep a function, which is no child
                    return held[first], getattr(block, name), held[second]
    raise AttributeError(
        f"{type(block).__name__} has no two Linears and activation under the names that MLP knows: "
        f"{', '.join('/'.join(pair) for pair in _PAIRS)}; {', '.join(_ACTIVATIONS)}"
    )
