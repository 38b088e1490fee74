"""The models of `benchmarks.compiler`: `(module, example arguments)`, seeded, float32, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.harness import cache_argument

Model = tuple[nn.Module, tuple[torch.Tensor, ...]]


class _Bert(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        from transformers import BertConfig, BertModel

        super().__init__()
        config = BertConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=width // 32,
            intermediate_size=4 * width,
        )
        self.model = BertModel(config, add_pooling_layer=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state


def _llama_config(layers: int) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=512, num_hidden_layers=layers, num_attention_heads=8, num_key_value_heads=4,
        intermediate_size=1376, vocab_size=32000, max_position_embeddings=512,
    )  # fmt: skip


class _Llama(nn.Module):
    def __init__(self, layers: int) -> None:
        from transformers import LlamaModel

        super().__init__()
        self.model = LlamaModel(_llama_config(layers))

    def forward(self, ids: torch.Tensor) -> Any:
        return self.model(input_ids=ids, use_cache=False).last_hidden_state


class _LlamaStep(nn.Module):
    """One token, with the keys and values of all before as arguments and results."""

    def __init__(self, layers: int) -> None:
        from transformers import LlamaForCausalLM

        super().__init__()
        self.model = LlamaForCausalLM(_llama_config(layers))

    def forward(self, ids: torch.Tensor, *past: torch.Tensor) -> Any:
        from transformers import DynamicCache

        cache: Any = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        found = self.model(input_ids=ids, **{cache_argument(): cache}, use_cache=True)
        present = [one for layer in cache.layers for one in (layer.keys, layer.values)]
        return (found.logits, *present)


class _ResNet(nn.Module):
    def __init__(self) -> None:
        from transformers import ResNetConfig, ResNetModel

        super().__init__()
        self.model = ResNetModel(ResNetConfig())

    def forward(self, pixels: torch.Tensor) -> Any:
        return self.model(pixel_values=pixels).pooler_output


class _Residual(nn.Module):
    """A residual block of a diffusion UNet: group norm, SiLU, convolution, twice, with the time step added between."""

    def __init__(self, channels: int, out: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, channels), nn.Conv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.norm2, self.conv2 = nn.GroupNorm(32, out), nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> Any:
        y = self.conv1(nn.functional.silu(self.norm1(x)))
        y = y + self.time(nn.functional.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(nn.functional.silu(self.norm2(y)))


class _CrossAttention(nn.Module):
    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(size, width, bias=False) for size in (width, context, context))
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> Any:
        q, k, v = (
            one.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for one in (self.q(x), self.k(context), self.v(context))
        )
        found = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(found.transpose(1, 2).flatten(2))


class _UNetBlock(nn.Module):
    """A residual block and a transformer block over its pixels, as diffusers' CrossAttnDownBlock2D has them."""

    def __init__(self, channels: int = 320, context: int = 768, heads: int = 8) -> None:
        super().__init__()
        self.residual = _Residual(channels, channels, 1280)
        self.norm, self.into = nn.GroupNorm(32, channels), nn.Conv2d(channels, channels, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        self.self_attention = _CrossAttention(channels, channels, heads)
        self.cross_attention = _CrossAttention(channels, context, heads)
        self.up, self.down = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor, context: torch.Tensor) -> Any:
        x = self.residual(x, time)
        y = self.into(self.norm(x))
        height, width = y.shape[-2:]
        y = y.flatten(2).transpose(1, 2)
        normed = self.norms[0](y)
        y = y + self.self_attention(normed, normed)
        y = y + self.cross_attention(self.norms[1](y), context)
        value, gate = self.up(self.norms[2](y)).chunk(2, -1)
        y = y + self.down(value * nn.functional.gelu(gate))
        return x + self.out(y.transpose(1, 2).unflatten(2, (height, width)))


def _bert() -> Model:
    return _Bert(384, 6), (torch.randint(0, 30000, (8, 128)), torch.ones(8, 128, dtype=torch.long))


def _resnet(batch: int) -> Callable[[], Model]:
    return lambda: (_ResNet(), (torch.randn(batch, 3, 224, 224),))


def _llama() -> Model:
    return _Llama(4), (torch.randint(0, 32000, (1, 128)),)


def _llama_step() -> Model:
    past = [torch.randn(1, 4, 128, 64) for _ in range(8)]
    return _LlamaStep(4), (torch.randint(0, 32000, (1, 1)), *past)


def _unet() -> Model:
    return _UNetBlock(), (torch.randn(1, 320, 32, 32), torch.randn(1, 1280), torch.randn(1, 77, 768))


def _mlp() -> Model:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), (torch.randn(1, 64),)


class _Fused(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


def _norm() -> Model:
    return nn.LayerNorm(1024), (torch.randn(2048, 1024),)


def _softmax() -> Model:
    return nn.Softmax(-1), (torch.randn(4096, 512),)


def _gelu_add() -> Model:
    return _Fused(lambda x, y: nn.functional.gelu(x + y) * y), (
        torch.randn(2048, 1024),
        torch.randn(2048, 1024),
    )


MODELS: dict[str, Callable[[], Model]] = {
    "bert": _bert,
    "resnet50": _resnet(1),
    "resnet50_8": _resnet(8),
    "llama": _llama,
    "llama_decode": _llama_step,
    "unet_block": _unet,
    "mlp": _mlp,
    "layer_norm": _norm,
    "softmax": _softmax,
    "gelu_add": _gelu_add,
}


def model(name: str) -> Model:
    """A model in inference mode with norms and biases that are not trivial."""
    torch.manual_seed(0)
    module, args = MODELS[name]()
    with torch.no_grad():
        for one in module.modules():
            if isinstance(one, (nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)):
                one.weight.uniform_(0.5, 1.5)
                one.bias.normal_(std=0.1)
            if isinstance(one, nn.BatchNorm2d):
                one.running_mean.normal_(std=0.1)  # type: ignore[union-attr]
                one.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    return module.eval(), args
