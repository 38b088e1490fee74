"""The layers of this repository. `self` is the module whose forward they replace."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .blocks import activation_name, is_plain_linear
from .fused_linear import linear
from .transposed_linear import transposed_linear


class Linear(nn.Module):
    """y = x W^T + b: torch.nn.Linear. input (..., in_features); weight (out_features, in_features)."""

    has_backward: bool = True
    can_torch_compile: bool = True

    weight: torch.Tensor
    bias: torch.Tensor | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear(input, self.weight, self.bias)


class Conv1D(nn.Module):
    """y = x W + b: Conv1D of transformers, the linear layer of GPT-2. x (..., nx); weight (nx, nf); bias (nf,)."""

    has_backward: bool = True
    can_torch_compile: bool = True

    weight: torch.Tensor
    bias: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return transposed_linear(x, self.weight, self.bias)


class LinearActivation(nn.Module):
    """y = activation(x W^T + b): a block of one Linear, `dense`, and `intermediate_act_fn`.

    Such as the Intermediate of BERT, ViT and their kin. hidden_states (..., in_features). ReLU, SiLU
    and the GELUs are fused; with another activation, or a `dense` that is no plain Linear any more,
    the two are called one after the other.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    dense: nn.Linear
    intermediate_act_fn: Any

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        dense, activation = self.dense, self.intermediate_act_fn
        name = activation_name(activation)
        if name is None or not is_plain_linear(dense):
            output: torch.Tensor = activation(dense(hidden_states))
            return output
        return linear(hidden_states, dense.weight, dense.bias, name)
