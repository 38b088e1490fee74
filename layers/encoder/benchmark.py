"""The cases of `python -m benchmarks.layers`: each layer against the module that it replaces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from transformers import BertConfig, ViTConfig
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.vit.modeling_vit import ViTLayer

Case = tuple[str, Callable[[], nn.Module], tuple[Tensor, ...]]

# Width, sequences, tokens of each: a query and a batch of MiniLM and of BERT-base, and an image of ViT-base.
TEXTS = ((384, 1, 8), (384, 1, 128), (384, 32, 128), (768, 1, 8), (768, 8, 128))
IMAGES = ((768, 1, 197), (768, 8, 197))


def cases(device: str, dtype: torch.dtype) -> list[Case]:
    """(layer and shape, factory of the original module, example inputs) for each layer and shape."""
    kinds = (("BertEncoderLayer", _bert, TEXTS), ("PreNormEncoderLayer", _vit, IMAGES))
    return [
        (
            f"{name} {batch}x{length}x{width}",
            partial(build, width),
            (torch.randn(batch, length, width, device=device, dtype=dtype),),
        )
        for name, build, sizes in kinds
        for width, batch, length in sizes
    ]


def _bert(width: int) -> nn.Module:
    config = BertConfig(hidden_size=width, intermediate_size=4 * width, num_attention_heads=width // 32)
    config._attn_implementation = "sdpa"
    return BertLayer(config)


def _vit(width: int) -> nn.Module:
    config = ViTConfig(hidden_size=width, intermediate_size=4 * width, num_attention_heads=width // 64)
    config._attn_implementation = "sdpa"
    return ViTLayer(config)
