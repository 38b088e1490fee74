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
from .rotation import apply_rotary_pos_emb, apply_rotary_pos_emb_of_halves


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

    hidden_states (B, L, hidden) -> ((B, L, hidden), None). The heads' width is `self.head_dim`.
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
        return modules.decode(self, given, kwargs, apply_rotary_pos_emb, modules.attend)


class SinkAttention(nn.Module):
    """GPT-OSS's attention: Llama's, with a sink in each head's softmax, and angles that both halves of a head share.

    hidden_states (B, L, hidden) -> ((B, L, hidden), None). It runs in the place of the block's own formula
    (`eager`) where nobody asks for the weights. sinks (heads,).
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
