"""Models with the structure of real ones, in small and with random weights: what recognition is measured on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

TEXT = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}


@dataclass(frozen=True, eq=False)
class Model:
    """A module and arguments for it, by position."""

    module: nn.Module
    args: tuple[Tensor, ...]


class First(nn.Module):
    """The first result of a model of transformers, from arguments by position."""

    def __init__(self, model: nn.Module, *names: str, **fixed: Any) -> None:
        super().__init__()
        self.model, self.names, self.fixed = model, names, fixed

    def forward(self, first: Tensor, second: Tensor | None = None) -> Tensor:
        given = dict(zip(self.names, (first, second), strict=False))
        return self.model(**given, **self.fixed)[0]


def _ids() -> Tensor:
    return torch.randint(0, 50, (2, 7))


def _padded() -> Tensor:
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[-1, 5:] = 0
    return mask


def bert(attention: str = "sdpa", layers: int = 3) -> Model:
    """Layers of BERT, with a mask for padding."""
    config = transformers.BertConfig(**TEXT, num_hidden_layers=layers, attn_implementation=attention)
    return Model(First(transformers.BertModel(config), "input_ids", "attention_mask"), (_ids(), _padded()))


def llama(attention: str = "sdpa", layers: int = 3) -> Model:
    """Layers of Llama: 4 heads of queries, 2 of keys; a causal mask, and one for padding."""
    config = transformers.LlamaConfig(
        **TEXT, num_hidden_layers=layers, num_key_value_heads=2, attn_implementation=attention
    )
    model = transformers.LlamaForCausalLM(config)
    return Model(First(model, "input_ids", "attention_mask", use_cache=False), (_ids(), _padded()))


def resnet50() -> Model:
    """ResNet-50: 53 convolutions with batch norm; every sixteenth of its channels."""
    config = transformers.ResNetConfig(embedding_size=4, hidden_sizes=[16, 32, 64, 128], num_labels=10)
    model = transformers.ResNetForImageClassification(config)
    return Model(First(model, "pixel_values"), (torch.randn(1, 3, 32, 32),))


class Residual(nn.Module):
    """Diffusers' ResnetBlock2D: group norm, SiLU and convolution, twice, with an embedding of the time."""

    def __init__(self, width: int, out: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, width), nn.GroupNorm(4, out)
        self.conv1, self.conv2 = nn.Conv2d(width, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.shortcut = nn.Conv2d(width, out, 1) if width != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(h)))


class Attention(nn.Module):
    """Diffusers' Attention: of a sequence to itself, or to a context."""

    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(context, width, bias=False) for _ in range(2))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        batch, _, width = x.shape
        q, k, v = (
            one.view(batch, -1, self.heads, width // self.heads).transpose(1, 2)
            for one in (self.q(x), self.k(context), self.v(context))
        )
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, -1, width))


class Transformer(nn.Module):
    """Diffusers' Transformer2DModel of one BasicTransformerBlock, with a GEGLU."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width, eps=1e-6)
        self.into, self.out = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.self_attention, self.cross_attention = Attention(width, width, 2), Attention(width, context, 2)
        self.gate, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        batch, width, rows, columns = x.shape
        h = self.into(self.norm(x)).permute(0, 2, 3, 1).reshape(batch, rows * columns, width)
        first = self.norms[0](h)
        h = h + self.self_attention(first, first)
        h = h + self.cross_attention(self.norms[1](h), context)
        up, gate = self.gate(self.norms[2](h)).chunk(2, -1)
        h = h + self.down(up * F.gelu(gate))
        return x + self.out(h.reshape(batch, rows, columns, width).permute(0, 3, 1, 2))


class UNetBlock(nn.Module):
    """Diffusers' CrossAttnDownBlock2D and CrossAttnUpBlock2D, one layer each."""

    def __init__(self, width: int = 8, time: int = 12, context: int = 10) -> None:
        super().__init__()
        self.into, self.body = Residual(width, 2 * width, time), Transformer(2 * width, context)
        self.down = nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1)
        self.back, self.mix = Residual(4 * width, width, time), Transformer(width, context)
        self.up = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        skip = self.body(self.into(x, time), context)
        low = self.down(skip)
        high = F.interpolate(low, scale_factor=2.0, mode="nearest")
        return self.up(self.mix(self.back(torch.cat([high, skip], 1), time), context))


def unet_block() -> Model:
    """A UNet's block."""
    return Model(UNetBlock(), (torch.randn(2, 8, 8, 8), torch.randn(2, 12), torch.randn(2, 5, 10)))


def randomised(model: Model) -> Model:
    """In eval mode, every weight and statistic random: none of them equal, none of them zero or one."""
    random = torch.Generator().manual_seed(1)
    for one in (*model.module.parameters(), *model.module.buffers()):
        if one.dtype.is_floating_point:
            noise = torch.rand(one.shape, generator=random)
            one.data += 0.5 * noise if one.ndim < 2 else 0.1 * (noise - 0.5)
    model.module.eval()
    return model


MODELS: dict[str, Callable[[], Model]] = {
    "bert": bert,
    "llama": llama,
    "resnet50": resnet50,
    "unet_block": unet_block,
}
