"""Emitted layers with key-value caches among their arguments."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels_hub import LocalLayerRepository, Mode, kernelize, use_kernel_forward_from_hub, use_kernel_mapping
from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.export.emit_layer import emit_layer
from tests.transformers_caches import CACHE

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2
    )
    return transformers.LlamaModel(config).eval()


def filled(length: int) -> Any:
    random = torch.Generator().manual_seed(length)
    cache = transformers.DynamicCache()
    for layer in range(3):
        cache.update(*torch.randn(2, 1, 2, length, 16, generator=random), layer)
    return cache


def contents(cache: Any) -> list[torch.Tensor]:
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]


def test_one_layer_of_a_model(tmp_path: Path):
    """It changes its own layer of the cache, and leaves the others as they are: the very same tensors."""
    out, original = tmp_path / "layer", model()
    ids = torch.randint(0, 64, (1, 1))
    emitted = emit_layer(
        (original, (ids,), {CACHE: filled(5)}), layer_name="Middle", out=out, submodule="layers.1",
    )  # fmt: skip
    assert emitted.gradients is not None and emitted.gradients.reason == "a cache is among the arguments"
    assert emitted.checked.cases[0].original < 1e-5 and emitted.checked.cases[0].oracle < 1e-5
    kernelized = model()
    use_kernel_forward_from_hub("Middle")(type(kernelized.layers[1]))
    try:
        layer = LocalLayerRepository(out, layer_name="Middle")
        with use_kernel_mapping({"Middle": {"cpu": layer}}, inherit_mapping=False):
            kernelize(kernelized, mode=Mode.INFERENCE)
        ours, theirs = filled(5), filled(5)
        before = contents(ours)
        with torch.no_grad():
            found = kernelized(ids, **{CACHE: ours}).last_hidden_state
            expected = original(ids, **{CACHE: theirs}).last_hidden_state
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
        for one, other in zip(contents(ours), contents(theirs), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)
        inner = kernelized.layers[1]
        alone = filled(5)
        kept = contents(alone)
        rotary = kernelized.rotary_emb(torch.zeros(1, 1, 32), torch.tensor([[5]]))
        with torch.no_grad():
            inner(torch.zeros(1, 1, 32), position_embeddings=rotary, **{CACHE: alone}, use_cache=True)
        assert [one is other for one, other in zip(contents(alone), kept, strict=True)] == [
            True,
            True,
            False,
            False,
            True,
            True,
        ]
        assert all(one.shape[2] == 5 for one in before)
    finally:
        del type(kernelized.layers[1]).kernel_layer_name


@pytest.mark.parametrize("arguments", [{CACHE: [1, object()]}, {CACHE: (0, {"a": set()})}])
def test_arguments_that_cannot_be_stated(tmp_path: Path, arguments: dict[str, Any]):
    with pytest.raises(ImportFailure, match="a layer is compiled for tensors, literals"):
        emit_layer(
            (model(), (torch.zeros(1, 1, dtype=torch.int64),), arguments),
            layer_name="No",
            out=tmp_path / "no",
        )


def test_a_cache_inside_of_another_argument(tmp_path: Path):
    class Takes(torch.nn.Module):
        def forward(self, x: torch.Tensor, state: Any) -> Any:
            state["cache"].update(x, x, 0)
            return x

    cache = filled(5)
    kept = contents(cache)
    with pytest.raises(ImportFailure, match=r"argument state\.cache is a DynamicCache"):
        emit_layer(
            (Takes(), (torch.zeros(1, 2, 1, 16), {"cache": cache})), layer_name="No", out=tmp_path / "no"
        )
    assert all(one is other for one, other in zip(contents(cache), kept, strict=True))
