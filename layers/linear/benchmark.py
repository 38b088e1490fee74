"""The cases of `python -m benchmarks.layers`: each layer against the module that it replaces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertIntermediate

Case = tuple[str, Callable[[], nn.Module], tuple[Tensor, ...]]

# rows, in_features, out_features: MiniLM, Llama and ViT, one token, a classifier's head; on a GPU,
# models of 8 billion parameters with many tokens and with one.
SHAPES = {
    "cpu": (
        (1024, 384, 384),
        (1024, 384, 1536),
        (128, 512, 1376),
        (197, 768, 3072),
        (1, 2048, 2048),
        (8, 384, 10),
    ),
    "cuda": ((8192, 4096, 4096), (2048, 4096, 14336), (1, 4096, 14336)),
}


def intermediate(width: int, wider: int) -> nn.Module:
    """A BERT block's first half: Linear and GELU."""
    return BertIntermediate(BertConfig(hidden_size=width, intermediate_size=wider, num_attention_heads=1))


def cases(device: str, dtype: torch.dtype) -> list[Case]:
    """(layer and shape, factory of the original module, example inputs) for each layer and shape."""
    return [
        (
            f"{layer} {rows}x{width}x{wider}",
            partial(original, width, wider),
            (torch.randn(rows, width, device=device, dtype=dtype),),
        )
        for layer, original in (("Linear", nn.Linear), ("LinearActivation", intermediate))
        for rows, width, wider in SHAPES[device]
    ]
