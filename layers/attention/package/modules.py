"""What an attention block of transformers computes, on this repository's kernels.

A block's forward is replaced as a whole, so its children are not called. That is right only while each
is what it was, and the block calls PyTorch's scaled_dot_product_attention through transformers' own
function, with nothing that only the original knows of: a paged cache, a bias by positions, dropout.
Everything else is left to the forward of the block's class.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .blocks import is_plain_linear, needs_gradient
from .functional import attention, attention_with_sinks
from .projections import project

# Arguments of a block that change what transformers' function for "sdpa" computes.
_OTHERS = ("is_causal", "position_bias", "cache", "softcap")

_SDPA = "transformers.integrations.sdpa_attention"


def original(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """What the forward of the block's class gives."""
    return type(block).forward(block, *args, **kwargs)


def applies(
    block: Any,
    hidden: Tensor,
    linears: Sequence[Any],
    dropout: float,
    mask: Tensor | None,
    kwargs: dict[str, Any],
    eager: bool = False,
) -> bool:
    """Whether the kernels compute what the block would. eager: in the place of its own formula, not of PyTorch's."""
    return (
        type(hidden) is Tensor
        and hidden.dim() == 3
        and hidden.dtype == linears[0].weight.dtype
        and not (block.training and dropout > 0)
        and (mask is None or (mask.dim() == 4 and not (eager and mask.dtype == torch.bool)))
        and all(kwargs.get(name) is None for name in _OTHERS)
        and not kwargs.get("output_attentions")
        and all(map(is_plain_linear, linears))
        and (_runs_eager(block) if eager else _calls_sdpa(block.config))
        and not torch.is_autocast_enabled(hidden.device.type)
    )


def output(x: Tensor, linear: nn.Linear) -> Tensor:
    """linear(x)."""
    if needs_gradient(x, linear.weight, linear.bias):
        result: Tensor = linear(x)
        return result
    return project(x, [linear.weight], [linear.bias])[0]


def heads(hidden: Tensor, linears: Sequence[nn.Linear], width: int) -> list[Tensor]:
    """Each linear layer's output as (batch, heads, length, width)."""
    if needs_gradient(hidden, *(p for linear in linears for p in (linear.weight, linear.bias))):
        outputs = [linear(hidden) for linear in linears]
    else:
        outputs = project(hidden, [linear.weight for linear in linears], [linear.bias for linear in linears])
    return [output.unflatten(-1, (-1, width)).transpose(1, 2) for output in outputs]


def attend(
    block: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None = None
) -> Tensor:
    """As transformers' function for "sdpa": (batch, length, heads x width). scale: `block.scaling` where it is None."""
    causal = bool(query.shape[2] > 1 and mask is None and getattr(block, "is_causal", True))
    result = attention(
        query, key, value, mask, causal=causal, scale=block.scaling if scale is None else scale
    )
    return result.transpose(1, 2).flatten(2)


def encode(
    block: Any,
    hidden: Tensor,
    mask: Tensor | None,
    kwargs: dict[str, Any],
    out: nn.Linear,
    dropout: float,
    scale: float | None = None,
) -> tuple[Tensor, Tensor | None]:
    """An encoder's attention without a cache: projections, attention, projection by `out`; else the original's."""
    linears = (block.q_proj, block.k_proj, block.v_proj, out)
    if not applies(block, hidden, linears, dropout, mask, kwargs):
        result: tuple[Tensor, Tensor | None] = original(block, hidden, mask, **kwargs)
        return result
    query, key, value = heads(hidden, linears[:3], block.head_dim)
    return output(attend(block, query, key, value, mask, scale), out), None


def attend_with_sinks(block: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """The softmax over the keys and a sink of each head, which has no value: (batch, length, heads x width).

    No key hides: the mask says all. block.sinks (heads,).
    """
    result = attention_with_sinks(query, key, value, block.sinks, mask, scale=block.scaling)
    return result.transpose(1, 2).flatten(2)


def decode(
    block: Any,
    given: tuple[Tensor, tuple[Tensor, Tensor] | None, Tensor | None, Any],
    kwargs: dict[str, Any],
    rotate: Callable[..., tuple[Tensor, Tensor]],
    attend: Callable[..., Tensor],
    *,
    eager: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """A decoder's attention: projections, rotation, cache, attention, projection; else the original's.

    given: hidden states, angles, mask and cache. eager: as of `applies`.
    """
    hidden, angles, mask, cache = given
    linears = (block.q_proj, block.k_proj, block.v_proj, block.o_proj)
    if angles is None or not applies(
        block, hidden, linears, block.attention_dropout, mask, kwargs, eager=eager
    ):
        result: tuple[Tensor, Tensor | None] = original(block, *given, **kwargs)
        return result
    query, key, value = heads(hidden, linears[:3], block.head_dim)
    query, key = rotate(query, key, *angles)
    if cache is not None:
        more = {"kwargs": kwargs} if _gives_caches_kwargs() else {}
        key, value = cache.update(key, value, block.layer_idx, **more)
    return output(attend(block, query, key, value, mask), block.o_proj), None


def _gives_caches_kwargs() -> bool:
    """Whether blocks give a cache what else they were called with: from transformers 5.24 on.

    That is the release in which arguments and results `past_key_values` became `cache`.
    """
    outputs = sys.modules.get("transformers.modeling_outputs")
    return hasattr(getattr(outputs, "BaseModelOutputWithPast", None), "cache")


def _runs_eager(block: Any) -> bool:
    """Whether the block runs its own formula, and nobody asks for its weights, which no kernel has."""
    if block.config._attn_implementation != "eager" or getattr(block.config, "output_attentions", False):
        return False
    if torch.compiler.is_compiling():
        return True
    if any(getattr(hook, "__name__", "") != _RECORDS for hook in block._forward_hooks.values()):
        return False
    capturing = sys.modules.get("transformers.utils.output_capturing")
    collected = None if capturing is None else capturing._active_collector.get()
    return not (collected and any("attentions" in name for name in collected))


_RECORDS = "output_capturing_hook"
"""The hook by which transformers records outputs, and weights where it is asked to."""


def _calls_sdpa(config: Any) -> bool:
    if config._attn_implementation != "sdpa":
        return False
    if torch.compiler.is_compiling():
        return True
    # Somebody may have put another function in its place.
    functions = sys.modules["transformers.modeling_utils"].ALL_ATTENTION_FUNCTIONS
    function = functions["sdpa"]
    return bool(function.__module__ == _SDPA and function.__name__ == "sdpa_attention_forward")
