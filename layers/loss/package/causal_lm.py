"""The end of a causal language model of transformers: hidden states to loss, logits only where they are asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .blocks import is_plain_linear
from .functional import cross_entropy, linear_cross_entropy

_INPUTS = ("input_ids", "attention_mask", "position_ids", "cache", "inputs_embeds", "use_cache")


def causal_lm(
    model: Any,
    inputs: Sequence[Any],
    labels: Tensor | None,
    logits_to_keep: Any,
    kwargs: dict[str, Any],
    vocab_size: int,
    softcap: float | None = None,
    *,
    routed: bool = False,
) -> Any:
    """The forward of a causal language model: its decoder, then loss and logits of `linear_loss`.

    inputs: what goes to the decoder, in the order of `_INPUTS`. kwargs: what else the call was given; it goes to the
    decoder and to the loss. routed: the result has the router's logits as well.
    """
    return_dict, skip_logits = kwargs.pop("return_dict", None), kwargs.pop("skip_logits", None)
    outputs = decoded(model, inputs, kwargs)
    loss, logits = linear_loss(
        model, vocab_size, outputs, labels, logits_to_keep, skip_logits, softcap, kwargs
    )
    more = {"router_logits": outputs.router_logits} if routed else {}
    kind = "MoeCausalLMOutputWithPast" if routed else "CausalLMOutputWithPast"
    return outputs_of(model, kind, return_dict, outputs, loss=loss, logits=logits, **more)


def decoded(model: Any, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What the model's decoder gives. inputs: in the order of `_INPUTS`."""
    given = dict(zip(_INPUTS, inputs, strict=True))
    given[_name_of_cache()] = given.pop("cache")
    return model.model(**given, **kwargs)


def linear_loss(
    model: Any,
    vocab_size: int,
    outputs: Any,
    labels: Tensor | None,
    logits_to_keep: Any,
    skip_logits: bool | None,
    softcap: float | None,
    kwargs: dict[str, Any],
) -> tuple[Tensor | None, Tensor | None]:
    """(loss or None, logits or None), as transformers' ForCausalLMLoss has them.

    vocab_size: what the model passes to its loss function.
    skip_logits None: where the model is in training and has labels.
    """
    hidden = outputs.last_hidden_state
    head = model.lm_head
    fused = labels is not None and _is_fusable(model, vocab_size, head, hidden, logits_to_keep)
    if fused and (model.training if skip_logits is None else skip_logits):
        assert labels is not None
        targets, reduction, share = _targets(labels, kwargs)
        loss = linear_cross_entropy(
            hidden,
            head.weight,
            targets.to(hidden.device),
            head.bias,
            ignore_index=kwargs.get("ignore_index", -100),
            softcap=softcap,
            reduction=reduction,
        )
        return (loss if share is None else loss / share), None
    logits = head(_positions_to_keep(hidden, logits_to_keep))
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    if labels is None:
        return None, logits
    if fused:
        targets, reduction, share = _targets(labels, kwargs)
        index = kwargs.get("ignore_index", -100)
        loss = cross_entropy(logits, targets.to(logits.device), ignore_index=index, reduction=reduction)
        return (loss if share is None else loss / share), logits
    return model.loss_function(logits=logits, labels=labels, vocab_size=vocab_size, **kwargs), logits


def outputs_of(model: Any, kind: str, return_dict: bool | None, outputs: Any, **more: Any) -> Any:
    """The result record, or the tuple that `return_dict=False` (of the call or the config) asks for."""
    name = _name_of_cache()
    result = _transformers("modeling_outputs", kind)(
        **{name: getattr(outputs, name)},
        hidden_states=outputs.hidden_states,
        attentions=outputs.attentions,
        **more,
    )
    wanted = model.config.return_dict if return_dict is None else return_dict
    return result if wanted else result.to_tuple()


def _name_of_cache() -> str:
    """Of arguments and results: transformers 5.24 renamed it."""
    is_renamed = hasattr(_transformers("modeling_outputs", "BaseModelOutputWithPast"), "cache")
    return "cache" if is_renamed else "past_key_values"


def _is_fusable(model: Any, vocab_size: int, head: Any, hidden: Tensor, logits_to_keep: Any) -> bool:
    """Whether the loss is ForCausalLMLoss of a plain Linear's output at every position."""
    return (
        isinstance(logits_to_keep, int)
        and logits_to_keep == 0
        and is_plain_linear(head)
        and head.weight.dim() == 2
        and head.weight.shape[0] == vocab_size
        and model.loss_function is _transformers("loss.loss_utils", "ForCausalLMLoss")
        and (head.weight.dtype == hidden.dtype or torch.is_autocast_enabled(hidden.device.type))
    )


def _positions_to_keep(hidden: Tensor, logits_to_keep: Any) -> Tensor:
    """Those whose logits are asked for, as the installed transformers has it."""
    of_release = getattr(sys.modules["transformers.modeling_utils"], "slice_logits_to_keep", None)
    if of_release is not None:
        kept: Tensor = of_release(hidden, logits_to_keep)
        return kept
    places = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
    return hidden[:, places, :]


def _transformers(module: str, name: str) -> Any:
    """An object of transformers, of whose models this is a part: what it needs is loaded."""
    return getattr(sys.modules[f"transformers.{module}"], name)


def _targets(labels: Tensor, kwargs: dict[str, Any]) -> tuple[Tensor, str, Any]:
    """(the class of each position, how losses are reduced, what their sum is divided by)."""
    targets = kwargs.get("shift_labels")
    if targets is None:
        targets = F.pad(labels, (0, 1), value=kwargs.get("ignore_index", -100))[..., 1:].contiguous()
    items = kwargs.get("num_items_in_batch")
    if items is None:
        return targets, "mean", None
    return targets, "sum", items.to(targets.device) if isinstance(items, Tensor) else items
