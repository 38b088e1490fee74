"""Attention blocks of `layers/attention` in the place of a formula that PyTorch's attention has not: Gemma 2, Bloom."""

from __future__ import annotations

import types
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BloomConfig, DynamicCache, Gemma2Config
from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel

PACKAGE: ModuleType = import_kernel(source_variant(bundled_folder() / "attention", "cpu"))
BATCH, LENGTH, HIDDEN, HEADS = 2, 7, 128, 4
CAP = 0.5
"""So small that no score is what it was without it."""

Built = tuple[nn.Module, Callable[..., Any], Tensor, dict[str, Any]]


def gemma2(dtype: torch.dtype = torch.float32, **settings: Any) -> Built:
    """(block, its kernel, hidden states, other arguments); a query of the second sequence sees no key."""
    torch.manual_seed(0)
    config = Gemma2Config(
        hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=2, head_dim=32,
        attn_implementation="eager", **{"attn_logit_softcapping": CAP, **settings},
    )  # fmt: skip
    block = Gemma2Attention(config, 0).eval()
    angles = torch.randn(BATCH, LENGTH, 32)
    turned = (angles.cos().to(dtype), angles.sin().to(dtype))
    given = {"position_embeddings": turned, "attention_mask": mask(dtype)}
    kernel = types.MethodType(PACKAGE.layers.SoftcappedRotaryAttention.forward, block)
    return block.to(dtype), kernel, torch.randn(BATCH, LENGTH, HIDDEN).to(dtype), given


def bloom(dtype: torch.dtype = torch.float32, **settings: Any) -> Built:
    """The same; the first sequence is padded, so that its biases begin later."""
    torch.manual_seed(0)
    block = BloomAttention(BloomConfig(hidden_size=HIDDEN, n_head=HEADS, **settings), 0).eval()
    seen = torch.ones(BATCH, LENGTH, dtype=torch.long)
    seen[0, :2] = 0
    given = {
        "residual": torch.randn(BATCH, LENGTH, HIDDEN).to(dtype),
        "alibi": build_alibi_tensor(seen, HEADS, dtype),
        "attention_mask": mask(dtype),
    }
    kernel = types.MethodType(PACKAGE.layers.BloomAttention.forward, block)
    return block.to(dtype), kernel, torch.randn(BATCH, LENGTH, HIDDEN).to(dtype), given


def mask(dtype: torch.dtype) -> Tensor:
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1).expand(BATCH, 1, LENGTH, LENGTH).clone()
    hidden[1, 0, 2] = True
    return torch.zeros(BATCH, 1, LENGTH, LENGTH, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)


BLOCKS: dict[str, Callable[..., Built]] = {"gemma2": gemma2, "bloom": bloom}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_as_the_block(name: str, masked: bool, dtype: torch.dtype) -> None:
    block, kernel, x, given = BLOCKS[name](dtype)
    if not masked:
        given["attention_mask"] = None
    with torch.inference_mode():
        expected = block(x, **given)[0]
        found, weights = kernel(x, **given)
    assert weights is None, "the kernel ran"
    assert found.dtype is dtype
    bound = 1e-5 if dtype is torch.float32 else 3e-2
    torch.testing.assert_close(found, expected, rtol=bound, atol=bound)


def test_the_cap_and_the_biases_count() -> None:
    """The comparison above sees a kernel that leaves them out."""
    block, kernel, x, given = gemma2()
    with torch.inference_mode():
        capped = kernel(x, **given)[0]
        block.attn_logit_softcapping = None  # type: ignore[assignment]
        without = kernel(x, **given)[0]
        torch.testing.assert_close(without, block(x, **given)[0], rtol=1e-5, atol=1e-5)
        assert (capped - without).abs().max() > 1e-3
        _, kernel, x, given = bloom()
        biased = kernel(x, **given)[0]
        assert (biased - kernel(x, **{**given, "alibi": given["alibi"] * 0})[0]).abs().max() > 1e-3


@pytest.mark.parametrize("name", BLOCKS)
def test_caches_are_filled_as_the_originals_do(name: str) -> None:
    block, kernel, x, given = BLOCKS[name]()
    found: list[list[Tensor]] = []
    for forward in (block, kernel):
        cache, results = DynamicCache(), []
        for start, stop in ((0, 4), (4, 5), (5, 7)):
            shown = given["attention_mask"][:, :, start:stop, :stop]
            if name == "bloom":
                more = given["residual"][:, start:stop], given["alibi"][..., :stop]
            else:
                more = (tuple(one[:, start:stop] for one in given["position_embeddings"]),)
            with torch.inference_mode():
                results.append(forward(x[:, start:stop], *more, shown, cache)[0])
        found.append([*results, cache.layers[0].keys, cache.layers[0].values])
    for actual, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", BLOCKS)
def test_gradients(name: str) -> None:
    block, kernel, x, given = BLOCKS[name]()
    gradients = []
    for forward in (block, kernel):
        inputs = [x.clone().requires_grad_(), *block.parameters()]
        gradients.append(torch.autograd.grad(forward(inputs[0], **given)[0].square().mean(), inputs))
    for actual, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-6)


def _hooked(block: nn.Module) -> dict[str, Any]:
    block.get_submodule("dense" if hasattr(block, "dense") else "o_proj").register_forward_hook(
        lambda module, args, output: output * 2
    )
    return {}


def _dropout(block: nn.Module) -> dict[str, Any]:
    block.train()
    if isinstance(block, BloomAttention):
        block.hidden_dropout = 0.5
    else:
        block.attention_dropout = 0.5  # type: ignore[assignment]
    return {}


def _asked(block: nn.Module) -> dict[str, Any]:
    return {"output_attentions": True}


def _bool_mask(block: nn.Module) -> dict[str, Any]:
    """What the formula adds as 0 and 1."""
    return {"attention_mask": torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool)}


@pytest.mark.parametrize(
    "change", [_hooked, _dropout, _asked, _bool_mask], ids=lambda change: change.__name__
)
@pytest.mark.parametrize("name", BLOCKS)
def test_what_only_the_original_knows(name: str, change: Callable[[nn.Module], dict[str, Any]]) -> None:
    block, kernel, x, given = BLOCKS[name]()
    given |= change(block)
    with torch.inference_mode():
        torch.manual_seed(1)
        expected, theirs = block(x, **given)
        torch.manual_seed(1)
        found, weights = kernel(x, **given)
    assert torch.equal(found, expected) and torch.equal(weights, theirs)


def test_other_settings_of_bloom_are_the_originals() -> None:
    """Slices of a product as it was trained, and biases that are scaled."""
    sliced, kernel, x, given = bloom(pretraining_tp=2, slow_but_exact=True)
    with torch.inference_mode():
        assert torch.equal(kernel(x, **given)[0], sliced(x, **given)[0])
        block, kernel, x, given = bloom()
        block.beta = 0.5  # type: ignore[assignment]
        assert torch.equal(kernel(x, **given)[0], block(x, **given)[0])


def test_scaled_dot_product_attention_without_a_cap_is_gemma2s_own() -> None:
    block, kernel, x, given = gemma2(attn_logit_softcapping=None)
    block.config._attn_implementation = "sdpa"  # type: ignore[union-attr]
    with torch.inference_mode():
        assert torch.equal(kernel(x, **given)[0], block(x, **given)[0])
