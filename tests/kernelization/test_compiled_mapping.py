"""The shipped mapping `compiled`: whole models of transformers as compiled graphs, with the results that they had."""

from __future__ import annotations

import logging
import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernels_hub import Mode, explain, kernelize, report, restore
from tests.combinations import first
from tests.transformers_caches import cache_of

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.usefixtures("mapping_compiled"),
]

TEXT = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip
ONE_LAYER = TEXT | {"num_hidden_layers": 1}
IMAGE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}


def model(name: str, config: Any) -> Any:
    torch.manual_seed(0)
    return getattr(transformers, name)(config).eval()


def ids(batch: int, length: int) -> Tensor:
    return torch.randint(0, 64, (batch, length), generator=torch.Generator().manual_seed(batch))


def check(module: Any, **inputs: Any) -> Any:
    """The kernelized model's result is the original's, of the same class. The result."""
    ours = module(**inputs)
    theirs = type(module).forward(module, **inputs)
    assert type(ours) is type(theirs) and list(ours.keys()) == list(theirs.keys())
    for one, other in zip(ours.to_tuple(), theirs.to_tuple(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)
    return ours


def swapped(module: Any) -> Any:
    (row,) = [one for one in report(module).rows if one.path == ""]
    return row


def test_bert():
    module = model("BertModel", transformers.BertConfig(**ONE_LAYER))
    assert any(
        row.layer_name == "CompiledModel" for row in explain(module, mode=Mode.INFERENCE, device="cpu").rows
    )
    kernelize(module, mode=Mode.INFERENCE)
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, 4:] = 0
    result = check(module, input_ids=ids(2, 7), attention_mask=mask)
    assert swapped(module).swapped and str(swapped(module).repository).startswith("compiled")
    assert result.pooler_output is result[1] and result.hidden_states is None
    check(module, input_ids=ids(3, 11), attention_mask=torch.ones(3, 11, dtype=torch.int64))
    restore(module)
    assert "forward" not in vars(module)


@pytest.mark.exhaustive
def test_roberta_counts_positions():
    """By a running sum of what is no padding."""
    module = model("RobertaModel", transformers.RobertaConfig(**TEXT))
    kernelize(module, mode=Mode.INFERENCE)
    tokens = ids(2, 7).clamp(min=2)
    tokens[1, 4:] = module.config.pad_token_id
    check(module, input_ids=tokens, attention_mask=(tokens != module.config.pad_token_id).long())
    assert swapped(module).swapped


@pytest.mark.exhaustive
def test_opt():
    """OPT's is its decoder, which OPTForCausalLM calls itself: whichever is called is compiled."""
    module = model(
        "OPTModel", transformers.OPTConfig(**TEXT, ffn_dim=48, word_embed_proj_dim=32, use_cache=False)
    )
    kernelize(module, mode=Mode.INFERENCE)
    check(module, input_ids=ids(2, 7), attention_mask=torch.ones(2, 7, dtype=torch.int64))
    assert swapped(module).swapped


def test_llama_and_what_it_is_not_for(caplog: pytest.LogCaptureFixture):
    """Calls with a cache, and for all hidden states, run the model's own forward on bundled layers."""
    module = model(
        "LlamaModel", transformers.LlamaConfig(**ONE_LAYER, num_key_value_heads=1, use_cache=False)
    )
    kernelize(module, mode=Mode.INFERENCE)
    inputs = {"input_ids": ids(2, 9), "attention_mask": torch.ones(2, 9, dtype=torch.int64)}
    check(module, **inputs)
    assert swapped(module).swapped
    with caplog.at_level(logging.WARNING, "kernels_hub"):
        check(module, **inputs, output_hidden_states=True)
        found = module(**inputs, use_cache=True)
    assert cache_of(found).get_seq_length() == 9
    assert "keeps its original forward" in caplog.text


def test_images():
    module = model("ResNetModel", transformers.ResNetConfig(**RESNET))
    kernelize(module, mode=Mode.INFERENCE)
    check(module, pixel_values=torch.randn(2, 3, 32, 32))
    check(module, pixel_values=torch.randn(3, 3, 40, 32))
    assert swapped(module).swapped and len(module.__dict__["forward"].func.forwards(module)) == 2


@pytest.mark.exhaustive
def test_images_in_windows():
    """Whose sizes are no simple terms of an image's."""
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[2, 1], num_heads=[1, 2], window_size=4
    )
    module = model("SwinModel", config)
    kernelize(module, mode=Mode.INFERENCE)
    check(module, pixel_values=torch.randn(2, 3, 32, 32))
    assert swapped(module).swapped


def test_weights_are_packed_once():
    """The layers inside had theirs packed until the whole was compiled; a call that they run packs them again."""
    sizes = TEXT | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
    module = model("BertModel", transformers.BertConfig(**sizes))
    kernelize(module, mode=Mode.INFERENCE)
    inside = [row for row in report(module).rows if row.path and row.packed_nbytes]
    assert inside
    inputs = {"input_ids": ids(2, 70), "attention_mask": torch.ones(2, 70, dtype=torch.int64)}
    module(**inputs)
    assert swapped(module).swapped
    assert [row.path for row in report(module).rows if row.packed_nbytes] == [""]
    check(module, **inputs, output_attentions=True)
    assert any(row.path and row.packed_nbytes for row in report(module).rows)


def test_a_model_inside_of_a_model():
    config = transformers.BertConfig(**ONE_LAYER, num_labels=3)
    module = model("BertForSequenceClassification", config)
    kernelize(module, mode=Mode.INFERENCE)
    check(module, input_ids=ids(2, 5))
    rows = {row.path: row for row in report(module).rows}
    assert rows["bert"].swapped and rows["classifier"].layer_name == "Linear"


@pytest.mark.exhaustive
def test_a_mixture_that_marks_what_it_chose():
    """Phi-MoE hides its first expert before it chooses the second."""
    config = transformers.PhimoeConfig(
        **ONE_LAYER, num_key_value_heads=1, num_local_experts=4, use_cache=False
    )
    module = model("PhimoeModel", config)
    kernelize(module, mode=Mode.INFERENCE)
    check(module, input_ids=ids(2, 6))
    assert swapped(module).swapped


@pytest.mark.parametrize(("experts",), first(1, [(2,), (1,)]))
def test_a_mixture(experts: int):
    """Of which the first experts get nothing to do, or all of it."""
    config = transformers.MixtralConfig(
        **ONE_LAYER, num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=experts, use_cache=False
    )
    module = model("MixtralModel", config)
    kernelize(module, mode=Mode.INFERENCE)
    check(module, input_ids=ids(2, 6))
    assert swapped(module).swapped
    check(module, input_ids=ids(3, 9))
    check(module, input_ids=torch.zeros(2, 5, dtype=torch.int64))


class Biased(nn.Module):
    """Adds a bias gathered from its weights at its first call, as attention of LeViT does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.table = nn.Parameter(torch.randn(2, 8))
        self.cache: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if str(x.device) not in self.cache:
            self.cache[str(x.device)] = self.table[torch.tensor([1, 0, 1, 1])]
        result: Tensor = self.linear(x) + self.cache[str(x.device)]
        return result


def test_a_model_that_remembers_what_it_gathered():
    """Compiled before its first call, it is itself after one."""
    module = Biased().eval()
    kernelize(module, mode=Mode.INFERENCE)
    for rows in (2, 3):
        x = torch.randn(rows, 4, 8)
        ours = module(x)
        assert swapped(module).swapped
        torch.testing.assert_close(ours, Biased.forward(module, x))
    assert module.cache


def test_what_cannot_be_compiled_runs_on_the_other_layers(caplog: pytest.LogCaptureFixture):
    """A Fourier transform of a length that changes, in each layer."""
    sizes = {name: size for name, size in TEXT.items() if name != "num_attention_heads"}
    module = model("FNetModel", transformers.FNetConfig(**{**sizes, "num_hidden_layers": 5}))
    kernelize(module, mode=Mode.INFERENCE)
    with caplog.at_level(logging.WARNING, "kernels_hub"):
        check(module, input_ids=ids(2, 6))
    assert not swapped(module).swapped
    assert "it cannot be compiled: CompiledModel cannot be imported" in swapped(module).reason
    assert (
        "the length of a Fourier transform is s" in swapped(module).reason
        and len(swapped(module).reason) <= 200
    )
    assert len(swapped(module).details) > len(swapped(module).reason)
    assert any(row.swapped and row.path for row in report(module).rows)


def test_training_is_the_default_mappings():
    module = model("BertModel", transformers.BertConfig(**TEXT)).train()
    kernelize(module, mode=Mode.TRAINING)
    assert not swapped(module).swapped
