"""Paint a picture in the way of Stable Diffusion 1.5: text encoder, UNet and VAE decoder, eager and compiled.

Run with `python examples/paint_with_stable_diffusion.py`, which paints what random weights of a small size come to;
`--full` takes the sizes of the real thing, `--weights FOLDER` (or a name on the Hub) its weights, in the layout of
diffusers, whose parameter names the modules here have. The scheduler is DDIM with classifier-free guidance.
"""

from __future__ import annotations

import argparse
import math
import statistics
import struct
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import CLIPTextConfig, CLIPTextModel

from kernels_hub import compiler

PROMPT = "a lighthouse in a storm, oil on canvas"
LATENT_SCALE = 0.18215
"""What latents are multiplied with where the VAE's encoder gives them, so that their variance is one."""


@dataclass(frozen=True)
class Sizes:
    """Of the three models. The defaults are Stable Diffusion 1.5's."""

    channels: tuple[int, ...] = (320, 640, 1280, 1280)
    """Of the UNet, from the finest to the coarsest pixels."""
    heads: int = 8
    decoder: tuple[int, ...] = (128, 256, 512, 512)
    """Channels of the VAE decoder, likewise."""
    context: int = 768
    text_layers: int = 12
    vocabulary: int = 49408
    tokens: int = 77

    @classmethod
    def small(cls, width: int, levels: int) -> Sizes:
        """The same structure, `width` channels at the finest pixels, and a UNet of fewer sizes of pixels."""
        wide = (width, 2 * width, 4 * width, 4 * width)
        return cls(wide[:levels], 4, wide, 2 * width, 2, 512, 16)


class Residual(nn.Module):
    """Group norm, SiLU, convolution, twice, with the time step (1, time) added between where there is one."""

    def __init__(self, channels: int, out: int, time: int | None, eps: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, channels, eps), nn.GroupNorm(32, out, eps)
        self.conv1, self.conv2 = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time_emb_proj = nn.Linear(time, out) if time else None
        self.conv_shortcut = nn.Conv2d(channels, out, 1) if channels != out else None

    def forward(self, x: torch.Tensor, time: torch.Tensor | None = None) -> Any:
        y = self.conv1(F.silu(self.norm1(x)))
        if self.time_emb_proj is not None and time is not None:
            y = y + self.time_emb_proj(F.silu(time))[:, :, None, None]
        y = self.conv2(F.silu(self.norm2(y)))
        return y + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Attention(nn.Module):
    """Of x (batch, tokens, width) to itself, or to a context (batch, words, size)."""

    def __init__(self, width: int, context: int, heads: int, bias: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=bias)
        self.to_k, self.to_v = nn.Linear(context, width, bias=bias), nn.Linear(context, width, bias=bias)
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def forward(self, x: torch.Tensor, context: torch.Tensor | None = None) -> Any:
        context = x if context is None else context
        parts = (
            one.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for one in (self.to_q(x), self.to_k(context), self.to_v(context))
        )
        return self.to_out[0](F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))


class GatedGelu(nn.Module):
    """A linear layer, half of which gates the other by a GELU."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 2 * out)

    def forward(self, x: torch.Tensor) -> Any:
        value, gate = self.proj(x).chunk(2, -1)
        return value * F.gelu(gate)


class FeedForward(nn.Module):
    """The transformer's MLP; `net` has the places that diffusers' has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(GatedGelu(width, 4 * width), nn.Identity(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)


class TransformerBlock(nn.Module):
    """Attention among pixels, attention to the words, and an MLP, each added to what came in."""

    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.attn1, self.attn2 = Attention(width, width, heads), Attention(width, context, heads)
        self.ff = FeedForward(width)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> Any:
        x = x + self.attn1(self.norm1(x))
        x = x + self.attn2(self.norm2(x), context)
        return x + self.ff(self.norm3(x))


class SpatialTransformer(nn.Module):
    """A transformer block over the pixels of an image (batch, channels, rows, columns)."""

    def __init__(self, channels: int, context: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels, 1e-6)
        self.proj_in, self.proj_out = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.transformer_blocks = nn.ModuleList([TransformerBlock(channels, context, heads)])

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> Any:
        y = self.proj_in(self.norm(x))
        rows, columns = y.shape[-2:]
        y = self.transformer_blocks[0](y.flatten(2).transpose(1, 2), context)
        return x + self.proj_out(y.transpose(1, 2).unflatten(2, (rows, columns)))


class Resample(nn.Module):
    """Half the rows and columns, or twice as many, then or by a convolution."""

    def __init__(self, channels: int, up: bool) -> None:
        super().__init__()
        self.up = up
        self.conv = nn.Conv2d(channels, channels, 3, stride=1 if up else 2, padding=1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.conv(F.interpolate(x, scale_factor=2.0) if self.up else x)


class UNetBlock(nn.Module):
    """Residuals, transformers behind them where the level has any, and a change of size where it has one."""

    def __init__(
        self,
        inputs: Sequence[int],
        out: int,
        sizes: Sizes,
        *,
        attends: bool,
        down: bool = False,
        up: bool = False,
    ) -> None:
        super().__init__()
        time = 4 * sizes.channels[0]
        self.resnets = nn.ModuleList(Residual(one, out, time, 1e-5) for one in inputs)
        count = len(inputs) if attends else 0
        self.attentions = nn.ModuleList(
            SpatialTransformer(out, sizes.context, sizes.heads) for _ in range(count)
        )
        self.downsamplers = nn.ModuleList([Resample(out, False)] if down else [])
        self.upsamplers = nn.ModuleList([Resample(out, True)] if up else [])

    def layer(self, place: int, x: torch.Tensor, time: torch.Tensor, context: torch.Tensor) -> Any:
        """One residual, and its transformer."""
        x = self.resnets[place](x, time)
        return self.attentions[place](x, context) if len(self.attentions) else x


class MiddleBlock(nn.Module):
    """Residual, transformer, residual, at the coarsest pixels."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        channels, time = sizes.channels[-1], 4 * sizes.channels[0]
        self.resnets = nn.ModuleList(Residual(channels, channels, time, 1e-5) for _ in range(2))
        self.attentions = nn.ModuleList([SpatialTransformer(channels, sizes.context, sizes.heads)])

    def forward(self, x: torch.Tensor, time: torch.Tensor, context: torch.Tensor) -> Any:
        return self.resnets[1](self.attentions[0](self.resnets[0](x, time), context), time)


class TimeEmbedding(nn.Module):
    """A time step (1,) -> (1, 4 * width): sines and cosines of it, and an MLP over them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.linear_1, self.linear_2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, 4 * width)

    def forward(self, step: torch.Tensor) -> Any:
        half = self.width // 2
        rates = torch.exp(torch.arange(half) * (-math.log(10000.0) / half))
        angles = step[:, None].float() * rates
        return self.linear_2(F.silu(self.linear_1(torch.cat([angles.cos(), angles.sin()], -1))))


class UNet(nn.Module):
    """Noisy latents (batch, 4, rows, columns), time step (1,), words (batch, tokens, context) -> the noise in them."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        wide = sizes.channels
        last = len(wide) - 1
        self.conv_in, self.time_embedding = nn.Conv2d(4, wide[0], 3, padding=1), TimeEmbedding(wide[0])
        before = (wide[0], *wide[:-1])
        self.down_blocks = nn.ModuleList(
            UNetBlock((before[i], wide[i]), wide[i], sizes, attends=i < last, down=i < last)
            for i in range(len(wide))
        )
        self.mid_block = MiddleBlock(sizes)
        kept = [wide[0], *(one for i in range(len(wide)) for one in [wide[i]] * (3 if i < last else 2))]
        ups, channels = [], wide[-1]
        for i in reversed(range(len(wide))):
            inputs = [channels + kept.pop(), wide[i] + kept.pop(), wide[i] + kept.pop()]
            ups.append(UNetBlock(inputs, wide[i], sizes, attends=i < last, up=i > 0))
            channels = wide[i]
        self.up_blocks = nn.ModuleList(ups)
        self.conv_norm_out, self.conv_out = nn.GroupNorm(32, wide[0]), nn.Conv2d(wide[0], 4, 3, padding=1)

    def forward(self, latents: torch.Tensor, step: torch.Tensor, words: torch.Tensor) -> Any:
        time = self.time_embedding(step)
        x = self.conv_in(latents)
        kept = [x]
        block: Any
        for block in self.down_blocks:
            for place in range(len(block.resnets)):
                x = block.layer(place, x, time, words)
                kept.append(x)
            for resample in block.downsamplers:
                x = resample(x)
                kept.append(x)
        x = self.mid_block(x, time, words)
        for block in self.up_blocks:
            for place in range(len(block.resnets)):
                x = block.layer(place, torch.cat([x, kept.pop()], 1), time, words)
            for resample in block.upsamplers:
                x = resample(x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


class PixelAttention(Attention):
    """Attention among the pixels of an image, with one head."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 1, bias=True)
        self.group_norm = nn.GroupNorm(32, channels, 1e-6)

    def forward(self, x: torch.Tensor, context: torch.Tensor | None = None) -> Any:
        rows, columns = x.shape[-2:]
        y = super().forward(self.group_norm(x).flatten(2).transpose(1, 2), context)
        return x + y.transpose(1, 2).unflatten(2, (rows, columns))


class DecoderBlock(nn.Module):
    """Residuals, with attention behind the first where asked for, and twice the pixels where asked for."""

    def __init__(
        self, channels: int, out: int, count: int, *, attends: bool = False, up: bool = False
    ) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(Residual(out if i else channels, out, None, 1e-6) for i in range(count))
        self.attentions = nn.ModuleList([PixelAttention(out)] if attends else [])
        self.upsamplers = nn.ModuleList([Resample(out, True)] if up else [])

    def forward(self, x: torch.Tensor) -> Any:
        first, *others = self.resnets
        for one in (first, *self.attentions, *others, *self.upsamplers):
            x = one(x)
        return x


class Decoder(nn.Module):
    """Latents (batch, 4, rows, columns) -> image (batch, 3, 8 * rows, 8 * columns), -1 to 1."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        wide = sizes.decoder[::-1]
        self.conv_in = nn.Conv2d(4, wide[0], 3, padding=1)
        self.mid_block = DecoderBlock(wide[0], wide[0], 2, attends=True)
        before = (wide[0], *wide[:-1])
        self.up_blocks = nn.ModuleList(
            DecoderBlock(before[i], wide[i], 3, up=i < len(wide) - 1) for i in range(len(wide))
        )
        self.conv_norm_out = nn.GroupNorm(32, wide[-1], 1e-6)
        self.conv_out = nn.Conv2d(wide[-1], 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.mid_block(self.conv_in(x))
        for block in self.up_blocks:
            x = block(x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


class Vae(nn.Module):
    """The half of the autoencoder that paints."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.post_quant_conv, self.decoder = nn.Conv2d(4, 4, 1), Decoder(sizes)

    def forward(self, latents: torch.Tensor) -> Any:
        return self.decoder(self.post_quant_conv(latents / LATENT_SCALE))


class TextEncoder(nn.Module):
    """Token ids (batch, tokens) -> the words' vectors (batch, tokens, context): CLIP's."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        config = CLIPTextConfig(
            vocab_size=sizes.vocabulary, hidden_size=sizes.context, intermediate_size=4 * sizes.context,
            num_hidden_layers=sizes.text_layers, num_attention_heads=sizes.context // 64 or 1,
            max_position_embeddings=sizes.tokens, bos_token_id=0, eos_token_id=sizes.vocabulary - 1,
        )  # fmt: skip
        self.model = CLIPTextModel(config)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.model(input_ids=ids).last_hidden_state


@dataclass(frozen=True)
class Parts:
    """The three models, as modules or compiled."""

    text: Callable[[torch.Tensor], torch.Tensor]
    unet: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    vae: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Painting:
    """An image (3, rows, columns), -1 to 1, and how long each part of it took, in seconds."""

    image: torch.Tensor
    text_seconds: float
    step_seconds: float
    """Median of the UNet's calls."""
    vae_seconds: float


@dataclass(frozen=True)
class PaintingFigures:
    """All of one run of the example."""

    eager: Painting
    compiled: Painting
    difference: float
    """Largest absolute difference between the two images, whose values are -1 to 1."""
    executables: dict[str, compiler.Executable]
    png: bytes


class Ddim:
    """Denoising diffusion implicit models, deterministic: arXiv 2010.02502, equation 12 with sigma 0."""

    def __init__(self, steps: int, trained: int = 1000) -> None:
        betas = torch.linspace(0.00085**0.5, 0.012**0.5, trained, dtype=torch.float64) ** 2
        self.kept = torch.cumprod(1 - betas, 0)
        """Share of the image's variance at each time step."""
        self.stride = trained // steps
        self.steps = [1 + self.stride * i for i in reversed(range(steps))]

    def __iter__(self) -> Iterator[int]:
        return iter(self.steps)

    def previous(self, latents: torch.Tensor, noise: torch.Tensor, step: int) -> torch.Tensor:
        """The latents one step closer to the image, where `noise` is what is in them at `step`."""
        now, then = float(self.kept[step]), float(self.kept[max(step - self.stride, 0)])
        image = (latents - math.sqrt(1 - now) * noise) / math.sqrt(now)
        return math.sqrt(then) * image + math.sqrt(1 - then) * noise


def paint(parts: Parts, ids: torch.Tensor, noise: torch.Tensor, steps: int, guidance: float) -> Painting:
    """ids: (2, tokens), of no words and of the prompt; noise: (1, 4, rows, columns)."""
    start = time.perf_counter()
    words = parts.text(ids)
    text_seconds = time.perf_counter() - start
    scheduler, latents, times = Ddim(steps), noise, []
    for step in scheduler:
        pair, when = torch.cat([latents, latents]), torch.tensor([step])
        start = time.perf_counter()
        without, with_words = parts.unet(pair, when, words).chunk(2)
        times.append(time.perf_counter() - start)
        latents = scheduler.previous(latents, without + guidance * (with_words - without), step)
    start = time.perf_counter()
    image = parts.vae(latents)[0].clamp(-1, 1)
    return Painting(image, text_seconds, statistics.median(times), time.perf_counter() - start)


def png(image: torch.Tensor) -> bytes:
    """A PNG file of an image (3, rows, columns), -1 to 1: RGB, 8 bits, no filter."""
    pixels = ((image + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous()
    rows, columns, _ = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = b"".join(b"\0" + bytes(row.numpy().tobytes()) for row in pixels)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)),
            chunk(b"IDAT", zlib.compress(lines)),
            chunk(b"IEND", b""),
        )
    )


def load_weights(folder: Path, unet: UNet, vae: Vae) -> None:
    """Into the UNet and the decoder, from files as diffusers writes them. Raises RuntimeError where names differ."""
    from safetensors.torch import load_file

    unet.load_state_dict(load_file(folder / "unet" / "diffusion_pytorch_model.safetensors"))
    old = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
    found = {}
    for name, weight in load_file(folder / "vae" / "diffusion_pytorch_model.safetensors").items():
        if name.startswith(("decoder.", "post_quant_conv.")):
            *path, part, kind = name.split(".")
            found[".".join((*path, old.get(part, part), kind))] = weight
    vae.load_state_dict(found)


def build(options: argparse.Namespace) -> tuple[TextEncoder, UNet, Vae, torch.Tensor]:
    """The models, and the token ids (2, tokens) of no words and of the prompt."""
    torch.manual_seed(options.seed)
    sizes = Sizes() if options.full or options.weights else Sizes.small(options.width, options.levels)
    text, unet, vae = TextEncoder(sizes).eval(), UNet(sizes).eval(), Vae(sizes).eval()
    if not options.weights:
        # No tokenizer goes with random weights: each byte is a token, closed by one that is no byte.
        end = sizes.vocabulary - 1
        rows = [[*prompt.encode()[: sizes.tokens - 1], end] for prompt in ("", options.prompt)]
        return text, unet, vae, torch.tensor([row + [end] * (sizes.tokens - len(row)) for row in rows])
    from huggingface_hub import snapshot_download
    from transformers import CLIPTokenizer

    folder = Path(options.weights)
    if not folder.is_dir():
        wanted = ["tokenizer/*", "*/config.json", "text_encoder/model.safetensors"]
        wanted += [f"{part}/diffusion_pytorch_model.safetensors" for part in ("unet", "vae")]
        folder = Path(snapshot_download(options.weights, allow_patterns=wanted))
    text.model = CLIPTextModel.from_pretrained(folder / "text_encoder", dtype=torch.float32).eval()
    load_weights(folder, unet, vae)
    tokenizer = CLIPTokenizer.from_pretrained(folder / "tokenizer")
    given = tokenizer(["", options.prompt], padding="max_length", truncation=True, max_length=sizes.tokens)
    return text, unet, vae, torch.tensor(given.input_ids)


def compiled(
    text: TextEncoder, unet: UNet, vae: Vae, ids: torch.Tensor, noise: torch.Tensor
) -> dict[str, compiler.Executable]:
    """The three models for these sizes."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export's own
        arguments: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {
            "text encoder": (text, (ids,)),
            "UNet": (unet, (torch.cat([noise, noise]), torch.tensor([1]), text(ids))),
            "VAE decoder": (vae, (noise,)),
        }
        found = {}
        for name, source in arguments.items():
            start = time.perf_counter()
            found[name] = compiler.compile(source, "cpu")
            print(f"{name}: compiled in {time.perf_counter() - start:.1f} s, {found[name].plan}")
    return found


def main(arguments: Sequence[str] = ()) -> PaintingFigures:
    parser = argparse.ArgumentParser(description="Paint a picture, eager and compiled.")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--weights", help="a folder, or a name on the Hub, in the layout of diffusers")
    parser.add_argument(
        "--full", action="store_true", help="the sizes of Stable Diffusion 1.5, random weights"
    )
    parser.add_argument("--width", type=int, default=64, help="channels at the finest pixels, without --full")
    parser.add_argument("--levels", type=int, default=4, choices=(1, 2, 3, 4), help="of the UNet, likewise")
    parser.add_argument("--pixels", type=int, default=128, help="rows and columns; a multiple of 64")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--guidance", type=float, default=7.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("painting.png"), help="the file to write")
    options = parser.parse_args(arguments)

    text, unet, vae, ids = build(options)
    noise = torch.randn(1, 4, options.pixels // 8, options.pixels // 8)
    executables = compiled(text, unet, vae, ids, noise)
    with torch.inference_mode():
        found = []
        for parts in (Parts(text, unet, vae), Parts(*executables.values())):
            paint(parts, ids, noise, 1, options.guidance)  # to warm up
            found.append(paint(parts, ids, noise, options.steps, options.guidance))
    eager, fast = found
    figures = PaintingFigures(
        eager, fast, float((eager.image - fast.image).abs().max()), executables, png(fast.image)
    )
    options.out.write_bytes(figures.png)
    for name, before, after in (
        ("text encoder", eager.text_seconds, fast.text_seconds),
        ("UNet, a step", eager.step_seconds, fast.step_seconds),
        ("VAE decoder", eager.vae_seconds, fast.vae_seconds),
    ):
        print(
            f"{name}: eager {before * 1e3:.1f} ms, compiled {after * 1e3:.1f} ms, "
            f"{before / after:.2f} times as fast"
        )
    print(f"largest difference between the images: {figures.difference:.1e} of 2; written to {options.out}")
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
