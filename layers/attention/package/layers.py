"""The layers of this repository: PyTorch's function, and whole attention blocks of transformers.

`self` of a block is the module whose forward it replaces. Where the block is not what it was (a child
with hooks, an adapter, another attention implementation, dropout while training), or is called with
what only its own forward knows, that one runs.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from . import modules
from .functional import attention
from .rotation import (
    apply_rotary_pos_emb,
    apply_rotary_pos_emb_cast_back,
    apply_rotary_pos_emb_interleaved,
    apply_rotary_pos_emb_of_halves,
)


class scaled_dot_product_attention(nn.Module):  # noqa: N801 - the name of the function
    """torch.nn.functional.scaled_dot_product_attention, with its arguments.

    query (..., H, Lq, D), key (..., Hk, Lk, D), value (..., Hk, Lk, Dv) -> (..., H, Lq, Dv). Inputs of
    other than four dims, and dropout, run on PyTorch's.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        shared = query.dim() == 4 and key.dim() == 4 and query.shape[1] != key.shape[1]
        if (
            dropout_p > 0
            or not query.dim() == key.dim() == value.dim() == 4
            or query.shape[0] != key.shape[0]
            or key.shape[:3] != value.shape[:3]
            or (is_causal and attn_mask is not None)
            or (shared and not enable_gqa)
        ):
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        return attention(query, key, value, attn_mask, causal=is_causal, scale=scale)


class RotaryAttention(nn.Module):
    """Llama's attention: projections, rotary embedding of q and k, cache, attention, projection.

    hidden_states (B, L, hidden) -> ((B, L, hidden), None). The heads' width is `self.head_dim`. StarCoder2's drops of
    the result, while training, what `self.residual_dropout` says.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    o_proj: nn.Linear
    head_dim: int
    layer_idx: int
    attention_dropout: float

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        given = (hidden_states, position_embeddings, attention_mask, past_key_values)
        dropout = max(self.attention_dropout, getattr(self, "residual_dropout", 0.0))
        return modules.decode(self, given, kwargs, apply_rotary_pos_emb, dropout=dropout)


class NormedRotaryAttention(RotaryAttention):
    """Qwen 3's and Gemma 3's attention: `RotaryAttention` with norms of queries and keys before they are turned.

    hidden_states (B, L, hidden) -> ((B, L, hidden), None). The norms are modules of their own, which
    this calls: over the width of a head, or over all heads at once.
    """

    q_norm: nn.Module
    k_norm: nn.Module

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        given = (hidden_states, position_embeddings, attention_mask, past_key_values)
        norms = (self.q_norm, self.k_norm)
        return modules.decode(self, given, kwargs, apply_rotary_pos_emb, norms=norms)


class NormedRotaryAttentionCastBack(NormedRotaryAttention):
    """OLMo 2's attention: `NormedRotaryAttention`, turned in the dtype of the angles.

    hidden_states (B, L, hidden) -> ((B, L, hidden), None).
    """

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        given = (hidden_states, position_embeddings, attention_mask, past_key_values)
        norms = (self.q_norm, self.k_norm)
        return modules.decode(self, given, kwargs, apply_rotary_pos_emb_cast_back, norms=norms)


class JoinedRotaryAttention(nn.Module):
    """Phi 3's attention: `RotaryAttention` whose queries, keys and values one linear layer computes, side by side.

    hidden_states (B, L, hidden) -> ((B, L, hidden), None).
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    qkv_proj: nn.Linear
    o_proj: nn.Linear
    config: Any
    num_key_value_heads: int
    head_dim: int
    layer_idx: int
    attention_dropout: float

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        given = (hidden_states, position_embeddings, attention_mask, past_key_values)
        shared = self.num_key_value_heads * self.head_dim
        parts = (self.config.num_attention_heads * self.head_dim, shared, shared)
        linears = (self.qkv_proj, self.o_proj)
        return modules.decode(self, given, kwargs, apply_rotary_pos_emb, linears=linears, parts=parts)


class OptionalRotaryAttention(RotaryAttention):
    """SmolLM 3's attention: `RotaryAttention` that turns where `self.use_rope` says so.

    hidden_states (B, L, hidden) -> ((B, L, hidden), None).
    """

    use_rope: bool | int

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        given = (hidden_states, position_embeddings, attention_mask, past_key_values)
        rotate = apply_rotary_pos_emb if self.use_rope else None
        return modules.decode(self, given, kwargs, rotate)


class InterleavedRotaryAttention(RotaryAttention):
    """Cohere 2's attention: `RotaryAttention` of pairs side by side, which turns in layers with a window alone.

    hidden_states (B, L, hidden) -> ((B, L, hidden), None).
    """

    sliding_window: int | None

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        given = (hidden_states, position_embeddings, attention_mask, past_key_values)
        rotate = None if self.sliding_window is None else apply_rotary_pos_emb_interleaved
        return modules.decode(self, given, kwargs, rotate)


class InterleavedRotaryAttentionInPart(RotaryAttention):
    """GLM's attention: `RotaryAttention` of pairs side by side, in the first part of each head.

    hidden_states (B, L, hidden) -> ((B, L, hidden), None). The first half of the angles is that of the pairs.
    """

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        given = (hidden_states, position_embeddings, attention_mask, past_key_values)
        return modules.decode(self, given, kwargs, modules.rotate_pairs_in_part)


class PhiAttention(nn.Module):
    """Phi's attention: `RotaryAttention` of a part of each head, with LayerNorms before it where it has them.

    hidden_states (B, L, hidden) -> ((B, L, hidden), None).
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    dense: nn.Linear
    head_dim: int
    layer_idx: int
    attention_dropout: float
    qk_layernorm: bool
    q_layernorm: nn.LayerNorm
    k_layernorm: nn.LayerNorm

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        given = (hidden_states, position_embeddings, attention_mask, past_key_values)
        linears = (self.q_proj, self.k_proj, self.v_proj, self.dense)
        norms = (self.q_layernorm, self.k_layernorm) if self.qk_layernorm else None
        return modules.decode(self, given, kwargs, apply_rotary_pos_emb, linears=linears, norms=norms)


class GptNeoxAttention(nn.Module):
    """GPT-NeoX's attention: `RotaryAttention` of a part of each head; one linear layer computes all, head by head.

    hidden_states (B, L, hidden) -> ((B, L, hidden), None). The heads' width is `self.head_size`.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    query_key_value: nn.Linear
    dense: nn.Linear
    head_size: int
    layer_idx: int
    attention_dropout: float

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        layer_past: Any = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        given = (hidden_states, position_embeddings, attention_mask, layer_past)
        arguments = (hidden_states, attention_mask, layer_past, position_embeddings)
        linears, width = (self.query_key_value, self.dense), self.head_size
        rotate = apply_rotary_pos_emb
        return modules.decode(self, given, kwargs, rotate, linears=linears, width=width, arguments=arguments)


class BloomAttention(nn.Module):
    """Bloom's attention: scores with a bias for each key (ALiBi), and the sum with `residual`.

    hidden_states, residual (B, L, hidden), alibi (B x heads, 1, keys) -> ((B, L, hidden), None). It runs in the place
    of the block's own formula where nobody asks for the weights. Source: arXiv 2108.12409.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    query_key_value: nn.Linear
    dense: nn.Linear
    attention_dropout: nn.Dropout

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor,
        alibi: Tensor,
        attention_mask: Tensor | None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        given = (hidden_states, residual, alibi, attention_mask, layer_past)
        return modules.decode_with_alibi(self, given, (use_cache, output_attentions), kwargs)


class SoftcappedRotaryAttention(RotaryAttention):
    """Gemma 2's attention: Llama's, each scaled score s capped as c tanh(s / c).

    hidden_states (B, L, hidden) -> ((B, L, hidden), None). It runs in the place of the block's own formula (`eager`)
    where nobody asks for the weights. c is `self.attn_logit_softcapping`, None for no cap.
    """

    attn_logit_softcapping: float | None

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        given = (hidden_states, position_embeddings, attention_mask, past_key_values)
        rotate, attend = apply_rotary_pos_emb, modules.attend_softcapped
        return modules.decode(self, given, kwargs, rotate, attend, eager=True)


class SinkAttention(RotaryAttention):
    """GPT-OSS's attention: Llama's, with a sink in each head's softmax, and angles that both halves of a head share.

    hidden_states (B, L, hidden) -> ((B, L, hidden), None). It runs in the place of the block's own formula
    (`eager`) where nobody asks for the weights. sinks (heads,).
    """

    sinks: Tensor

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        given = (hidden_states, position_embeddings, attention_mask, past_key_values)
        rotate, attend = apply_rotary_pos_emb_of_halves, modules.attend_with_sinks
        return modules.decode(self, given, kwargs, rotate, attend, eager=True)


class SelfAttention(nn.Module):
    """BERT's self-attention: projections and attention; what follows is another module's.

    hidden_states (B, L, hidden) -> ((B, L, heads x width), None); width is `self.attention_head_size`.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    dropout: nn.Dropout
    attention_head_size: int

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        linears = (self.query, self.key, self.value)
        if past_key_values is not None or not modules.applies(
            self, hidden_states, linears, self.dropout.p, attention_mask, kwargs
        ):
            given = (hidden_states, attention_mask, past_key_values)
            found: tuple[Tensor, Tensor | None] = modules.original(self, *given, **kwargs)
            return found
        query, key, value = modules.heads(hidden_states, linears, self.attention_head_size)
        return modules.attend(self, query, key, value, attention_mask), None


class UnmaskedSelfAttention(nn.Module):
    """YOLOS's and DPT's self-attention: `SelfAttention` without a mask or a cache.

    hidden_states (B, L, hidden) -> ((B, L, heads x width), None); width is `self.attention_head_size`.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    dropout_prob: float
    attention_head_size: int

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        linears = (self.query, self.key, self.value)
        if not modules.applies(self, hidden_states, linears, self.dropout_prob, None, kwargs):
            found: tuple[Tensor, Tensor | None] = modules.original(self, hidden_states, **kwargs)
            return found
        query, key, value = modules.heads(hidden_states, linears, self.attention_head_size)
        return modules.attend(self, query, key, value, None), None


class EncoderAttention(nn.Module):
    """ViT's attention: projections, attention, projection.

    hidden_states (B, L, hidden) -> ((B, L, hidden), None). The heads' width is `self.head_dim`.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    o_proj: nn.Linear
    head_dim: int
    attention_dropout: float

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        return modules.encode(
            self, hidden_states, attention_mask, kwargs, self.o_proj, self.attention_dropout
        )


class ClipAttention(nn.Module):
    """CLIP's and SigLIP's attention: `EncoderAttention` under other names, `out_proj`, `scale` and `dropout`.

    hidden_states (B, L, hidden) -> ((B, L, hidden), None). The heads' width is `self.head_dim`.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear
    head_dim: int
    scale: float
    dropout: float

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        return modules.encode(
            self, hidden_states, attention_mask, kwargs, self.out_proj, self.dropout, self.scale
        )


class EncoderDecoderAttention(nn.Module):
    """BART's attention: over its own states or, where `key_value_states` are given, over an encoder's; with a cache.

    hidden_states (B, L, hidden), key_value_states (B, S, hidden) -> ((B, L, hidden), None). The heads' width is
    `self.head_dim`.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear
    head_dim: int
    layer_idx: int
    dropout: float

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        given = (hidden_states, key_value_states, past_key_values, attention_mask)
        return modules.encode_and_decode(self, given, kwargs)


class WhisperAttention(nn.Module):
    """Whisper's attention: `EncoderDecoderAttention`, with the scale in its scores, not in its queries.

    hidden_states (B, L, hidden), key_value_states (B, S, hidden) -> ((B, L, hidden), None).
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear
    head_dim: int
    layer_idx: int
    dropout: float

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        given = (hidden_states, key_value_states, past_key_values, attention_mask)
        return modules.encode_and_decode(self, given, {**kwargs, "output_attentions": output_attentions})


class OptAttention(nn.Module):
    """OPT's attention: a decoder's without a rotation. hidden_states (B, L, hidden) -> ((B, L, hidden), None)."""

    has_backward: bool = True
    can_torch_compile: bool = True

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear
    head_dim: int
    layer_idx: int
    dropout: float

    def forward(
        self,
        hidden_states: Tensor,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        given = (hidden_states, None, past_key_values, attention_mask)
        arguments = (hidden_states, past_key_values, attention_mask, output_attentions)
        if output_attentions:
            found: tuple[Tensor, Tensor | None] = modules.original(self, *arguments, **kwargs)
            return found
        return modules.encode_and_decode(self, given, kwargs, arguments)


class Wav2Vec2Attention(nn.Module):
    """Wav2Vec 2's attention: an encoder's, without a cache; over other states it is the original's.

    hidden_states (B, L, hidden) -> ((B, L, hidden), None). The heads' width is `self.head_dim`.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear
    head_dim: int
    dropout: float

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if key_value_states is not None or output_attentions:
            arguments = (hidden_states, key_value_states, attention_mask, output_attentions)
            found: tuple[Tensor, Tensor | None] = modules.original(self, *arguments, **kwargs)
            return found
        return modules.encode(self, hidden_states, attention_mask, kwargs, self.out_proj, self.dropout)
