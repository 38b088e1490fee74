"""The layers of this repository. `self` is the layer of transformers whose forward it replaces.

The layer's children are not called, so they must be what they were: plain modules in eval mode, without hooks, that
nothing watches, attention by PyTorch's function. Otherwise, and for all but float32, the layer's own forward runs.

With F(x) = second(activation(first(x))) and A the attention of x to itself, with its projections:

    norms first     y = x + A(norm1(x)), y + F(norm2(y))      Source: arXiv 2002.04745
    norms last      y = norm1(x + A(x)), norm2(y + F(y))      Source: arXiv 1706.03762
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .kernels import encode
from .masks import joined_mask


def own_forward(layer: nn.Module) -> Callable[..., Any]:
    """The forward of a layer's class, which is not one of these: they run in the place of others."""
    kind = type(layer)
    if kind.__module__ == __name__:
        raise TypeError(
            f"{kind.__name__} runs in the place of the forward of an encoder's layer: give it one by kernelize"
        )
    return kind.forward


class PreNormEncoderLayer(nn.Module):
    """ViT's, CLIP's and Whisper's layer, DINOv2's with the scales of its two results: norms first.

    hidden_states (B, L, hidden), attention_mask None or (B, 1 or heads, 1 or L, L), of bool or added to the scores ->
    (B, L, hidden).
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        result = encode(self, hidden_states, attention_mask, kwargs, norms_first=True)
        if result is None:
            result = own_forward(self)(self, hidden_states, attention_mask, **kwargs)
        return result


class UnmaskedEncoderLayer(nn.Module):
    """YOLOS's layer: `PreNormEncoderLayer` without a mask. hidden_states (B, L, hidden) -> (B, L, hidden)."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        result = encode(self, hidden_states, None, kwargs, norms_first=True)
        if result is None:
            result = own_forward(self)(self, hidden_states, **kwargs)
        return result


class PostNormEncoderLayer(nn.Module):
    """BART's, DistilBERT's and Wav2Vec 2's layer: norms last.

    hidden_states (B, L, hidden), attention_mask None or (B, 1 or heads, 1 or L, L), of bool or added to the scores ->
    (B, L, hidden).
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        result = encode(self, hidden_states, attention_mask, kwargs, norms_first=False)
        if result is None:
            result = own_forward(self)(self, hidden_states, attention_mask, **kwargs)
        return result


class BiasedEncoderLayer(nn.Module):
    """MPNet's layer: `PostNormEncoderLayer`, with a bias for each pair of positions that is added to the scores.

    hidden_states (B, L, hidden), attention_mask and position_bias None or (B or 1, 1 or heads, 1 or L, L), added to the
    scores -> ((B, L, hidden),).
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        given = [mask for mask in (position_bias, attention_mask) if mask is not None]
        if not output_attentions and all(mask.dtype is torch.float32 for mask in given):
            mask = given[0] + given[1] if len(given) == 2 else given[0] if given else None
            result = encode(self, hidden_states, mask, {}, norms_first=False)
            if result is not None:
                return (result,)
        others = attention_mask, position_bias, output_attentions
        own: tuple[Tensor, ...] = own_forward(self)(self, hidden_states, *others, **kwargs)
        return own


class JoinedEncoderLayer(nn.Module):
    """The block of timm's vision transformers: `PreNormEncoderLayer` with one projection of queries, keys and values.

    x (B, L, hidden), attn_mask None or (B, 1 or heads, 1 or L, L) -> (B, L, hidden).
    Source: github.com/huggingface/pytorch-image-models, timm/models/vision_transformer.py.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        result = None
        if attn_mask is None or not is_causal:  # which PyTorch refuses together
            result = encode(self, x, attn_mask, {"is_causal": is_causal}, norms_first=True)
        if result is None:
            result = own_forward(self)(self, x, attn_mask, is_causal)
        return result


class MultiheadEncoderLayer(nn.Module):
    """torchvision's block of vision transformers: norms first, torch.nn.MultiheadAttention without a mask.

    input (B, L, hidden) -> (B, L, hidden).
    Source: github.com/pytorch/vision, torchvision/models/vision_transformer.py.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, input: Tensor) -> Tensor:
        result = encode(self, input, None, {}, norms_first=True)
        return own_forward(self)(self, input) if result is None else result


class TorchEncoderLayer(nn.Module):
    """torch.nn.TransformerEncoderLayer, with its arguments.

    src (B, L, hidden), or (L, B, hidden) where `batch_first` is False; src_mask (L, L) or (B x heads, L, L), of bool
    (True: not seen) or added to the scores; src_key_padding_mask (B, L), the same -> as src.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    self_attn: nn.MultiheadAttention
    norm_first: bool

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        result = None
        if src.dim() == 3 and (src_mask is not None or not is_causal):
            attention = self.self_attn
            given = joined_mask(src_mask, src_key_padding_mask, attention.num_heads)
            if given is not None:
                order, batch_first = self.norm_first, attention.batch_first
                result = encode(self, src, given[0], {}, norms_first=order, batch_first=batch_first)
        if result is None:
            result = own_forward(self)(self, src, src_mask, src_key_padding_mask, is_causal)
        return result


class BertEncoderLayer(nn.Module):
    """BERT's layer where it is an encoder's: `PostNormEncoderLayer` that could read another encoder, and a cache.

    hidden_states (B, L, hidden) -> (B, L, hidden).
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    is_decoder: bool

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> Tensor:
        result = None
        if past_key_values is None and not self.is_decoder:
            result = encode(self, hidden_states, attention_mask, kwargs, norms_first=False)
        if result is None:
            others = encoder_hidden_states, encoder_attention_mask, past_key_values
            result = own_forward(self)(self, hidden_states, attention_mask, *others, **kwargs)
        return result
