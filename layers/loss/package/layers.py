"""The layers of this repository. `self` is the module whose forward they replace."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .causal_lm import causal_lm, decoded, linear_loss, outputs_of
from .functional import cross_entropy

_Forward = TypeVar("_Forward", bound=Callable[..., Any])


def _runs_unbuilt(forward: _Forward) -> _Forward:
    """Have a forward run from the first call, by its reference while there is no native code: the original would hold
    the logits, and give them."""
    forward.runs_unbuilt = True  # type: ignore[attr-defined]
    return forward


class CrossEntropyLoss(nn.Module):
    """torch.nn.CrossEntropyLoss with class indices and without class weights.

    input (N, C) or (C,), float32, bfloat16 or float16; target (N,) or () int64. Computed in float32,
    returned in input's dtype (in float32 under autocast), as torch's own does. Class probabilities,
    class weights and more dimensions go to torch's own.
    """

    has_backward: bool = True
    can_torch_compile: bool = True
    weight: Tensor | None
    ignore_index: int
    label_smoothing: float
    reduction: str

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if (
            self.weight is not None
            or target.dtype != torch.int64
            or input.dim() not in (1, 2)
            or input.shape[:-1] != target.shape
        ):
            return F.cross_entropy(
                input,
                target,
                weight=self.weight,
                ignore_index=self.ignore_index,
                reduction=self.reduction,
                label_smoothing=self.label_smoothing,
            )
        loss = cross_entropy(
            input,
            target,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction=self.reduction,
        )
        return loss if torch.is_autocast_enabled(input.device.type) else loss.to(input.dtype)


class CausalLM(nn.Module):
    """A causal language model whose training step never holds its logits: transformers' LlamaForCausalLM.

    Arguments and results are the original's, but that with labels in training `logits` is None: the
    loss is computed from the hidden states. `skip_logits=False` in the call asks for logits all the
    same, `skip_logits=True` leaves them out in evaluation too. Where the model's head is no plain
    Linear any more (an adapter, a hook, sharding), where its loss is another or positions are left out
    by `logits_to_keep`, logits are computed and given to the model's own loss function.
    """

    has_backward: bool = True
    can_torch_compile: bool = True
    model: Any
    config: Any

    @_runs_unbuilt
    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Any = None,
        labels: Any = None,
        use_cache: Any = None,
        logits_to_keep: Any = 0,
        **kwargs: Any,
    ) -> Any:
        inputs = (input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache)
        return causal_lm(self, inputs, labels, logits_to_keep, kwargs, self.config.vocab_size)


class CausalLMSoftcapped(nn.Module):
    """`CausalLM` with logits capped by config.final_logit_softcapping: Gemma 2, Gemma 3."""

    has_backward: bool = True
    can_torch_compile: bool = True
    model: Any
    config: Any
    vocab_size: int

    @_runs_unbuilt
    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Any = None,
        labels: Any = None,
        use_cache: Any = None,
        logits_to_keep: Any = 0,
        **kwargs: Any,
    ) -> Any:
        inputs = (input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache)
        return causal_lm(
            self, inputs, labels, logits_to_keep, kwargs, self.vocab_size, self.config.final_logit_softcapping
        )


class MoeCausalLM(nn.Module):
    """`CausalLM` whose result also has the router's logits: DeepSeek V3, GLM 4 MoE."""

    has_backward: bool = True
    can_torch_compile: bool = True
    model: Any
    config: Any

    @_runs_unbuilt
    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Any = None,
        labels: Any = None,
        use_cache: Any = None,
        logits_to_keep: Any = 0,
        **kwargs: Any,
    ) -> Any:
        inputs = (input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache)
        return causal_lm(self, inputs, labels, logits_to_keep, kwargs, self.config.vocab_size, routed=True)


class MoeCausalLMBalanced(nn.Module):
    """`MoeCausalLM` with a loss that balances the experts: Mixtral, Qwen 3 MoE."""

    has_backward: bool = True
    can_torch_compile: bool = True
    model: Any
    config: Any
    vocab_size: int
    num_experts: int
    num_experts_per_tok: int
    router_aux_loss_coef: float

    @_runs_unbuilt
    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Any = None,
        labels: Any = None,
        use_cache: Any = None,
        output_router_logits: Any = None,
        logits_to_keep: Any = 0,
        **kwargs: Any,
    ) -> Any:
        return_dict, skip_logits = kwargs.pop("return_dict", None), kwargs.pop("skip_logits", None)
        if output_router_logits is None:
            output_router_logits = self.config.output_router_logits
        inputs = (input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache)
        outputs = decoded(self, inputs, {"output_router_logits": output_router_logits, **kwargs})
        loss, logits = linear_loss(
            self, self.vocab_size, outputs, labels, logits_to_keep, skip_logits, None, kwargs
        )
        balance = None
        if output_router_logits:
            balancing: Any = vars(sys.modules[type(self).__module__])["load_balancing_loss_func"]
            balance = balancing(
                outputs.router_logits, self.num_experts, self.num_experts_per_tok, attention_mask
            )
            if loss is not None:
                loss = loss + self.router_aux_loss_coef * balance.to(loss.device)
        more = {"aux_loss": balance, "router_logits": outputs.router_logits}
        return outputs_of(
            self, "MoeCausalLMOutputWithPast", return_dict, outputs, loss=loss, logits=logits, **more
        )
