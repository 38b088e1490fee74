"""The cases of `python -m benchmarks.layers`: each layer against the module that it replaces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from transformers import CLIPVisionConfig, LlamaConfig
from transformers.models.clip.modeling_clip import CLIPMLP
from transformers.models.llama.modeling_llama import LlamaMLP

Case = tuple[str, Callable[[], nn.Module], tuple[Tensor, ...]]

# rows, hidden size, intermediate size: small models and ViT, one token; on a GPU, models of 8 billion
# parameters with many tokens and with one.
SHAPES = {
    "cpu": (
        (128, 512, 1376),
        (512, 512, 1376),
        (197, 768, 3072),
        (1, 512, 1376),
        (1, 1024, 2816),
        (8, 64, 128),
    ),
    "cuda": ((8192, 4096, 14336), (512, 4096, 14336), (1, 4096, 14336)),
}


def gated(width: int, wider: int) -> nn.Module:
    """Llama's block, with SiLU."""
    return LlamaMLP(LlamaConfig(hidden_size=width, intermediate_size=wider, num_attention_heads=1))


def plain(width: int, wider: int) -> nn.Module:
    """CLIP's block, with the sigmoid GELU."""
    return CLIPMLP(CLIPVisionConfig(hidden_size=width, intermediate_size=wider, num_attention_heads=1))


def with_gelu(width: int, wider: int) -> nn.Module:
    """ViT's block, with the erf GELU."""
    config = CLIPVisionConfig(
        hidden_size=width, intermediate_size=wider, num_attention_heads=1, hidden_act="gelu"
    )
    return CLIPMLP(config)


def cases(device: str, dtype: torch.dtype) -> list[Case]:
    """(layer and shape, factory of the original module, example inputs) for each layer and shape."""
    return [
        (
            f"{layer} {rows}x{width}x{wider}{of}",
            partial(original, width, wider),
            (torch.randn(rows, width, device=device, dtype=dtype),),
        )
        for layer, of, original in (
            ("GatedMLP", "", gated),
            ("MLP", " QuickGELU", plain),
            ("MLP", " GELU", with_gelu),
        )
        for rows, width, wider in SHAPES[device]
    ]
