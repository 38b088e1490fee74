"""The attention blocks of `layers/attention` that are Llama's, BERT's or ViT's but for a part, against transformers'."""

from __future__ import annotations

import copy
import importlib
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache

from kernels_hub import Mode, kernelize, load_kernel_mapping, report, restore, use_kernel_mapping
from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.combinations import every_value

PACKAGE: ModuleType = import_kernel(source_variant(bundled_folder() / "attention", "cpu"))
JOINED = PACKAGE.weights
HIDDEN, HEAD, LENGTH = 256, 64, 7

_SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 60,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2, "attn_implementation": "sdpa"}
_BART = {
    "d_model": HIDDEN,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": HIDDEN,
    "decoder_ffn_dim": HIDDEN,
    "vocab_size": 60,
    "max_position_embeddings": 64,
    "attention_dropout": 0.0,
    "attn_implementation": "sdpa",
}


@dataclass(frozen=True)
class Block:
    """An attention class of transformers, what it is built from, and the layer that stands for it."""

    layer: str
    family: str
    attention: str
    config: str
    given: dict[str, Any] = field(default_factory=dict)
    index: int = 0
    """Which layer of the model: what turns, and what has a window, may depend on it."""
    turned: int = HEAD

    def __str__(self) -> str:
        return self.family


BLOCKS = {
    "qwen3": Block("NormedRotaryAttention", "qwen3", "Qwen3Attention", "Qwen3Config", {**_GROUPED, "head_dim": HEAD}),
    "gemma3": Block(
        "NormedRotaryAttention", "gemma3", "Gemma3Attention", "Gemma3TextConfig", {**_GROUPED, "head_dim": HEAD}
    ),
    "minimax_m2": Block(
        "NormedRotaryAttention", "minimax_m2", "MiniMaxM2Attention", "MiniMaxM2Config",
        {**_GROUPED, "head_dim": HEAD, "rotary_dim": HEAD},
    ),
    "olmo2": Block("NormedRotaryAttentionCastBack", "olmo2", "Olmo2Attention", "Olmo2Config", _GROUPED),
    "olmo3": Block("NormedRotaryAttentionCastBack", "olmo3", "Olmo3Attention", "Olmo3Config", _GROUPED),
    "phi3": Block("JoinedRotaryAttention", "phi3", "Phi3Attention", "Phi3Config", _GROUPED),
    "phi3 in part": Block(
        "JoinedRotaryAttention", "phi3", "Phi3Attention", "Phi3Config", _GROUPED, turned=HEAD // 2
    ),
    "starcoder2": Block("RotaryAttention", "starcoder2", "Starcoder2Attention", "Starcoder2Config", _GROUPED),
    "smollm3": Block(
        "OptionalRotaryAttention", "smollm3", "SmolLM3Attention", "SmolLM3Config",
        {**_GROUPED, "no_rope_layers": [1, 0]},
    ),
    "smollm3 still": Block(
        "OptionalRotaryAttention", "smollm3", "SmolLM3Attention", "SmolLM3Config",
        {**_GROUPED, "no_rope_layers": [1, 0]}, index=1,
    ),
    "cohere2": Block(
        "InterleavedRotaryAttention", "cohere2", "Cohere2Attention", "Cohere2Config",
        {**_GROUPED, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "cohere2 still": Block(
        "InterleavedRotaryAttention", "cohere2", "Cohere2Attention", "Cohere2Config",
        {**_GROUPED, "layer_types": ["sliding_attention", "full_attention"]}, index=1,
    ),
    "glm4": Block("InterleavedRotaryAttentionInPart", "glm4", "Glm4Attention", "Glm4Config", {**_GROUPED, "head_dim": HEAD}),
    "glm4 in part": Block(
        "InterleavedRotaryAttentionInPart", "glm4", "Glm4Attention", "Glm4Config", {**_GROUPED, "head_dim": HEAD},
        turned=HEAD // 2,
    ),
    "phi": Block("PhiAttention", "phi", "PhiAttention", "PhiConfig", _GROUPED, turned=HEAD // 2),
    "phi normed": Block(
        "PhiAttention", "phi", "PhiAttention", "PhiConfig", {**_GROUPED, "qk_layernorm": True}, turned=HEAD // 2
    ),
    "gpt_neox": Block(
        "GptNeoxAttention", "gpt_neox", "GPTNeoXAttention", "GPTNeoXConfig", {**_SIZES, "attn_implementation": "sdpa"},
        turned=HEAD // 4,
    ),
}  # fmt: skip
"""Decoders' blocks."""


@pytest.fixture(autouse=True)
def pack_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack for smaller products than pays, so that shapes here are small."""
    products = sys.modules[PACKAGE.__name__ + ".packing"].products
    monkeypatch.setattr(products, "pays", lambda x, weight: weight.dim() == 2 and x.numel() >= HIDDEN)


@pytest.fixture(params=["small", "ours"])
def attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """PyTorch's attention, which these sizes get, or ours, which larger ones get."""
    if request.param == "ours":
        monkeypatch.setattr(PACKAGE.layers.modules, "_SMALL", 0)
    return str(request.param)


def found(family: str, name: str) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name)


def build(name: str) -> tuple[nn.Module, Tensor, dict[str, Any]]:
    """(block, hidden states, other arguments)."""
    torch.manual_seed(0)
    one = BLOCKS[name]
    config = getattr(transformers, one.config)(**one.given)
    block = found(one.family, one.attention)(config, one.index).eval()
    for child in ("q_norm", "k_norm", "q_layernorm", "k_layernorm"):
        if hasattr(block, child):
            nn.init.normal_(getattr(block, child).weight, 1.0, 0.3)
    angles = torch.randn(2, LENGTH, one.turned)
    given = {"position_embeddings": (angles.cos(), angles.sin()), "attention_mask": None}
    return block, torch.randn(2, LENGTH, HIDDEN), given


def kernel(name: str, block: nn.Module) -> Callable[..., Any]:
    return types.MethodType(getattr(PACKAGE.layers, BLOCKS[name].layer).forward, block)


MASKS: dict[str, Callable[[], Tensor | None]] = {
    "none": lambda: None,
    "bool": lambda: torch.rand(2, 1, 7, 7, generator=torch.Generator().manual_seed(3)) > 0.3,
    "float": lambda: torch.randn(2, 1, 7, 7, generator=torch.Generator().manual_seed(3)),
}


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=4e-6)


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.usefixtures("attention")
def test_as_the_block(name: str, mask: str) -> None:
    block, x, arguments = build(name)
    arguments["attention_mask"] = MASKS[mask]()
    with torch.inference_mode():
        expected, nothing = block(x, **arguments)
        actual, weights = kernel(name, block)(x, **arguments)
    assert nothing is None and weights is None
    close(actual, expected)
    assert actual.is_contiguous()


@pytest.mark.parametrize("name", BLOCKS)
def test_training(name: str) -> None:
    block, x, arguments = build(name)
    for dropout in ("attention_dropout", "residual_dropout"):
        if hasattr(block, dropout):
            setattr(block, dropout, 0.0)
    block.train()
    gradients = []
    for forward in (block, kernel(name, block)):
        inputs = [x.clone().requires_grad_(), *block.parameters()]
        gradients.append(torch.autograd.grad(forward(inputs[0], **arguments)[0].square().mean(), inputs))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-6)


def _hooked(block: nn.Module) -> dict[str, Any]:
    last = getattr(block, "o_proj", None) or block.dense
    last.register_forward_hook(lambda module, args, output: output * 2)  # type: ignore[union-attr, operator]
    return {}


def _eager(block: nn.Module) -> dict[str, Any]:
    block.config._attn_implementation = "eager"  # type: ignore[union-attr]
    return {}


def _dropout(block: nn.Module) -> dict[str, Any]:
    block.train()
    block.attention_dropout = 0.5  # type: ignore[assignment]
    return {}


def _residual_dropout(block: nn.Module) -> dict[str, Any]:
    block.train()
    block.attention_dropout = 0.0  # type: ignore[assignment]
    if hasattr(block, "residual_dropout"):
        block.residual_dropout = 0.5
    else:
        block.attention_dropout = 0.5  # type: ignore[assignment]
    return {}


def _not_causal(block: nn.Module) -> dict[str, Any]:
    return {"is_causal": False}


def _weights_asked_for(block: nn.Module) -> dict[str, Any]:
    return {"output_attentions": True}


@pytest.mark.parametrize(
    "change",
    [_hooked, _eager, _dropout, _residual_dropout, _not_causal, _weights_asked_for],
    ids=lambda c: c.__name__,
)
@pytest.mark.parametrize("name", BLOCKS)
def test_what_only_the_original_knows(name: str, change: Callable[[nn.Module], dict[str, Any]]) -> None:
    block, x, arguments = build(name)
    arguments |= change(block)
    with torch.no_grad():
        torch.manual_seed(4)
        expected = block(x, **arguments)
        torch.manual_seed(4)
        actual = kernel(name, block)(x, **arguments)
    assert torch.equal(actual[0], expected[0])
    assert (actual[1] is None) == (expected[1] is None)


class _Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


def test_a_norm_without_a_weight_is_the_originals() -> None:
    block, x, arguments = build("qwen3")
    block.q_norm = _Halved()
    with torch.inference_mode():
        assert torch.equal(kernel("qwen3", block)(x, **arguments)[0], block(x, **arguments)[0])


def test_hooks_of_a_norm_run() -> None:
    block, x, arguments = build("gemma3")
    block.k_norm.register_forward_hook(lambda module, args, output: output * 2)  # type: ignore[union-attr, operator]
    with torch.inference_mode():
        close(kernel("gemma3", block)(x, **arguments)[0], block(x, **arguments)[0])


@every_value(name=BLOCKS, grad=[False, True])
def test_compiles_whole(name: str, grad: bool) -> None:
    block, x, arguments = build(name)
    torch._dynamo.reset()
    with torch.set_grad_enabled(grad):
        expected = block(x, **arguments)[0]
        block.forward = kernel(name, block)
        actual = torch.compile(block, backend="aot_eager", fullgraph=True)(x, **arguments)[0]
    close(actual, expected)


@pytest.mark.parametrize("name", ["qwen3", "phi3"])
def test_weights_are_packed_freed_and_restored(name: str) -> None:
    block, x, arguments = build(name)
    state = {key: value.clone() for key, value in block.state_dict().items()}
    with torch.inference_mode():
        expected = block(x, **arguments)[0]
        JOINED.prepare(block)
        assert JOINED.packed_nbytes(block) >= sum(v.nbytes for v in state.values() if v.dim() == 2)
        JOINED.free_originals(block)
        close(kernel(name, block)(x, **arguments)[0], expected)
        JOINED.restore_originals(block)
    for key, value in block.state_dict().items():
        assert torch.equal(value, state[key])
    JOINED.release(block)
    assert JOINED.packed_nbytes(block) == 0


# -- encoders and decoders of BART's kind, encoders --------------------------------------------------------

FAMILIES = {"bart": "EncoderDecoderAttention", "whisper": "WhisperAttention"}


def attention_of(family: str, *, cross: bool, decoder: bool = True) -> nn.Module:
    torch.manual_seed(0)
    name = family.capitalize()
    config = getattr(transformers, f"{name}Config")(**_BART)
    block: nn.Module = found(family, f"{name}Attention")(
        HIDDEN, 4, is_decoder=decoder, is_causal=decoder and not cross, config=config, layer_idx=0
    )
    return block.eval()


def forward_of(family: str) -> Callable[..., Any]:
    forward: Callable[..., Any] = getattr(PACKAGE.layers, FAMILIES[family]).forward
    return forward


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.usefixtures("attention")
def test_as_a_block_of_an_encoder_and_a_decoder(family: str, kind: str, mask: str) -> None:
    block = attention_of(family, cross=kind == "cross", decoder=kind != "encoder")
    x, states = torch.randn(2, LENGTH, HIDDEN), torch.randn(2, LENGTH, HIDDEN) if kind == "cross" else None
    with torch.inference_mode():
        JOINED.prepare(block)
        assert (JOINED._key(block) in JOINED._JOINED) == (kind != "cross")
        expected = block(x, states, attention_mask=MASKS[mask]())[0]
        close(forward_of(family)(block, x, states, attention_mask=MASKS[mask]())[0], expected)


@pytest.mark.parametrize("both", [True, False], ids=["two caches", "one cache"])
@pytest.mark.parametrize("family", FAMILIES)
def test_caches_are_filled_as_the_originals_do(family: str, both: bool) -> None:
    own, other = attention_of(family, cross=False), attention_of(family, cross=True)
    x, states = torch.randn(2, LENGTH, HIDDEN), torch.randn(2, 9, HIDDEN)
    outputs: list[list[Tensor]] = []
    for kernels in (False, True):
        forward: Any = forward_of(family) if kernels else type(own).forward
        cache: Any = EncoderDecoderCache(DynamicCache(), DynamicCache()) if both else None
        decoder: Any = cache if both else DynamicCache()
        encoder: Any = cache if both else DynamicCache()
        results = []
        with torch.inference_mode():
            for part in (x[:, :4], x[:, 4:5], x[:, 5:]):
                results.append(forward(own, part, None, decoder)[0])
                results.append(forward(other, part, states, encoder)[0])
        if both:
            assert cache.is_updated == {0: True}
            results += [
                cache.self_attention_cache.layers[0].keys,
                cache.cross_attention_cache.layers[0].values,
            ]
        else:
            results += [decoder.layers[0].values, encoder.layers[0].keys]
        outputs.append(results)
    for actual, expected in zip(outputs[1], outputs[0], strict=True):
        close(actual, expected)


@pytest.mark.parametrize("change", ["dropout", "weights", "hooked"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_only_these_blocks_know(family: str, change: str) -> None:
    block = attention_of(family, cross=True)
    x, states, more = torch.randn(1, 4, HIDDEN), torch.randn(1, 5, HIDDEN), {}
    if change == "dropout":
        block.train()
        block.dropout = 0.5  # type: ignore[assignment]
    elif change == "weights":
        more = {"output_attentions": True}
    else:
        block.v_proj.register_forward_hook(lambda module, args, output: output * 2)  # type: ignore[union-attr, operator]
    with torch.no_grad():
        torch.manual_seed(1)
        expected = block(x, states, **more)[0]
        torch.manual_seed(1)
        assert torch.equal(forward_of(family)(block, x, states, **more)[0], expected)


def opt_attention() -> nn.Module:
    config = transformers.OPTConfig(
        hidden_size=HIDDEN, num_attention_heads=4, ffn_dim=HIDDEN, word_embed_proj_dim=HIDDEN,
        attention_dropout=0.0, attn_implementation="sdpa",
    )  # fmt: skip
    block: nn.Module = found("opt", "OPTAttention")(config, 0)
    return block.eval()


def wav2vec2_attention() -> nn.Module:
    config = transformers.Wav2Vec2Config(attn_implementation="sdpa")
    block: nn.Module = found("wav2vec2", "Wav2Vec2Attention")(HIDDEN, 4, config=config)
    return block.eval()


OTHERS = {"OptAttention": opt_attention, "Wav2Vec2Attention": wav2vec2_attention}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("layer", OTHERS)
@pytest.mark.usefixtures("attention")
def test_as_opts_and_wav2vec2s_block(layer: str, mask: str) -> None:
    torch.manual_seed(0)
    block, x = OTHERS[layer](), torch.randn(2, LENGTH, HIDDEN)
    forward = getattr(PACKAGE.layers, layer).forward
    with torch.inference_mode():
        close(forward(block, x, attention_mask=MASKS[mask]())[0], block(x, attention_mask=MASKS[mask]())[0])
        expected = block(x, attention_mask=MASKS[mask](), output_attentions=True)[0]
        assert torch.equal(
            forward(block, x, attention_mask=MASKS[mask](), output_attentions=True)[0], expected
        )
    block.train()
    block.dropout = 0.5  # type: ignore[assignment]
    with torch.no_grad():
        torch.manual_seed(1)
        expected = block(x, attention_mask=MASKS[mask]())[0]
        torch.manual_seed(1)
        assert torch.equal(forward(block, x, attention_mask=MASKS[mask]())[0], expected)


def test_wav2vec2s_block_over_other_states_is_the_originals() -> None:
    block, x, states = wav2vec2_attention(), torch.randn(1, 4, HIDDEN), torch.randn(1, 6, HIDDEN)
    with torch.inference_mode():
        expected = block(x, states)[0]
        assert torch.equal(PACKAGE.layers.Wav2Vec2Attention.forward(block, x, states)[0], expected)


def yolos_attention() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.YolosConfig(hidden_size=HIDDEN, num_attention_heads=4, attn_implementation="sdpa")
    block: nn.Module = found("yolos", "YolosSelfAttention")(config)
    return block.eval()


@pytest.mark.usefixtures("attention")
def test_as_yoloss_block() -> None:
    block, x = yolos_attention(), torch.randn(2, LENGTH, HIDDEN)
    with torch.inference_mode():
        close(PACKAGE.layers.UnmaskedSelfAttention.forward(block, x)[0], block(x)[0])
    block.train()
    block.dropout_prob = 0.5  # type: ignore[assignment]
    with torch.no_grad():
        torch.manual_seed(1)
        expected = block(x)[0]
        torch.manual_seed(1)
        assert torch.equal(PACKAGE.layers.UnmaskedSelfAttention.forward(block, x)[0], expected)


# -- whole models ------------------------------------------------------------------------------------------

_WINDOW = {"sliding_window": 4}
MODELS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "qwen3": ("NormedRotaryAttention", "Qwen3ForCausalLM", "Qwen3Config", {**_GROUPED, "head_dim": HEAD}),
    "gemma3": (
        "NormedRotaryAttention", "Gemma3ForCausalLM", "Gemma3TextConfig",
        {**_GROUPED, **_WINDOW, "head_dim": HEAD, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "olmo2": ("NormedRotaryAttentionCastBack", "Olmo2ForCausalLM", "Olmo2Config", _GROUPED),
    "phi3": ("JoinedRotaryAttention", "Phi3ForCausalLM", "Phi3Config", {**_GROUPED, **_WINDOW}),
    "starcoder2": ("RotaryAttention", "Starcoder2ForCausalLM", "Starcoder2Config", {**_GROUPED, **_WINDOW}),
    "smollm3": (
        "OptionalRotaryAttention", "SmolLM3ForCausalLM", "SmolLM3Config", {**_GROUPED, "no_rope_layers": [1, 0]}
    ),
    "cohere2": (
        "InterleavedRotaryAttention", "Cohere2ForCausalLM", "Cohere2Config",
        {**_GROUPED, **_WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "glm4": ("InterleavedRotaryAttentionInPart", "Glm4ForCausalLM", "Glm4Config", {**_GROUPED, "head_dim": HEAD}),
    "phi": ("PhiAttention", "PhiForCausalLM", "PhiConfig", _GROUPED),
    "gpt_neox": ("GptNeoxAttention", "GPTNeoXForCausalLM", "GPTNeoXConfig", {**_SIZES, "attn_implementation": "sdpa"}),
    "bloom": (
        "BloomAttention", "BloomForCausalLM", "BloomConfig",
        {"hidden_size": HIDDEN, "n_layer": 2, "n_head": 4, "vocab_size": 60, "pad_token_id": 0, "eos_token_id": 2},
    ),
    "gemma2": (
        "SoftcappedRotaryAttention", "Gemma2ForCausalLM", "Gemma2Config",
        {**_GROUPED, **_WINDOW, "head_dim": HEAD, "attn_implementation": "eager", "attn_logit_softcapping": 0.5},
    ),
    "bart": ("EncoderDecoderAttention", "BartForConditionalGeneration", "BartConfig", _BART),
    "opt": (
        "OptAttention", "OPTForCausalLM", "OPTConfig",
        {**_SIZES, "ffn_dim": HIDDEN, "word_embed_proj_dim": HIDDEN, "attn_implementation": "sdpa"},
    ),
    "whisper": (
        "WhisperAttention", "WhisperForConditionalGeneration", "WhisperConfig",
        {**_BART, "max_source_positions": 16, "max_target_positions": 32, "decoder_start_token_id": 1,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "begin_suppress_tokens": None, "suppress_tokens": None},
    ),
}  # fmt: skip


def default_mapping() -> Any:
    return use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_writes_the_same_tokens(name: str) -> None:
    """Left padding, a prompt that is longer than the window, greedy and with beams."""
    warnings.simplefilter("ignore")
    layer, cls, config, settings = MODELS[name]
    torch.manual_seed(1)
    model: Any = getattr(transformers, cls)(getattr(transformers, config)(**settings)).eval()
    swapped = copy.deepcopy(model)
    with default_mapping():
        kernelize(swapped, mode=Mode.INFERENCE)
    blocks = [row for row in report(swapped).rows if row.layer_name == layer]
    idle = {row.path for row in blocks if "EncoderLayer computes it" in str(row.reason)}
    assert all(row.swapped or row.path in idle for row in blocks)
    assert any(row.swapped for row in blocks) and all(".encoder." in path for path in idle)
    tokens = torch.randint(3, 60, (2, 6))
    mask = torch.ones_like(tokens)
    mask[0, :2] = 0
    given: dict[str, Any] = {"input_ids": tokens, "attention_mask": mask}
    if name == "whisper":
        given = {"input_features": torch.randn(2, 80, 32)}
    with torch.inference_mode():
        for beams in (1, 2):
            written = [
                one.generate(
                    **given, max_new_tokens=6, min_new_tokens=6, num_beams=beams,
                    do_sample=False, output_scores=True, return_dict_in_generate=True,
                )
                for one in (model, swapped)
            ]  # fmt: skip
            assert torch.equal(written[0].sequences, written[1].sequences)
            for ours, theirs in zip(written[1].scores, written[0].scores, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    restore(swapped)
    assert all("forward" not in vars(module) for module in swapped.modules())


@pytest.mark.parametrize("name", ["qwen3", "phi3"])
def test_bfloat16_keeps_its_forward(name: str) -> None:
    layer, cls, config, given = MODELS[name]
    model = getattr(transformers, cls)(getattr(transformers, config)(**given)).bfloat16().eval()
    with default_mapping():
        rows = report(kernelize(model, mode=Mode.INFERENCE)).rows
    reasons = [row.reason for row in rows if row.layer_name == layer]
    assert len(reasons) == 2 and all("dtype" in str(one) for one in reasons)


def test_a_linear_layer_of_falcon() -> None:
    linear: Any = found("falcon", "FalconLinear")
    with default_mapping():
        without, with_bias = (
            linear(HIDDEN, HIDDEN, bias=False).eval(),
            linear(HIDDEN, HIDDEN, bias=True).eval(),
        )
        rows = [report(kernelize(one, mode=Mode.INFERENCE)).rows[0] for one in (without, with_bias)]
    assert [row.swapped for row in rows] == [True, False]
    assert "bias" in str(rows[1].reason)
    x = torch.randn(300, HIDDEN)
    with torch.inference_mode():
        close(without(x), x @ without.weight.T)
