"""The layers of this repository. `self` is the module whose forward they replace."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import reference
from .blocks import activation_name
from .functional import clamped_experts, gated_experts, top_k_softmax


class GatedExperts(nn.Module):
    """All experts of a mixture at once: transformers' MixtralExperts, Qwen3MoeExperts, DeepseekV3Experts.

    hidden_states (T, H); top_k_index (T, k) int64; top_k_weights (T, k). The experts' weights are
    gate_up_proj (E, 2 I, H) and down_proj (E, H, I). A token's experts are summed in float32 and rounded
    once. Under autocast products run in its dtype, as torch's own.
    """

    has_backward: bool = True
    can_torch_compile: bool = True
    gate_up_proj: Tensor
    down_proj: Tensor
    act_fn: Any

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        name, gate_up, down = activation_name(self.act_fn), self.gate_up_proj, self.down_proj
        x, kind = hidden_states, hidden_states.device.type
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            x, gate_up, down = x.to(dtype), gate_up.to(dtype), down.to(dtype)
        if name is None or x.dtype != gate_up.dtype:  # an activation that is another by now is called
            return reference.gated_experts(x, gate_up, down, top_k_index, top_k_weights, name or self.act_fn)
        return gated_experts(x, gate_up, down, top_k_index, top_k_weights, name).to(hidden_states.dtype)


class ClampedExperts(nn.Module):
    """All experts of a mixture at once, with biases and a clamped gate: transformers' GptOssExperts.

    hidden_states (T, H); router_indices (T, k) int64; routing_weights (T, k). The experts' weights are
    gate_up_proj (E, H, 2 I), a gate and an up in turn, and down_proj (E, I, H). A token's experts are summed
    in float32 and rounded once. Under autocast products run in its dtype, as torch's own.
    """

    has_backward: bool = True
    can_torch_compile: bool = True
    gate_up_proj: Tensor
    gate_up_proj_bias: Tensor
    down_proj: Tensor
    down_proj_bias: Tensor
    alpha: float
    limit: float

    def forward(
        self,
        hidden_states: Tensor,
        router_indices: Tensor | None = None,
        routing_weights: Tensor | None = None,
    ) -> Tensor:
        if router_indices is None or routing_weights is None:
            raise TypeError(
                "ClampedExperts: expected the router_indices and routing_weights of a router, got None"
            )
        weights = (self.gate_up_proj, self.gate_up_proj_bias, self.down_proj, self.down_proj_bias)
        x, kind = hidden_states, hidden_states.device.type
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            x, weights = x.to(dtype), tuple(weight.to(dtype) for weight in weights)  # type: ignore[assignment]
        return clamped_experts(
            x, *weights, router_indices, routing_weights, alpha=self.alpha, limit=self.limit
        ).to(hidden_states.dtype)


class TopKRouter(nn.Module):
    """(logits, scores, experts) of each token, scores summing to 1, in float32: transformers' MixtralTopKRouter.

    hidden_states (..., H); weight (E, H); top_k experts each. Returns (T, E), (T, k) and (T, k) int64.
    """

    has_backward: bool = True
    can_torch_compile: bool = True
    weight: Tensor
    top_k: int
    hidden_dim: int

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = F.linear(hidden_states.reshape(-1, self.hidden_dim), self.weight)
        score, index = top_k_softmax(logits, self.top_k)
        return logits, score, index


class TopKRouterRounded(nn.Module):
    """`TopKRouter` with scores in logits' dtype, renormalised where `norm_topk_prob`: Qwen 2 and 3 MoE, OLMoE."""

    has_backward: bool = True
    can_torch_compile: bool = True
    weight: Tensor
    top_k: int
    hidden_dim: int

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = F.linear(hidden_states.reshape(-1, self.hidden_dim), self.weight)
        renormalise = bool(getattr(self, "norm_topk_prob", True))
        score, index = top_k_softmax(logits, self.top_k, renormalise=renormalise, rounded=True)
        return logits, score, index
