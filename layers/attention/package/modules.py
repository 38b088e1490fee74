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
import torch.nn.functional as F
from torch import Tensor, nn

from .blocks import is_plain_linear, needs_gradient, runs_own_forward
from .form import attends_to_another
from .functional import attention, attention_with_sinks
from .projections import project
from .rotation import apply_rotary_pos_emb_interleaved
from .sdpa_of_transformers import OTHER_ARGUMENTS, calls_sdpa, has_no_hooks_but_records, records_weights


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
        is_computed_here(block, hidden, linears, dropout, mask)
        and not (eager and mask is not None and mask.dtype == torch.bool)
        and all(kwargs.get(name) is None for name in OTHER_ARGUMENTS)
        and not kwargs.get("output_attentions")
        and (_runs_eager(block) if eager else calls_sdpa(block.config))
    )


def is_computed_here(
    block: Any, hidden: Tensor, linears: Sequence[Any], dropout: float, mask: Tensor | None
) -> bool:
    """Whether the kernels take these: plain linear layers and tensors that fit, no dropout, no autocast."""
    return (
        type(hidden) is Tensor
        and hidden.dim() == 3
        and hidden.dtype == linears[0].weight.dtype
        and not (block.training and dropout > 0)
        and (mask is None or mask.dim() == 4)
        and all(map(is_plain_linear, linears))
        and not torch.is_autocast_enabled(hidden.device.type)
    )


def output(x: Tensor, linear: nn.Linear) -> Tensor:
    """linear(x)."""
    if needs_gradient(x, linear.weight, linear.bias):
        result: Tensor = linear(x)
        return result
    return project(x, [linear.weight], [linear.bias])[0]


def projections(hidden: Tensor, linears: Sequence[nn.Linear]) -> list[Tensor]:
    """Each linear layer's output."""
    if needs_gradient(hidden, *(p for linear in linears for p in (linear.weight, linear.bias))):
        return [linear(hidden) for linear in linears]
    return project(hidden, [linear.weight for linear in linears], [linear.bias for linear in linears])


def as_heads(x: Tensor, width: int, norm: Any = None) -> Tensor:
    """x (batch, length, heads x width) as (batch, heads, length, width), normed over a head or over all of them."""
    if norm is None:
        return x.unflatten(-1, (-1, width)).transpose(1, 2)
    if norm.weight.numel() == x.shape[-1]:
        normed: Tensor = norm(x)
        return normed.unflatten(-1, (-1, width)).transpose(1, 2)
    normed = norm(x.unflatten(-1, (-1, width)))
    return normed.transpose(1, 2)


def heads(hidden: Tensor, linears: Sequence[nn.Linear], width: int) -> list[Tensor]:
    """Each linear layer's output as (batch, heads, length, width)."""
    return [as_heads(output, width) for output in projections(hidden, linears)]


def attend(
    block: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None = None
) -> Tensor:
    """As transformers' function for "sdpa": (batch, length, heads x width). scale: `block.scaling` where it is None."""
    causal = bool(query.shape[2] > 1 and mask is None and getattr(block, "is_causal", True))
    scale = block.scaling if scale is None else scale
    if mask is None and is_small(query, key):
        result = F.scaled_dot_product_attention(
            query, key, value, is_causal=causal, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
        )
    else:
        result = attention(query, key, value, mask, causal=causal, scale=scale)
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
        result: tuple[Tensor, Tensor | None] = original(block, hidden, attention_mask=mask, **kwargs)
        return result
    query, key, value = heads(hidden, linears[:3], block.head_dim)
    return output(attend(block, query, key, value, mask, scale), out), None


def attend_with_sinks(block: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """The softmax over the keys and a sink of each head, which has no value: (batch, length, heads x width).

    No key hides: the mask says all. block.sinks (heads,).
    """
    result = attention_with_sinks(query, key, value, block.sinks, mask, scale=block.scaling)
    return result.transpose(1, 2).flatten(2)


def attend_softcapped(block: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """The softmax of capped scores, with no key hidden but by the mask: (batch, length, heads x width)."""
    cap = block.attn_logit_softcapping
    result = attention(query, key, value, mask, scale=block.scaling, softcap=cap)
    return result.transpose(1, 2).flatten(2)


def decode(
    block: Any,
    given: tuple[Tensor, tuple[Tensor, Tensor] | None, Tensor | None, Any],
    kwargs: dict[str, Any],
    rotate: Callable[..., tuple[Tensor, Tensor]] | None,
    attend: Callable[..., Tensor] = attend,
    *,
    linears: tuple[nn.Linear, ...] | None = None,
    parts: tuple[int, int, int] | None = None,
    width: int | None = None,
    norms: tuple[Any, Any] | None = None,
    dropout: float | None = None,
    eager: bool = False,
    arguments: tuple[Any, ...] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """A decoder's attention: projections, norms, rotation, cache, attention, projection; else the original's.

    given: hidden states, angles, mask and cache. rotate: None where this block turns nothing. linears: those of
    queries, keys and values and the last one, `block.q_proj` and so on by default; of two, the first computes all
    three: side by side, as wide as `parts` says, or else head by head. width: of a head, `block.head_dim` by default.
    norms: of queries and of keys, each of a head or of all heads at once. dropout: the largest that the block has,
    `block.attention_dropout` by default. eager: see `applies`. arguments: what was given in the order of an original
    that has another one, and gives the cache nothing but keys and values.
    """
    hidden, angles, mask, cache = given
    *inner, out = linears or (block.q_proj, block.k_proj, block.v_proj, block.o_proj)
    width = block.head_dim if width is None else width
    if (
        angles is None
        or not applies(
            block,
            hidden,
            (*inner, out),
            block.attention_dropout if dropout is None else dropout,
            mask,
            kwargs,
            eager=eager,
        )
        or not all(map(_is_norm_of, norms or (), inner, (width, width)))
    ):
        result: tuple[Tensor, Tensor | None] = original(block, *(arguments or given), **kwargs)
        return result
    outputs: Sequence[Tensor] = projections(hidden, inner)
    if parts is not None:
        outputs = outputs[0].split(parts, dim=-1)
    if len(outputs) == 1:
        query, key, value = as_heads(outputs[0], 3 * width).chunk(3, dim=-1)
    else:
        query, key, value = map(as_heads, outputs, (width,) * 3, (*(norms or (None, None)), None))
    if rotate is not None:
        query, key = rotate(query, key, *angles)
    if cache is not None:
        key, value = update(cache, key, value, block, kwargs if arguments is None else None)
    return output(attend(block, query, key, value, mask), out), None


def encode_and_decode(
    block: Any,
    given: tuple[Tensor, Tensor | None, Any, Tensor | None],
    kwargs: dict[str, Any],
    arguments: tuple[Any, ...] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """BART's attention, over the block's own states or over an encoder's, with a cache of each; else the original's.

    given: hidden states, those of an encoder or None, cache and mask. arguments: what the original takes of them, in
    its order, where that is not all.
    """
    hidden, states, cache, mask = given
    linears = (block.q_proj, block.k_proj, block.v_proj, block.out_proj)
    if not (
        applies(block, hidden, linears, block.dropout, mask, kwargs)
        and (states is None or _goes_with(states, hidden))
    ):
        result: tuple[Tensor, Tensor | None] = original(block, *(arguments or given), **kwargs)
        return result
    of_both = cache is not None and hasattr(cache, "is_updated")
    if of_both:
        updated = states is not None and cache.is_updated.get(block.layer_idx)
        own = cache.self_attention_cache if states is None else cache.cross_attention_cache
    else:
        updated, own = False, cache
    width = block.head_dim
    if states is None and not attends_to_another(block):
        query, key, value = heads(hidden, linears[:3], width)
    else:
        query = as_heads(output(hidden, linears[0]), width)
        if not updated:
            source = hidden if states is None else states
            key, value = (as_heads(output(source, linear), width) for linear in linears[1:3])
    if updated:
        layer = own.layers[block.layer_idx]
        key, value = layer.keys, layer.values
    elif own is not None:
        key, value = update(own, key, value, block, kwargs)
        if of_both and states is not None:
            cache.is_updated[block.layer_idx] = True
    return output(attend(block, query, key, value, mask), linears[3]), None


def decode_with_alibi(
    block: Any,
    given: tuple[Tensor, Tensor, Tensor, Tensor | None, Any],
    asked: tuple[bool, bool],
    kwargs: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """Bloom's attention, whose scores have a bias for each key and head; else the original's.

    given: hidden states, what the result is added to, the biases (batch x heads, 1, keys), mask and cache.
    asked: whether the cache and the weights are wanted.
    """
    hidden, residual, biases, mask, cache = given
    linears = (block.query_key_value, block.dense)
    dropout = max(block.hidden_dropout, block.attention_dropout.p)
    if (
        asked[1]
        or block.beta != 1
        or (block.pretraining_tp > 1 and block.slow_but_exact)
        or not is_computed_here(block, hidden, linears, dropout, mask)
        or (mask is not None and mask.dtype == torch.bool)
        or needs_gradient(biases)
        or not runs_own_forward(block.attention_dropout)
    ):
        result: tuple[Tensor, Tensor | None] = original(block, *given, *asked, **kwargs)
        return result
    joined = projections(hidden, linears[:1])[0]
    query, key, value = as_heads(joined, 3 * block.head_dim).chunk(3, dim=-1)
    if cache is not None:
        key, value = update(cache, key, value, block, None)
    biases = biases.view(hidden.shape[0], block.num_heads, 1, -1)
    if mask is not None:
        biases = biases + mask
    context = attention(query, key, value, biases, scale=block.inv_norm_factor)
    return residual + output(context.transpose(1, 2).flatten(2), block.dense), None


def rotate_pairs_in_part(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Turn pairs side by side of the first elements of each head; the first half of cos and sin is that of the pairs.

    q (B, H, L, D), k (B, Hk, L, D), cos and sin (B or 1, L, R) with R <= D: that many are turned (GLM).
    """
    width = cos.shape[-1]
    cos, sin = (angles[..., : width // 2].repeat_interleave(2, dim=-1) for angles in (cos, sin))
    turned = apply_rotary_pos_emb_interleaved(q[..., :width], k[..., :width], cos, sin)
    if width == q.shape[-1]:
        return turned
    return torch.cat((turned[0], q[..., width:]), dim=-1), torch.cat((turned[1], k[..., width:]), dim=-1)


def _goes_with(states: Tensor, hidden: Tensor) -> bool:
    """Whether an encoder's states are of the sequences that hidden states are of."""
    return (
        type(states) is Tensor
        and states.dim() == 3
        and states.dtype == hidden.dtype
        and states.shape[0] == hidden.shape[0]
    )


def _is_norm_of(norm: Any, linear: nn.Linear, width: int) -> bool:
    """Whether a module is a norm with a weight over the width of a head, or over all that a linear layer computes."""
    weight = getattr(norm, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() == 1 and weight.numel() in (width, linear.out_features)


def is_small(query: Tensor, key: Tensor) -> bool:
    """Whether PyTorch's attention is the faster one: so few products that a call costs more than they do."""
    return (
        query.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and query.numel() * key.shape[2] < _SMALL
        and not needs_gradient(query, key)
    )


_SMALL = 1 << 18
"""Products of queries and keys: measured on Zen 5, one thread, for 1 to 64 queries; below, ours costs 9 us more."""


def update(
    cache: Any, key: Tensor, value: Tensor, block: Any, kwargs: dict[str, Any] | None
) -> tuple[Tensor, Tensor]:
    """All keys and values, with those of this call added to a cache, which is given what the block gives it.

    kwargs: None for a block that gives it nothing of what else it was called with.
    """
    more = {"kwargs": kwargs} if kwargs is not None and _gives_caches_kwargs() else {}
    found: tuple[Tensor, Tensor] = cache.update(key, value, block.layer_idx, **more)
    return found


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
    return has_no_hooks_but_records(block) and not records_weights()
