"""The attention blocks of `layers/attention` on the CPU, against those of transformers."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import types
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    CLIPVisionConfig,
    DynamicCache,
    LlamaConfig,
    LlamaModel,
    StaticCache,
    ViTConfig,
)
from transformers.models.bert.modeling_bert import BertSelfAttention
from transformers.models.clip.modeling_clip import CLIPAttention
from transformers.models.llama.modeling_llama import LlamaAttention
from transformers.models.vit.modeling_vit import ViTAttention

from kernels_hub import Mode, kernelize, load_kernel_mapping, report, restore, use_kernel_mapping
from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.transformers_caches import CACHE

PACKAGE: ModuleType = import_kernel(source_variant(bundled_folder() / "attention", "cpu"))
JOINED = PACKAGE.weights
LAYERS = {
    "llama": PACKAGE.layers.RotaryAttention,
    "grouped": PACKAGE.layers.RotaryAttention,
    "bert": PACKAGE.layers.SelfAttention,
    "vit": PACKAGE.layers.EncoderAttention,
    "clip": PACKAGE.layers.ClipAttention,
}
HIDDEN = 256


@pytest.fixture(autouse=True)
def pack_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack for smaller products than pays, so that shapes here are small; the smallest stay on F.linear."""
    monkeypatch.setattr(
        PACKAGE.layers.modules, "_SMALL", 0
    )  # test_decoder_blocks.py has PyTorch's attention as well
    products = sys.modules[PACKAGE.__name__ + ".packing"].products
    monkeypatch.setattr(products, "pays", lambda x, weight: weight.dim() == 2 and x.numel() >= HIDDEN)


def build(name: str, **settings: Any) -> tuple[nn.Module, Tensor, dict[str, Any]]:
    """(block, hidden states, other arguments)."""
    torch.manual_seed(0)
    x = torch.randn(2, 7, HIDDEN)
    if name in ("llama", "grouped"):
        config = LlamaConfig(
            hidden_size=HIDDEN,
            num_attention_heads=4,
            num_key_value_heads=4 if name == "llama" else 2,
            attention_bias=name == "llama",
            attn_implementation="sdpa",
            **settings,
        )
        angles = torch.randn(2, 7, 64)
        return LlamaAttention(config, 0).eval(), x, {"position_embeddings": (angles.cos(), angles.sin())}
    if name == "bert":
        bert = BertConfig(hidden_size=HIDDEN, num_attention_heads=8, attn_implementation="sdpa", **settings)
        return BertSelfAttention(bert).eval(), x, {}
    if name == "clip":  # it drops nothing by default
        clip = CLIPVisionConfig(hidden_size=HIDDEN, num_attention_heads=8, attn_implementation="sdpa")
        return CLIPAttention(clip).eval(), x, {}
    vit = ViTConfig(hidden_size=HIDDEN, num_attention_heads=8, attn_implementation="sdpa", **settings)
    return ViTAttention(vit).eval(), x, {}


def kernel(name: str, block: nn.Module) -> Callable[..., Any]:
    return types.MethodType(LAYERS[name].forward, block)


MASKS: dict[str, Callable[[], Tensor | None]] = {
    "none": lambda: None,
    "bool": lambda: torch.rand(2, 1, 7, 7, generator=torch.Generator().manual_seed(3)) > 0.3,
    "float": lambda: torch.randn(2, 1, 7, 7, generator=torch.Generator().manual_seed(3)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("mask", MASKS)
def test_as_the_block(name: str, mask: str) -> None:
    block, x, arguments = build(name)
    with torch.inference_mode():
        expected, nothing = block(x, attention_mask=MASKS[mask](), **arguments)
        found, weights = kernel(name, block)(x, attention_mask=MASKS[mask](), **arguments)
    assert nothing is None and weights is None
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
    assert found.is_contiguous()


@pytest.mark.parametrize("name", LAYERS)
def test_training(name: str) -> None:
    settings = (
        {"attention_dropout": 0.0} if name in ("llama", "grouped") else {"attention_probs_dropout_prob": 0.0}
    )
    block, x, arguments = build(name, **settings)
    block.train()
    gradients = []
    for forward in (block, kernel(name, block)):
        inputs = [x.clone().requires_grad_(), *block.parameters()]
        gradients.append(torch.autograd.grad(forward(inputs[0], **arguments)[0].square().mean(), inputs))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def _hooked(block: nn.Module) -> dict[str, Any]:
    child = next(child for child in block.children() if isinstance(child, nn.Linear))
    child.register_forward_hook(lambda module, args, output: output * 2)
    return {}


def _eager(block: nn.Module) -> dict[str, Any]:
    block.config._attn_implementation = "eager"  # type: ignore[union-attr]
    return {}


def _dropout(block: nn.Module) -> dict[str, Any]:
    block.train()
    block.attention_dropout = 0.5  # type: ignore[assignment]
    dropout = getattr(block, "dropout", None)
    if isinstance(dropout, nn.Dropout):
        dropout.p = 0.5
    elif dropout is not None:
        block.dropout = 0.5  # type: ignore[assignment]
    return {}


def _not_causal(block: nn.Module) -> dict[str, Any]:
    return {"is_causal": False}


def _biased(block: nn.Module) -> dict[str, Any]:
    return {"position_bias": torch.randn(1, 1, 7, 7, generator=torch.Generator().manual_seed(1))}


@pytest.mark.parametrize(
    "change", [_hooked, _eager, _dropout, _not_causal, _biased], ids=lambda c: c.__name__
)
@pytest.mark.parametrize("name", LAYERS)
def test_what_only_the_original_knows(name: str, change: Callable[[nn.Module], dict[str, Any]]) -> None:
    block, x, arguments = build(name)
    arguments |= change(block)
    with torch.no_grad():
        torch.manual_seed(4)
        expected = block(x, **arguments)
        torch.manual_seed(4)
        found = kernel(name, block)(x, **arguments)
    assert torch.equal(found[0], expected[0])
    assert (found[1] is None) == (expected[1] is None)


def test_another_function_in_the_place_of_sdpa(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def other(module: nn.Module, query: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        return 3 * query.transpose(1, 2).contiguous(), None

    block, x, arguments = build("vit")
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", other)
    with torch.inference_mode():
        assert torch.equal(kernel("vit", block)(x, **arguments)[0], block(x, **arguments)[0])


@pytest.mark.parametrize("name", LAYERS)
def test_weights_are_packed_joined_freed_and_restored(name: str) -> None:
    block, x, arguments = build(name)
    state = {key: value.clone() for key, value in block.state_dict().items()}
    key_of_joined = JOINED._key(block)
    with torch.inference_mode():
        expected = block(x, **arguments)[0]
        JOINED.prepare(block)
        assert JOINED.packed_nbytes(block) >= sum(
            value.nbytes for value in state.values() if value.dim() == 2
        )
        assert JOINED._key(block) in JOINED._JOINED
        torch.testing.assert_close(kernel(name, block)(x, **arguments)[0], expected, rtol=1e-5, atol=2e-6)
        JOINED.free_originals(block)
        assert key_of_joined not in JOINED._JOINED and JOINED.packed_nbytes(block) == 0
        torch.testing.assert_close(kernel(name, block)(x, **arguments)[0], expected, rtol=1e-5, atol=2e-6)
        JOINED.restore_originals(block)
    for key, value in block.state_dict().items():
        assert torch.equal(value, state[key])
    JOINED.release(block)
    assert JOINED.packed_nbytes(block) == 0


def test_edited_weights_are_packed_again() -> None:
    block, x, arguments = build("grouped")
    forward = kernel("grouped", block)
    with torch.no_grad():
        forward(x, **arguments)
        for edit in (block.q_proj.weight.mul_, block.v_proj.weight.data.add_):  # the second counts no version
            edit(0.5)  # type: ignore[operator]
            torch.testing.assert_close(
                forward(x, **arguments)[0], block(x, **arguments)[0], rtol=1e-4, atol=1e-5
            )


def test_a_copy_goes_with_its_weights() -> None:
    block, x, arguments = build("vit")
    with torch.no_grad():
        kernel("vit", block)(x, **arguments)
    key = JOINED._key(block)
    assert key in JOINED._JOINED
    del block
    gc.collect()
    assert key not in JOINED._JOINED


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("grad", [False, True])
def test_compiles_whole(name: str, grad: bool) -> None:
    block, x, arguments = build(name)
    torch._dynamo.reset()
    with torch.set_grad_enabled(grad):
        expected = block(x, **arguments)[0]
        block.forward = kernel(name, block)
        compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
        for _ in range(2):
            found = compiled(x, **arguments)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
    if grad:
        found.sum().backward()


# -- whole models ------------------------------------------------------------------------------------------


def model(**settings: Any) -> LlamaModel:
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
        attn_implementation="sdpa",
        **settings,
    )
    return LlamaModel(config).eval()


def attention_only() -> Any:
    return use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_prefill_and_decode_with_a_cache(kind: str) -> None:
    original, tokens = model(), torch.randint(50, (2, 9))
    swapped = copy.deepcopy(original)
    with attention_only():
        kernelize(swapped, mode=Mode.INFERENCE)
    assert sum(row.layer_name == "RotaryAttention" for row in report(swapped).swapped) == 2
    with torch.inference_mode():
        results = []
        for one in (original, swapped):
            cache = DynamicCache() if kind == "dynamic" else StaticCache(config=one.config, max_cache_len=16)
            parts = [
                tokens[:, :5],
                tokens[:, 5:6],
                tokens[:, 6:7],
                tokens[:, 7:],
            ]  # the last: two with a past
            padding = torch.ones_like(tokens)
            padding[0, :2] = 0
            steps, seen = [], 0
            for part in parts:
                seen += part.shape[1]
                mask = padding[:, :seen]
                steps.append(one(input_ids=part, attention_mask=mask, **{CACHE: cache}).last_hidden_state)
            results.append(torch.cat(steps, 1)[:, 2:])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_travels_and_returns() -> None:
    original, tokens = model(), torch.randint(50, (1, 6))
    with torch.inference_mode(), attention_only():
        expected = original(tokens).last_hidden_state
        swapped = kernelize(copy.deepcopy(original), mode=Mode.INFERENCE)
        for one in (swapped, copy.deepcopy(swapped), pickle.loads(pickle.dumps(swapped))):
            assert "RotaryAttention" in {row.layer_name for row in report(one).swapped}
            torch.testing.assert_close(one(tokens).last_hidden_state, expected, rtol=1e-4, atol=1e-5)
        freed = kernelize(copy.deepcopy(original), mode=Mode.INFERENCE, free_weights=True)
        torch.testing.assert_close(freed(tokens).last_hidden_state, expected, rtol=1e-4, atol=1e-5)
        restore(swapped)
        assert torch.equal(swapped(tokens).last_hidden_state, expected)
    assert all("forward" not in vars(module) for module in swapped.modules())


def test_bfloat16_and_eager_attention_keep_their_forward() -> None:
    with attention_only():
        for other, reason in ((model().bfloat16(), "dtype"), (model(), "_attn_implementation")):
            if reason != "dtype":
                other.set_attn_implementation("eager")
            rows = report(kernelize(other, mode=Mode.INFERENCE)).rows
            reasons = [row.reason for row in rows if row.layer_name == "RotaryAttention"]
            assert len(reasons) == 2 and all(reason in str(one) for one in reasons)
