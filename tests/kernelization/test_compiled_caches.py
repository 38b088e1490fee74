"""Models with a cache of keys and values through the mapping `compiled`: the tokens, and the cache, of the original."""

from __future__ import annotations

import copy
import gc
import logging
import shutil
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kernels_hub import (
    CompiledLayer,
    Mode,
    kernelize,
    replace_kernel_forward_from_hub,
    report,
    restore,
    use_kernel_mapping,
)
from kernels_hub.compiler.jit.layer_compiler import CpuCompiler
from kernels_hub.kernelization import jit_compilations
from tests.combinations import all_but, first
from tests.transformers_caches import CACHE, cache_of

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.usefixtures("mapping_compiled"),
]

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip


ONE_LAYER = {"num_hidden_layers": 1}
TWO_LAYERS = {"num_hidden_layers": 2}


def llama(**more: Any) -> Any:
    """Of one layer, if nothing else is said: half of what a second one's programs take is tracing it."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES | ONE_LAYER | {"num_key_value_heads": 1} | more)
    return transformers.LlamaForCausalLM(config).eval()


def ids(batch: int, length: int) -> Tensor:
    return torch.randint(0, 64, (batch, length), generator=torch.Generator().manual_seed(length))


def generated(model: Any, tokens: Tensor, **options: Any) -> Tensor:
    found: Tensor = model.generate(
        tokens, max_new_tokens=7, min_new_tokens=7, do_sample=False, pad_token_id=0, **options
    )
    return found


def programs(model: Any) -> list[Any]:
    """The layers that the model's calls run on, and what they fell back for."""
    forward = model.__dict__["forward"].func
    return [jit_compilations.program_of(one) for one in forward.forwards(model)]


def contents(cache: Any) -> list[Tensor]:
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]


@pytest.mark.parametrize(("batch",), first(1, [(1,), (2,)]))
def test_generate(batch: int):
    """The first step fills the cache, the others add to it: two programs, and no call falls back."""
    model, original = llama(**TWO_LAYERS), llama(**TWO_LAYERS)
    kernelize(model, mode=Mode.INFERENCE)
    mask = torch.ones(batch, 9, dtype=torch.int64)
    mask[1:, :2] = 0
    assert generated(model, ids(batch, 9), attention_mask=mask).equal(
        generated(original, ids(batch, 9), attention_mask=mask)
    )
    assert generated(model, ids(batch, 13)).equal(generated(original, ids(batch, 13)))
    assert [one.fallbacks for one in programs(model)] == [{}] * 2 * batch  # a mask of ones is none
    (row,) = [one for one in report(model).rows if one.path == ""]
    assert row.swapped and row.packed_nbytes > 0


OTHER_FAMILIES = [
    ("GPT2LMHeadModel", {"vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 32}),
    (
        "Qwen3MoeForCausalLM",
        {
            **SIZES,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
        },
    ),
    ("Qwen3ForCausalLM", {**SIZES, "num_key_value_heads": 1, "head_dim": 16}),
    ("BloomForCausalLM", {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 2}),
    ("OPTForCausalLM", {**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32}),
]


@pytest.mark.parametrize(("name", "config"), first(1, OTHER_FAMILIES))
def test_other_families(name: str, config: dict[str, Any]):
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    original = kind(kind.config_class(**config)).eval()
    model = copy.deepcopy(original)
    kernelize(model, mode=Mode.INFERENCE)
    assert generated(model, ids(1, 6)).equal(generated(original, ids(1, 6)))
    assert any(
        row.swapped and row.revision for row in report(model).rows if row.layer_name == "CompiledModel"
    )


def test_a_cache_is_changed_in_place():
    model, original = llama(), llama()
    kernelize(model, mode=Mode.INFERENCE)
    ours, theirs = (transformers.DynamicCache(config=model.config) for _ in range(2))
    for tokens in (ids(1, 6), ids(1, 1), ids(1, 1), ids(1, 3), ids(1, 1)):
        found = model(tokens, **{CACHE: ours})
        expected = original(tokens, **{CACHE: theirs})
        assert cache_of(found) is ours
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=2e-5)
        for one, other in zip(contents(ours), contents(theirs), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)
    assert len(programs(model)) == 3  # empty; full, for one token; full, for several
    assert ours.get_seq_length() == 12 and [type(one).__name__ for one in ours.layers] == ["DynamicLayer"]
    before = [one.clone() for one in contents(ours)]
    kept = copy.deepcopy(ours)
    model(ids(1, 1), **{CACHE: kept})
    assert all(one.equal(other) for one, other in zip(contents(ours), before, strict=True))


def test_a_cache_that_the_model_makes():
    model, original = llama().model, llama().model
    kernelize(model, mode=Mode.INFERENCE)
    found, expected = model(ids(2, 5), use_cache=True), original(ids(2, 5), use_cache=True)
    assert [row.swapped for row in report(model).rows if row.path == ""] == [True]
    assert type(cache_of(found)) is type(cache_of(expected))
    for one, other in zip(contents(cache_of(found)), contents(cache_of(expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)
    again = [one(ids(2, 1), **{CACHE: cache_of(of)}) for one, of in ((model, found), (original, expected))]
    torch.testing.assert_close(again[0].last_hidden_state, again[1].last_hidden_state, rtol=1e-4, atol=2e-5)


def test_a_prompt_of_one_token():
    """The first steps run the original: a program for a cache of one token would serve no other."""
    model, original = llama(), llama()
    kernelize(model, mode=Mode.INFERENCE)
    assert generated(model, ids(1, 1)).equal(generated(original, ids(1, 1)))
    assert all(one.fallbacks == {} for one in programs(model))


@pytest.mark.exhaustive
def test_beams():
    model, original = llama(), llama()
    kernelize(model, mode=Mode.INFERENCE)
    assert generated(model, ids(2, 6), num_beams=3).equal(generated(original, ids(2, 6), num_beams=3))


def test_other_kinds_of_caches_run_the_original(caplog: pytest.LogCaptureFixture):
    model, original = llama(), llama()
    kernelize(model, mode=Mode.INFERENCE)
    with caplog.at_level(logging.WARNING, "kernels_hub"):
        found = generated(model, ids(1, 6), cache_implementation="static")
    assert found.equal(generated(original, ids(1, 6), cache_implementation="static"))
    assert "keeps its original forward" in caplog.text


def windowed(kind: str, window: int, **more: Any) -> Any:
    cls = getattr(transformers, kind)
    torch.manual_seed(0)
    sizes = SIZES | {"num_key_value_heads": 1, "head_dim": 16, "sliding_window": window}
    config = cls.config_class(**sizes | more)
    return cls(config).eval()


HYBRID = {"layer_types": ["sliding_attention", "full_attention"]}
WINDOWED = [
    ("MistralForCausalLM", ONE_LAYER),
    ("Gemma3ForCausalLM", {**HYBRID, "query_pre_attn_scalar": 16}),
    ("GptOssForCausalLM", {**HYBRID, "num_local_experts": 4, "num_experts_per_tok": 2}),
    ("Gemma2ForCausalLM", {**HYBRID, "query_pre_attn_scalar": 16}),
    ("Phi3ForCausalLM", {"pad_token_id": 0}),
    ("Qwen2ForCausalLM", {"use_sliding_window": True, **HYBRID}),
]


PROMPTED = [(*row, given) for row in WINDOWED for given in (False, True)]
"""Whether the cache is given: else the model makes it."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "more"), WINDOWED)
def test_a_sliding_window_that_is_not_reached(kind: str, more: dict[str, Any]):
    model, original = windowed(kind, 32, **more), windowed(kind, 32, **more)
    kernelize(model, mode=Mode.INFERENCE)
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1:, :2] = 0
    found = generated(model, ids(2, 9), attention_mask=mask)
    assert found.equal(generated(original, ids(2, 9), attention_mask=mask))
    assert [one.fallbacks for one in programs(model)] == [{}] * 2


@pytest.mark.parametrize(("kind", "more"), first(1, WINDOWED[:4]))
@pytest.mark.parametrize(
    "lengths",
    all_but(
        [(3, 1, 1, 1, 1, 1, 1), (9, 1, 1), (3, 5, 1), (7, 1, 1), (6, 1, 3)],
        (3, 1, 1, 1, 1, 1, 1),
        (7, 1, 1),
        (6, 1, 3),
    ),
)
def test_a_sliding_window_forgets(kind: str, more: dict[str, Any], lengths: tuple[int, ...]):
    """At every step the cache holds what the original's holds; from where it has forgotten on, the original runs."""
    model, original = windowed(kind, 8, **more), windowed(kind, 8, **more)
    kernelize(model, mode=Mode.INFERENCE)
    for length in (3, 1):  # compiled by calls of which no cache has forgotten anything
        model(ids(1, length), **{CACHE: transformers.DynamicCache(config=model.config)})
    ours, theirs = (transformers.DynamicCache(config=model.config) for _ in range(2))
    for step, length in enumerate(lengths):
        found, expected = (
            one(ids(1, length), **{CACHE: cache}) for one, cache in ((model, ours), (original, theirs))
        )
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=2e-5)
        for one, other in zip(ours.layers, theirs.layers, strict=True):
            assert type(one) is type(other) and one.get_seq_length() == other.get_seq_length()
            assert getattr(one, "cumulative_length", None) == getattr(other, "cumulative_length", None), step
        for one, other in zip(contents(ours), contents(theirs), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)
    assert programs(model) and all(one.fallbacks == {} for one in programs(model))


@pytest.mark.parametrize(("kind", "more", "given"), first(2, [*PROMPTED[1:3], PROMPTED[0], *PROMPTED[3:]]))
def test_a_first_prompt_longer_than_the_window(kind: str, more: dict[str, Any], given: bool):
    """It is compiled, as one that the window holds is, and serves both."""
    model, original = windowed(kind, 8, **more), windowed(kind, 8, **more)
    kernelize(model, mode=Mode.INFERENCE)
    for length in (20, 5, 9):
        caches = [transformers.DynamicCache(config=model.config) if given else None for _ in range(2)]
        found, expected = (
            one(ids(1, length), **{CACHE: cache})
            for one, cache in zip((model, original), caches, strict=True)
        )
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=2e-5)
        for one, other in zip(cache_of(found).layers, cache_of(expected).layers, strict=True):
            assert one.get_seq_length() == other.get_seq_length() == length
        for one, other in zip(contents(cache_of(found)), contents(cache_of(expected)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)
    assert [one.fallbacks for one in programs(model)] == [{}]


def test_a_cache_that_records_its_past_runs_the_original(caplog: pytest.LogCaptureFixture):
    """Assisted generation goes back in it: it forgets at another time."""
    model, original = windowed("MistralForCausalLM", 8), windowed("MistralForCausalLM", 8)
    kernelize(model, mode=Mode.INFERENCE)
    ours, theirs = (transformers.DynamicCache(config=model.config) for _ in range(2))
    for cache in (ours, theirs):
        for layer in cache.layers:
            layer.activate_past_recording()
    with caplog.at_level(logging.WARNING, "kernels_hub"):
        found, expected = model(ids(1, 9), **{CACHE: ours}), original(ids(1, 9), **{CACHE: theirs})
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=2e-5)
    assert [one.keys.shape for one in ours.layers] == [one.keys.shape for one in theirs.layers]
    assert "a cache of DynamicSlidingWindowLayer is among the arguments" in caplog.text


@pytest.mark.exhaustive
@pytest.mark.parametrize("length", [9, 5])
def test_a_model_that_makes_a_cache_with_a_window(length: int):
    """The cache that comes out forgets as the original's does, and goes on so."""
    models = [windowed("Gemma2ForCausalLM", 8, **HYBRID).model for _ in range(2)]
    kernelize(models[0], mode=Mode.INFERENCE)
    ours, theirs = (cache_of(one(ids(1, length), use_cache=True)) for one in models)
    for step in range(2):
        for one, other in zip(ours.layers, theirs.layers, strict=True):
            assert (
                type(one) is type(other) and one.get_seq_length() == other.get_seq_length() == length + step
            )
            assert getattr(one, "sliding_window", None) == getattr(other, "sliding_window", None)
        for one, other in zip(contents(ours), contents(theirs), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)
        for model, cache in zip(models, (ours, theirs), strict=True):
            model(ids(1, 1), **{CACHE: cache})
    (program, *_) = [
        jit_compilations.program_of(one) for one in models[0].__dict__["forward"].func.forwards(models[0])
    ]
    assert program.fallbacks == {}


@pytest.mark.parametrize(
    ("kind", "more"), [("MambaForCausalLM", {"vocab_size": 64, "hidden_size": 32, "state_size": 4})]
)
def test_states_of_linear_attention(kind: str, more: dict[str, Any]):
    """A call leaves others in the cache; those that it got stay what they are."""
    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    original = cls(cls.config_class(num_hidden_layers=1, **more)).eval()
    model = copy.deepcopy(original)
    kernelize(model, mode=Mode.INFERENCE)
    for options in ({}, {"num_beams": 2}):
        found = generated(model, ids(2, 9), **options)
        assert found.equal(generated(original, ids(2, 9), **options))
    layers = programs(model)
    assert len(layers) == 2 and all(one.fallbacks == {} for one in layers)


MAMBA = {
    "mamba_n_heads": 2,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
}
HYBRIDS = [
    ("Lfm2ForCausalLM", {"layer_types": ["conv", "full_attention"], "block_multiple_of": 16}),
    ("FalconH1ForCausalLM", {**MAMBA, "mamba_d_ssm": 64, "head_dim": 16}),  # both in each layer
    (
        "NemotronHForCausalLM",
        {"layers_block_type": ["mamba", "mlp", "attention"], "mamba_num_heads": 2, "mamba_head_dim": 32,
         "ssm_state_size": 8, "n_groups": 1, "chunk_size": 8, "head_dim": 16},
    ),
]  # fmt: skip


def states(cache: Any) -> list[Tensor]:
    held = [
        (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {})) for layer in cache.layers
    ]
    found = [state for both in held for of in both for state in of.values()]
    found += [
        one
        for layer in cache.layers
        for one in (getattr(layer, "keys", None), getattr(layer, "values", None))
    ]
    return [one for one in found if one is not None]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "more"), HYBRIDS)
def test_layers_of_several_kinds_in_a_cache(kind: str, more: dict[str, Any]):
    """Layers that hold states, keys and values, both, some of the states alone, or nothing."""
    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    sizes = {
        name: size
        for name, size in SIZES.items()
        if name != "num_hidden_layers" or "mamba_num_heads" not in more
    }
    original = cls(cls.config_class(**sizes, num_key_value_heads=1, **more)).eval()
    model = copy.deepcopy(original)
    kernelize(model, mode=Mode.INFERENCE)
    mask = torch.ones(4, 9, dtype=torch.int64)
    mask[1:, :2] = 0
    for tokens, options in (
        (ids(1, 9), {}),
        (ids(4, 9), {"attention_mask": mask}),
        (ids(2, 9), {"num_beams": 2}),
    ):
        assert generated(model, tokens, **options).equal(generated(original, tokens, **options))
    assert len(programs(model)) >= 2 and all(one.fallbacks == {} for one in programs(model))
    ours, theirs = (transformers.DynamicCache(config=model.config) for _ in range(2))
    for length in (6, 1, 1):
        found, expected = (
            one(ids(2, length), **{CACHE: cache}) for one, cache in ((model, ours), (original, theirs))
        )
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=2e-5)
        for one, other in zip(ours.layers, theirs.layers, strict=True):
            assert type(one) is type(other)
            for name in ("has_previous_state", "is_conv_states_initialized", "is_recurrent_states_initialized",
                         "conv_kernel_size", "is_initialized"):  # fmt: skip
                assert getattr(one, name, None) == getattr(other, name, None), name
        for one, other in zip(states(ours), states(theirs), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)
    made = [cache_of(one(ids(2, 6), use_cache=True)) for one in (model, original)]
    assert [type(one) for one in made[0].layers] == [type(one) for one in made[1].layers]
    assert len(states(made[0])) == len(states(made[1]))


TRANSLATORS = [
    (
        "BartForConditionalGeneration",
        {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "pad_token_id": 0,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 32},
    ),
    (
        "T5ForConditionalGeneration",
        {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "config"), first(1, TRANSLATORS))
def test_an_encoder_and_a_decoder(kind: str, config: dict[str, Any]):
    """A cache of two: the decoder's own tokens, and the encoder's, which the first step leaves for the others."""
    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    original = cls(cls.config_class(vocab_size=64, **config)).eval()
    model = copy.deepcopy(original)
    kernelize(model, mode=Mode.INFERENCE)
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1:, 6:] = 0
    for options in ({"attention_mask": mask}, {"num_beams": 2, "attention_mask": mask}):
        found = generated(model, ids(2, 9), **options)
        assert found.equal(generated(original, ids(2, 9), **options))
    layers = programs(model)
    assert len(layers) >= 2 and all(one.fallbacks == {} for one in layers)
    ours, theirs = (one(ids(2, 5), decoder_input_ids=ids(2, 3)) for one in (model, original))
    torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-4, atol=2e-5)
    assert cache_of(ours).is_updated == cache_of(theirs).is_updated


def test_weights_follow_the_module_in_every_form():
    model, original = llama(), llama()
    kernelize(model, mode=Mode.INFERENCE)
    generated(model, ids(1, 6))
    for one in (model, original):
        one.model.layers[-1].mlp.up_proj.weight.mul_(-1.5)
    assert generated(model, ids(1, 6)).equal(generated(original, ids(1, 6)))


def test_packed_weights_are_held_once():
    model = llama()
    kernelize(model, mode=Mode.INFERENCE)
    generated(model, ids(1, 6))
    first, second = ({one.data_ptr() for one in program.known(model).packed} for program in programs(model))
    assert first == second
    (row,) = [one for one in report(model).rows if one.path == ""]
    assert row.packed_nbytes < 1.5 * programs(model)[0].known(model).nbytes


def test_packed_products_of_weights_are_held_once():
    """The program of the second form makes its own, and holds those of the first."""

    class Adapted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(8, 48, bias=False), torch.nn.Linear(40, 8, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return torch.nn.functional.linear(x, self.up.weight @ self.down.weight).relu()

    torch.manual_seed(0)
    model = Adapted().eval()
    original = copy.deepcopy(model)
    replace_kernel_forward_from_hub(Adapted, "Adapted")
    with use_kernel_mapping({"Adapted": {"cpu": CompiledLayer("Adapted")}}, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE)
        for rows in (5, 1, 5, 1):
            x = torch.randn(rows, 40)
            torch.testing.assert_close(model(x), original(x))
    forward = model.__dict__["forward"].func
    first, second = (jit_compilations.program_of(one).known(model).packed for one in forward.forwards(model))
    assert [one.data_ptr() for one in first] == [one.data_ptr() for one in second]


def test_tokens_share_what_is_laid_out():
    """Each token's call has other sizes, and memory that another call of little fewer tokens laid out."""
    model = llama()
    kernelize(model, mode=Mode.INFERENCE)
    generated(model, ids(1, 20))
    for one in programs(model):
        one.bindings._made.clear()  # other tests' models have the same programs
    model.generate(ids(1, 20), max_new_tokens=40, min_new_tokens=40, do_sample=False, pad_token_id=0)
    bindings = [list(one.bindings._made.values()) for one in programs(model)]
    assert [len(of) for of in bindings] == [1, 39]
    assert len({id(one.layout) for one in bindings[1]}) <= 12
    assert len(programs(model)[1].known(model).program._frames) <= 12


def test_a_model_ends_with_what_was_compiled_for_it():
    model = llama()
    kernelize(model, mode=Mode.INFERENCE)
    generated(model, ids(1, 6))
    state, weight = weakref.ref(programs(model)[1].known(model)), weakref.ref(model.lm_head.weight)
    del model
    gc.collect()
    gc.collect()  # the model first, then what was kept of it
    assert state() is None and weight() is None


def test_restored():
    model = llama()
    kernelize(model, mode=Mode.INFERENCE)
    generated(model, ids(1, 6))
    forward = model.__dict__["forward"].func
    assert forward.kernel_weights.packed_nbytes(model) > 0
    restore(model)
    assert "forward" not in vars(model) and forward.kernel_weights.packed_nbytes(model) == 0


def test_torch_knows_nothing_of_it_afterwards():
    model = llama()
    kernelize(model, mode=Mode.INFERENCE)
    generated(model, ids(1, 6))
    assert transformers.DynamicCache not in pytree.SUPPORTED_NODES


def test_another_registration_comes_back(monkeypatch: pytest.MonkeyPatch):
    theirs = object()
    monkeypatch.setitem(pytree.SUPPORTED_NODES, transformers.DynamicCache, theirs)
    from kernels_hub.compiler.export.caches import caches_as_trees

    with caches_as_trees(), caches_as_trees():
        assert pytree.SUPPORTED_NODES[transformers.DynamicCache] is not theirs
    assert pytree.SUPPORTED_NODES[transformers.DynamicCache] is theirs


@pytest.mark.exhaustive
def test_refused_tokens_ask_for_no_signature(monkeypatch: pytest.MonkeyPatch):
    """A model that leaves tensors of each call in its layers is not compiled, and is not asked about at each token."""
    torch.manual_seed(0)
    config = transformers.RecurrentGemmaConfig(
        **{**SIZES, "num_hidden_layers": 3}, num_key_value_heads=1, lru_width=32, attention_window_size=16
    )
    model = transformers.RecurrentGemmaForCausalLM(config).eval()
    original = copy.deepcopy(model)
    kernelize(model, mode=Mode.INFERENCE, wait=True)
    assert generated(model, ids(2, 5)).equal(generated(original, ids(2, 5)))
    asked: list[str] = []
    signature = CpuCompiler.signature

    def counted(compiler: CpuCompiler, layer: Any, module: Any, args: Any, kwargs: Any) -> Any:
        asked.append(type(module).__name__)
        return signature(compiler, layer, module, args, kwargs)

    monkeypatch.setattr(CpuCompiler, "signature", counted)
    assert generated(model, ids(2, 5)).equal(generated(original, ids(2, 5)))
    assert set(asked) <= {"RecurrentGemmaDecoderLayer"} and len(asked) <= 7, "the layer of attention alone"
    (row,) = [one for one in report(model).rows if one.path == ""]
    assert not row.swapped and "in its module" in row.reason + str(row.details)
