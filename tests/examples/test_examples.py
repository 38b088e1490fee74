"""Every example runs, and does what it says."""

from __future__ import annotations

import importlib.util
import os
import struct
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tests.extras import only

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))

ARGUMENTS = {
    "generate_text_with_llama": "--layers 2 --width 128 --vocabulary 500 --length 12 --tokens 12 --rounds 1",
    "paint_with_stable_diffusion": "--width 32 --levels 2 --pixels 64 --steps 4",
    "publish_compiled_layers": "--layers 1 --hidden 64",
    "search_sentences_with_minilm": "--rounds 1",
    "train_a_llama_block_with_fused_loss": "--width 32 --vocabulary 2000 --tokens 32",
}
"""What makes an example small: sizes and repetitions."""

LONG = (
    "a_hub_of_ones_own", "generate_text_with_llama", "paint_with_stable_diffusion", "publish_compiled_layers",
    "train_a_kernelized_model",
)  # fmt: skip
"""Those that are long even so: `make test-all` runs them."""

FULL = {
    "generate_text_with_llama": "",
    "paint_with_stable_diffusion": "--full --pixels 64 --steps 2",
    "publish_compiled_layers": "",
    "search_sentences_with_minilm": "",
    "train_a_llama_block_with_fused_loss": "",
}
"""Sizes worth timing; `-s` shows the times."""


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def check_kernelize_a_transformers_model(result: Any) -> None:
    assert 0 <= result < 1e-4


def check_a_layer_repository_of_ones_own(result: Any) -> None:
    assert result == 1


def check_train_a_kernelized_model(result: Any) -> None:
    expected, losses = result
    assert losses == pytest.approx(expected, abs=1e-4)
    assert losses[-1] < losses[0] - 0.3, "it learns"


def check_train_a_llama_block_with_fused_loss(result: Any) -> None:
    assert len(result.eager.losses) == len(result.fused.losses) == 50
    assert result.difference < 1e-3
    assert result.fused.losses[-1] < result.fused.losses[0] - 0.5, "it learns"
    assert result.fused.peak_mib < 0.6 * result.eager.peak_mib


def check_a_mapping_of_ones_own(result: Any) -> None:
    assert result == ["GELU", "SiLU"]


def check_a_hub_of_ones_own(result: Any) -> None:
    assert "acme/relu@0.1.0/torch-cpu" in result
    assert "2 swapped" in result


def check_generate_text_with_llama(result: Any) -> None:
    tokens = {name: one.tokens for name, one in result.greedy.items()}
    assert set(tokens) == {"eager", "kernelized", "kernelized whole", "compiled"}
    assert len(set(tokens["eager"])) > 1, "a model that says one thing only could not tell them apart"
    assert all(one == tokens["eager"] for one in tokens.values())
    assert result.sampled["compiled"] == result.sampled["eager"] != tokens["eager"]
    assert all(one.step_seconds > 0 < one.prefill_seconds for one in result.greedy.values())
    assert len(result.step.plan.engines) == len(result.prefill.plan.engines) == 1, "one plan for all lengths"
    assert not result.step.plans


def check_search_sentences_with_minilm(result: Any) -> None:
    assert result.found == result.expected
    assert len(set(result.found.values())) == len(result.found) > 3
    assert result.difference < 1e-5
    assert not result.encoder.plans, "one plan for all lengths"


def check_publish_compiled_layers(result: Any) -> None:
    assert [(one.name, one.kernel, one.swapped) for one in result.used] == [
        ("LlamaMLP", "acme/llama-mlp@1.0.0", 2),
        ("BertLayer", "acme/bert-layer@1.0.0", 2),
        ("MiniLM", "acme/minilm@1.0.0", 1),
    ]
    assert all(one.error < 1e-5 and one.first_s > 0 < one.ratio for one in result.used)
    assert set(result.with_kernels) == {"LlamaMLP", "BertLayer", "MiniLM"}
    assert all(error < 1e-5 for error in result.with_kernels.values())


def check_paint_with_stable_diffusion(result: Any) -> None:
    eager, image = result.eager.image, result.compiled.image
    assert image.shape == (3, 64, 64) and torch.isfinite(image).all()
    torch.testing.assert_close(image, eager, atol=1e-3, rtol=0)
    assert float((image - image.mean()).abs().max()) > 0.1, "something can be seen"
    pixels = read_png(result.png)
    assert abs(pixels / 127.5 - 1 - image.permute(1, 2, 0).numpy()).max() < 1 / 127
    assert set(result.executables) == {"text encoder", "UNet", "VAE decoder"}


def test_stable_diffusion_has_the_published_sizes() -> None:
    """As many weights as Stable Diffusion 1.5 has, and the names that its files have."""
    example = load(next(path for path in EXAMPLES if path.stem == "paint_with_stable_diffusion"))
    sizes = example.Sizes()
    with torch.device("meta"):
        unet, vae, text = example.UNet(sizes), example.Vae(sizes), example.TextEncoder(sizes)
    counts = [sum(one.numel() for one in model.parameters()) for model in (unet, vae, text)]
    assert counts == [859_520_964, 49_490_179 + 20, 123_060_480]
    names = unet.state_dict()
    assert names["up_blocks.3.attentions.2.transformer_blocks.0.attn2.to_k.weight"].shape == (320, 768)
    assert names["down_blocks.1.resnets.0.conv_shortcut.weight"].shape == (640, 320, 1, 1)
    assert names["mid_block.attentions.0.transformer_blocks.0.ff.net.0.proj.weight"].shape == (10240, 1280)
    assert vae.state_dict()["decoder.mid_block.attentions.0.to_out.0.weight"].shape == (512, 512)


def test_ddim_finds_the_image_that_the_noise_was_added_to() -> None:
    """With the true noise at each step, DDIM goes straight back."""
    example = load(next(path for path in EXAMPLES if path.stem == "paint_with_stable_diffusion"))
    scheduler = example.Ddim(20)
    image, noise = torch.randn(2, 1, 4, 8, 8, dtype=torch.float64)
    steps = list(scheduler)
    assert steps[0] == 951 and steps[-1] == 1 and len(steps) == 20

    def mixed(step: int) -> torch.Tensor:
        kept = float(scheduler.kept[step])
        return kept**0.5 * image + (1 - kept) ** 0.5 * noise

    latents = mixed(steps[0])
    for step, then in zip(steps, [*steps[1:], 0], strict=True):
        latents = scheduler.previous(latents, noise, step)
        torch.testing.assert_close(latents, mixed(then))


def read_png(data: bytes) -> np.ndarray:
    """Pixels (rows, columns, 3) of a PNG that uses no filter; every checksum is checked."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(data):
        (size,) = struct.unpack(">I", data[place : place + 4])
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + size]
        assert struct.unpack(">I", data[place + 8 + size : place + 12 + size]) == (zlib.crc32(kind + body),)
        chunks[kind] = body
        place += 12 + size
    columns, rows, *form = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert form == [8, 2, 0, 0, 0] and b"IEND" in chunks
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(rows, 1 + 3 * columns)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(rows, columns, 3)


def run(path: Path, arguments: dict[str, str]) -> None:
    given = [arguments[path.stem].split()] if path.stem in arguments else []
    globals()[f"check_{path.stem}"](load(path).main(*given))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.exhaustive] * (path.stem in LONG), id=path.stem)
        for path in EXAMPLES
    ],
)
def test_example(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if path.stem == "publish_compiled_layers":
        # What it starts has what `make demo` installs, and HF's client.
        monkeypatch.setenv("PYTHONPATH", only(tmp_path / "site", "kernels-hub[demo]", "kernels"))
    run(path, ARGUMENTS)


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("KERNELS_HUB_FULL_EXAMPLES") != "1",
    reason="minutes, and 13 GB of memory: asked for by KERNELS_HUB_FULL_EXAMPLES=1",
)
@pytest.mark.parametrize("name", FULL)
def test_example_in_full(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(next(path for path in EXAMPLES if path.stem == name), FULL)
