"""The shipped mappings against every modeling file of transformers: what they tag, and what they leave alone.

Counts are lower bounds: a newer transformers may add families, not take the known ones away.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import tomllib
import types
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub import BundledLayerRepository, Mode, explain, load_kernel_mapping, use_kernel_mapping
from kernels_hub.kernelization.condition import Conditions
from kernels_hub.kernelization.contract import (
    Contract,
    class_difference,
    class_fulfils,
    function_difference,
    function_fulfils,
)
from kernels_hub.kernelization.mapping_file import _shipped_folder, shipped_mappings
from kernels_hub.kernelization.mapping_records import RuleDecision
from kernels_hub.kernelization.tag_rule import PatternIndex, TagEntry, TagRules
from kernels_hub.kernelization.validate import check_signature, same_arity
from kernels_hub.repository.bundled import bundled_folder, bundled_repository
from tests.kernelization.mapping_schema import schema_errors
from tests.vision_look_alikes import importable, timm, torchvision

transformers = pytest.importorskip("transformers", reason="needs the package transformers")

COVERAGE = {
    "RMSNorm": 141,
    "RMSNormRoundedOnce": 24,
    "RMSNormZeroCentered": 13,
    "MambaRMSNormGated": 5,
    "RMSNormGated": 5,
    "RMSNormGatedFloat32": 3,
    "GatedMLP": 144,
    "MLP": 124,
    "JoinedGatedMLP": 9,
    "LinearActivation": 64,
    "Conv1D": 1,
    "ConvNormActivation": 13,
    "ConvNorm": 3,
    "ConvNextBlock": 2,
    "PreNormEncoderLayer": 52,
    "UnmaskedEncoderLayer": 3,
    "PostNormEncoderLayer": 21,
    "BertEncoderLayer": 11,
    "BiasedEncoderLayer": 1,
    "TorchEncoderLayer": 1,
    "JoinedEncoderLayer": 1,
    "MultiheadEncoderLayer": 1,
    "ResNetBasic": 2,
    "ResNetBottleneck": 2,
    "SiLU": 1,
    "GELU": 1,
    "GeluTanh": 1,
    "NewGELU": 1,
    "FastGELU": 1,
    "QuickGELU": 1,
    "rotary_pos_emb": 133,
    "rotary_pos_emb_of_halves": 1,
    "rotary_pos_emb_cast_back": 7,
    "rotary_pos_emb_interleaved": 5,
    "GatedExperts": 54,
    "ClampedExperts": 1,
    "TopKRouter": 2,
    "TopKRouterRounded": 12,
    "Linear": 2,
    "RotaryAttention": 33,
    "NormedRotaryAttention": 12,
    "NormedRotaryAttentionCastBack": 3,
    "JoinedRotaryAttention": 2,
    "OptionalRotaryAttention": 1,
    "InterleavedRotaryAttention": 1,
    "InterleavedRotaryAttentionInPart": 1,
    "PhiAttention": 1,
    "GptNeoxAttention": 1,
    "BloomAttention": 1,
    "SoftcappedRotaryAttention": 3,
    "SinkAttention": 1,
    "SelfAttention": 13,
    "UnmaskedSelfAttention": 3,
    "EncoderAttention": 15,
    "ClipAttention": 16,
    "EncoderDecoderAttention": 13,
    "WhisperAttention": 2,
    "OptAttention": 1,
    "Wav2Vec2Attention": 8,
    "MaxPool2d": 1,
    "AvgPool2d": 1,
}
"""Layer -> classes (or functions) of transformers 5.23 that are proven to compute it."""

LEFT_ALONE = {
    "nanochat:NanoChatRMSNorm": "statement 1 is `return self._norm(x.float()).type_as(x)`",
    "t5:T5LayerNorm": None,  # no pattern fits it
    "idefics:IdeficsRMSNorm": "statement 1 is `variance = hidden_states.to(torch.float32)",
    "muse_spark:MuseSparkTextCenteredRMSNorm": "2 is `output = output * (1.0 + self.weight).float()`",
    "qwen4_exp:Qwen4ExpTextRMSNorm": "its method _norm is another: statement 1 is `if self.group_size is",
    "falcon_h1:FalconH1RMSNormGated": "statement 2 is `input_ndim = hidden_states.ndim`",
    "bitnet:BitNetMLP": "self.ffn_sub_norm",
    "deepseek_v4:DeepseekV4MLP": "self.gate_proj(x).clamp(max=self.limit)",
    "detr:DetrMLP": "statement 1 is `hidden_states = self.activation_fn(self.fc1(hidden_states))`",
    "gpt2:GPT2MLP": "statement 1 is `hidden_states = self.c_fc(hidden_states)`",
    "timesformer:TimesformerIntermediate": "statement 3 is `hidden_states = self.dropout(hidden_states)`",
    "mobilenet_v2:MobileNetV2ConvLayer": "statement 1 is `if self.config.tf_padding",
    "hgnet_v2:HGNetV2BasicLayer": "statement 2 is `output = [hidden_state]`",
    "deepseek_v4:DeepseekV4Experts": "statement 2 is `with torch.no_grad():",
    "granitemoe:GraniteMoeTopKRouter": "statement 1 is `router_logits = F.linear(hidden_states, self.weight).float()`",
    "nanochat:apply_rotary_pos_emb": "`rotate_half` that it calls is another: statement 3",
    "modernbert:apply_rotary_pos_emb": "not the known function",
    "qwen3_next:Qwen3NextAttention": "statement 3 is `query_states, gate = torch.chunk(",
    "helium:HeliumAttention": "the function `apply_rotary_pos_emb` that it calls is another: statement",
    "falcon:FalconAttention": "its signature is `(self, hidden_states, alibi, attention_mask, position_ids",
    "swin:SwinAttention": "statement 6 is `relative_position_bias = self.relative_position_bias()`",
    "detr:DetrEncoderLayer": "its signature is `(self, hidden_states, attention_mask, spatial_position_embeddings=",
    "blt:apply_rotary_pos_emb": "`rotate_half` that it calls is another: statement 1 is `x1 = x[..., ::2]`",
}
"""What looks like a known layer, and is not: a part of the reason, or None where no pattern fits."""


@dataclass
class Survey:
    """Every class and function of transformers' modeling files, decided on."""

    matched: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    declined: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def decide(self, rules: TagRules, thing: Any) -> None:
        decision = decide(rules, thing)
        if decision is not None:
            (self.matched if decision.reason is None else self.declined)[decision.layer_name].append(thing)


def decide(rules: TagRules, thing: Any) -> RuleDecision | None:
    return rules.decide_class(thing) if inspect.isclass(thing) else rules.decide_function(thing)


@pytest.fixture(scope="module")
def rules() -> TagRules:
    (rule,) = load_kernel_mapping("default").rules
    assert isinstance(rule, TagRules)
    return rule


@pytest.fixture(scope="module")
def survey(rules: TagRules, tmp_path_factory: pytest.TempPathFactory) -> Survey:
    result = Survey()
    with importable(folder := tmp_path_factory.mktemp("vision")):
        for block in (timm(folder), torchvision(folder).EncoderBlock):
            result.decide(rules, block)
    for module in modeling_modules():
        for thing in vars(module).values():
            is_module = inspect.isclass(thing) and issubclass(thing, nn.Module)
            if (is_module or inspect.isfunction(thing)) and thing.__module__ == module.__name__:
                result.decide(rules, thing)
    conv1d = importlib.import_module("transformers.pytorch_utils").Conv1D
    of_images = (nn.Conv2d, nn.Conv1d, nn.MaxPool2d, nn.AvgPool2d)
    of_tokens = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.SiLU, nn.GELU, nn.TransformerEncoderLayer)
    for thing in (conv1d, *of_images, *of_tokens):
        result.decide(rules, thing)
    return result


def modeling_modules() -> Iterator[types.ModuleType]:
    """transformers' modeling modules that can be imported here, and its activations."""
    root = Path(transformers.__file__).parent
    yield importlib.import_module("transformers.activations")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in sorted(root.glob("models/*/modeling_*.py")):
            try:
                yield importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
            except ImportError:  # a model that needs a package that is not here (torchaudio)
                continue


def find(name: str) -> Any:
    """ "llama:LlamaMLP" -> the class."""
    family, _, qualname = name.partition(":")
    return getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), qualname)


# -- coverage ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layer", "count"), COVERAGE.items())
def test_coverage(survey: Survey, layer: str, count: int) -> None:
    assert len(survey.matched[layer]) >= count


@pytest.mark.parametrize(("name", "reason"), LEFT_ALONE.items())
def test_what_deviates_is_left_alone(rules: TagRules, name: str, reason: str | None) -> None:
    decision = decide(rules, find(name))
    if reason is None:
        assert decision is None
    else:
        assert decision is not None
        assert decision.reason is not None
        assert reason in decision.reason


def test_to_ask_quickly_is_to_compare(survey: Survey, rules: TagRules) -> None:
    """What is ruled out by its names is what a comparison rules out."""
    things = [find(name) for name in LEFT_ALONE] + [things[-1] for things in survey.matched.values()]
    answers = set()
    for thing in things:
        for entry in rules.entries:
            if inspect.isclass(thing):
                quick, slow = class_fulfils(thing, entry.contracts), class_difference(thing, entry.contracts)
            else:
                quick = function_fulfils(thing, entry.contracts)
                slow = function_difference(thing, entry.contracts)
            assert quick == (slow is None), (thing, entry.layer_name, slow)
            answers.add(quick)
    assert answers == {True, False}


def test_every_rule_and_every_contract_is_needed(survey: Survey, rules: TagRules) -> None:
    """Each entry tags something, and each of its contracts is fulfilled by something that it tags."""
    for entry in rules.entries:
        tagged = [thing for thing in survey.matched[entry.layer_name] if fits(entry, thing)]
        assert tagged, f"the rule for {entry.layer_name} tags nothing"
        for contract in entry.contracts:
            assert any(fulfils(thing, contract) for thing in tagged), (
                f"{contract.name} is fulfilled by nothing"
            )


def test_every_rule_declines_what_computes_something_else(
    survey: Survey, rules: TagRules, monkeypatch: pytest.MonkeyPatch
) -> None:
    for entry in rules.entries:
        thing = next(
            t
            for t in survey.matched[entry.layer_name]
            if fits(entry, t) and (entry.written or any(fulfils(t, c) for c in entry.contracts))
        )
        if inspect.isclass(thing):
            monkeypatch.setattr(thing, "forward", another_forward)
        else:
            monkeypatch.setattr(thing, "__code__", another_forward.__code__)
        decision = decide(rules, thing)
        assert decision is not None
        assert decision.reason is not None
        monkeypatch.undo()
        restored = decide(rules, thing)
        assert restored is not None
        assert restored.reason is None


def another_forward(self: Any, x: Any) -> Any:
    return x


def test_no_rule_takes_subclasses(survey: Survey, rules: TagRules) -> None:
    for layer, things in survey.matched.items():
        for cls in filter(inspect.isclass, things[:2]):
            subclass = type(f"My{layer}Wrapper", (cls,), {"__module__": "mine"})
            assert rules.decide_class(subclass) is None


def fits(entry: TagEntry, thing: Any) -> bool:
    patterns = entry.classes if inspect.isclass(thing) else entry.functions
    return bool(PatternIndex([(entry, patterns)]).fitting(thing))


def fulfils(thing: Any, contract: Contract) -> bool:
    compare = class_difference if inspect.isclass(thing) else function_difference
    return compare(thing, (contract,)) is None


# -- the layers behind the names -----------------------------------------------------------------


def bundled_layer(layer: str) -> Any:
    """The bundled layer (or function) of a name, for the CPU. Fails where no repository has it."""
    for manifest in sorted(bundled_folder().glob("*/kernel.toml")):
        repository = bundled_repository(manifest.parent.name)
        if layer in (*repository.layers, *repository.functions):
            return BundledLayerRepository(manifest.parent.name, layer_name=layer).load("cpu")
    pytest.fail(f"no bundled repository has {layer}")


@pytest.mark.parametrize("layer", COVERAGE)
def test_bundled_layers_take_the_arguments_of_all_that_is_tagged(
    survey: Survey, rules: TagRules, layer: str
) -> None:
    ours = bundled_layer(layer)
    for thing in survey.matched[layer]:
        positional = decide(rules, thing).positional  # type: ignore[union-attr]
        check = same_arity if positional else check_signature
        check(ours, thing, layer, thing.__qualname__)


WIDTH = 24
NORMS = {
    "RMSNorm": ["llama:LlamaRMSNorm", "llama4:Llama4TextRMSNorm"],
    "RMSNormRoundedOnce": [
        "gpt_oss:GptOssRMSNorm",
        "helium:HeliumRMSNorm",
        "moshi:MoshiRMSNorm",
        "gemma3n:Gemma3nRMSNorm",
    ],
    "RMSNormZeroCentered": ["gemma:GemmaRMSNorm"],
    "MambaRMSNormGated": ["bamba:BambaRMSNormGated"],
    "RMSNormGated": ["qwen3_next:Qwen3NextRMSNormGated"],
    "RMSNormGatedFloat32": ["kimi_linear:KimiLinearRMSNormGated"],
}
"""One class for every contract: their numbers must be the layer's, or the contract names the wrong layer."""


def norm_results(
    name: str, layer: str, x_dtype: torch.dtype, weight_dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """What a class of transformers and a bundled layer make of the same module and input."""
    torch.manual_seed(0)
    cls = find(name)
    parameters = inspect.signature(cls).parameters
    arguments = {"group_size": WIDTH // 2} if "group_size" in parameters else {}
    module = cls(WIDTH, **arguments)
    module.weight.data = (torch.randn(WIDTH) + 1).to(weight_dtype)
    inputs = [torch.randn(16, WIDTH).to(x_dtype) for _ in range(2 if "Gated" in layer else 1)]
    return module(*inputs), bundled_layer(layer).forward(module, *inputs)


def same_numbers(expected: torch.Tensor, got: torch.Tensor) -> bool:
    """Equal up to float32 rounding: in bfloat16 that moves few elements, another place of a cast many."""
    if got.dtype != expected.dtype:
        return False
    if expected.dtype == torch.float32:
        return torch.allclose(got, expected, rtol=1e-6, atol=1e-6)
    close = torch.allclose(got.float(), expected.float(), rtol=2 * torch.finfo(expected.dtype).eps, atol=1e-6)
    return close and (got != expected).float().mean().item() < 0.05


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("layer", "name"), [(layer, name) for layer, names in NORMS.items() for name in names]
)
def test_norms_compute_what_their_layer_computes(
    layer: str, name: str, x_dtype: torch.dtype, weight_dtype: torch.dtype
) -> None:
    assert same_numbers(*norm_results(name, layer, x_dtype, weight_dtype))


def test_the_comparison_of_norms_tells_layers_apart() -> None:
    bfloat16 = torch.bfloat16
    assert not same_numbers(*norm_results("llama:LlamaRMSNorm", "RMSNormRoundedOnce", bfloat16, bfloat16))
    assert not same_numbers(*norm_results("gpt_oss:GptOssRMSNorm", "RMSNorm", bfloat16, bfloat16))
    assert not same_numbers(
        *norm_results("llama:LlamaRMSNorm", "RMSNormRoundedOnce", bfloat16, torch.float32)
    )
    assert not same_numbers(
        *norm_results("llama:LlamaRMSNorm", "RMSNormZeroCentered", torch.float32, torch.float32)
    )
    assert not same_numbers(
        *norm_results("qwen3_next:Qwen3NextRMSNormGated", "RMSNormGatedFloat32", bfloat16, bfloat16)
    )


BLOCKS = ("GatedMLP", "JoinedGatedMLP", "MLP", "LinearActivation")


def test_blocks_compute_what_their_layer_computes(survey: Survey, rules: TagRules) -> None:
    """Every naming of children that a rule tags is one that the layer reads."""
    for entry in (entry for entry in rules.entries if entry.layer_name in BLOCKS):
        assert isinstance(entry.where, Conditions)
        cls = next(
            c for c in survey.matched[entry.layer_name] if fits(entry, c) and fulfils(c, entry.contracts[0])
        )
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        for name, expected in entry.where.source.items():
            wide = 16 if name == "gate_up_proj" else 8
            setattr(module, name, nn.Linear(8, wide) if expected == "torch.nn:Linear" else nn.SiLU())
        assert entry.where(module) is None
        x = torch.randn(3, 8)
        with torch.no_grad():
            expected, got = module(x), bundled_layer(entry.layer_name).forward(module, x)
        assert torch.allclose(got, expected, rtol=1e-5, atol=1e-6), cls.__qualname__


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("llama:apply_rotary_pos_emb", "rotary_pos_emb"),
        ("gpt_neox:apply_rotary_pos_emb", "rotary_pos_emb"),
        ("olmo:apply_rotary_pos_emb", "rotary_pos_emb_cast_back"),
        ("cohere:apply_rotary_pos_emb", "rotary_pos_emb_interleaved"),
    ],
)
def test_rotary_functions_compute_what_their_layer_computes(name: str, layer: str) -> None:
    q, k, cos, sin = (
        torch.randn(2, 4, 5, 8),
        torch.randn(2, 2, 5, 8),
        torch.randn(2, 5, 8),
        torch.randn(2, 5, 8),
    )
    expected, got = find(name)(q, k, cos, sin), bundled_layer(layer).forward(nn.Module(), q, k, cos, sin)
    for ours, theirs in zip(got, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


ACTIVATIONS = {
    "SiLU": "silu",
    "GELU": "gelu",
    "GeluTanh": "gelu_pytorch_tanh",
    "NewGELU": "gelu_new",
    "FastGELU": "gelu_fast",
    "QuickGELU": "quick_gelu",
}


@pytest.mark.parametrize(("layer", "name"), ACTIVATIONS.items())
def test_activations_compute_what_their_layer_computes(rules: TagRules, layer: str, name: str) -> None:
    from transformers.activations import ACT2FN

    module = ACT2FN[name]
    decision = rules.decide_class(type(module))
    assert decision is not None
    assert (decision.layer_name, decision.reason) == (layer, None)
    assert decision.where is None or decision.where(module) is None
    x = torch.linspace(-8, 8, 101)
    assert torch.allclose(bundled_layer(layer).forward(module, x), module(x), rtol=1e-5, atol=2e-6)


def test_activations_in_python_keep_their_forward(rules: TagRules) -> None:
    from transformers.activations import ACT2FN

    for name, expected in (
        ("gelu_python", "torch.nn.functional:gelu"),
        ("gelu_python_tanh", "functools:partial"),
    ):
        module = ACT2FN[name]
        decision = rules.decide_class(type(module))
        assert decision is not None
        assert decision.where is not None
        assert f"this applies to {expected}" in str(decision.where(module))


# -- instances -----------------------------------------------------------------------------------


class MyLinear(nn.Linear):
    """A subclass, as adapters and quantisers make them."""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"act_fn": nn.ReLU()}, None),
        ({"act_fn": nn.functional.silu}, None),
        (
            {"act_fn": nn.Tanh()},
            "its act_fn is torch.nn.modules.activation:Tanh, this applies to one of fused_activation",
        ),
        (
            {"up_proj": MyLinear(8, 16)},
            f"its up_proj is {__name__}:MyLinear, this applies to torch.nn:Linear",
        ),
    ],
)
def test_blocks_of_other_parts_are_left_alone(
    rules: TagRules, changes: dict[str, Any], reason: str | None
) -> None:
    from transformers import LlamaConfig

    mlp = find("llama:LlamaMLP")(LlamaConfig(hidden_size=8, intermediate_size=16, num_attention_heads=1))
    for name in changes:
        delattr(mlp, name)
    for name, value in changes.items():
        setattr(mlp, name, value)
    decision = rules.decide_class(type(mlp))
    assert decision is not None
    assert decision.where is not None
    assert decision.where(mlp) == reason


def test_a_parametrized_linear_is_not_a_linear(rules: TagRules) -> None:
    linear = nn.Linear(4, 4)
    torch.nn.utils.parametrizations.weight_norm(linear)
    assert rules.decide_class(type(linear)) is None


def test_code_that_came_with_a_checkpoint(
    rules: TagRules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """trust_remote_code models live in transformers_modules.*; the contract decides on them as well."""
    source = Path(inspect.getfile(find("llama:LlamaRMSNorm"))).read_text()
    norm = source[source.index("class LlamaRMSNorm") : source.index("class LlamaRotaryEmbedding")]
    (tmp_path / "modeling_mine.py").write_text("import torch\nfrom torch import nn\n\n" + norm)
    spec = importlib.util.spec_from_file_location(
        "transformers_modules.org.model.modeling_mine", tmp_path / "modeling_mine.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    decision = rules.decide_class(module.LlamaRMSNorm)
    assert decision is not None
    assert (decision.layer_name, decision.reason) == ("RMSNorm", None)


# -- HF kernels ----------------------------------------------------------------------------------


def test_functions_that_hf_kernels_wrapped(rules: TagRules) -> None:
    kernels = pytest.importorskip("kernels", reason="needs the package kernels")
    wrap: Callable[[Any], nn.Module] = kernels.use_kernel_forward_from_hub("rotary_pos_emb")
    wrapped = wrap(find("llama:apply_rotary_pos_emb"))
    decision = rules.decide_function(wrapped)
    assert decision is not None
    assert (decision.layer_name, decision.reason, decision.positional) == ("rotary_pos_emb", None, True)

    other = rules.decide_function(wrap(find("modernbert:apply_rotary_pos_emb")))
    assert other is not None
    assert str(other.reason).startswith("it is not the known function of that name: ")

    wrapped.forward = functools.partial(print)  # type: ignore[method-assign]
    taken = rules.decide_function(wrapped)
    assert taken is not None
    assert taken.reason == "HF kernels has already given it another forward"


# -- the files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped_mappings())
def test_shipped_files_fit_the_json_schema(name: str) -> None:
    assert schema_errors(tomllib.loads((_shipped_folder() / f"{name}.toml").read_text())) == []


def test_shipped_contracts_pass_the_checks_that_loading_them_skips(tmp_path: Path) -> None:
    for path in _shipped_folder().glob("*.toml"):
        text = path.read_text()
        for name in shipped_mappings():
            text = text.replace(f'"{name}"', f'"./{name}.toml"') if text.count("include =") else text
        (tmp_path / path.name).write_text(text)
    mapping = load_kernel_mapping(tmp_path / "default.toml")
    assert len(mapping.rules[0].entries) == len(load_kernel_mapping("default").rules[0].entries)  # type: ignore[attr-defined]


def test_the_default_mapping_names_layers_and_backends_that_exist() -> None:
    mapping = load_kernel_mapping("default")
    for layer, devices in mapping.entries.items():
        for entries in devices.values():
            for entry in entries:
                for choice in entry.modes.values():
                    assert isinstance(choice.repository, BundledLayerRepository)
                    repository = bundled_repository(choice.repository.name)
                    assert choice.repository.layer_name in (*repository.layers, *repository.functions)
                    assert entry.device.type in repository.backends, f"{layer} on {entry.device}"


def test_the_documents_examples(tmp_path: Path) -> None:
    """Every TOML block of docs/mappings.md loads, and fits the schema."""
    text = (Path(__file__).parents[2] / "docs" / "mappings.md").read_text()
    blocks = [block.partition("```")[0] for block in text.split("```toml\n")[1:]]
    assert len(blocks) >= 3
    for index, block in enumerate(blocks):
        document = block if block.startswith("schema") else "schema = 1\n" + block
        assert schema_errors(tomllib.loads(document)) == []
        (tmp_path / f"{index}.toml").write_text(document)
        load_kernel_mapping(tmp_path / f"{index}.toml")


def test_a_small_llama_is_explained() -> None:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=16
    )
    with use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        rows = explain(LlamaModel(config), mode=Mode.INFERENCE).rows
    assert Counter(row.layer_name for row in rows if row.layer_name) == {
        "Linear": 7,
        "RMSNorm": 3,
        "GatedMLP": 1,
        "SiLU": 1,
        "rotary_pos_emb": 1,
        "RotaryAttention": 1,
    }
