"""The shipped mapping `fused_loss`: which language models it takes, and that they train as before."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernels_hub import Mode, explain, kernelize, load_kernel_mapping, report, restore, use_kernel_mapping
from kernels_hub.kernelization.tag_rule import TagRules
from tests.kernelization.test_shipped_mappings import modeling_modules

transformers = pytest.importorskip("transformers", reason="needs the package transformers")

COVERAGE = {"CausalLM": 33, "CausalLMSoftcapped": 5, "MoeCausalLM": 21, "MoeCausalLMBalanced": 19}
"""Layer -> classes of transformers 5.23 that are proven to compute it."""

COVERED = {
    "llama:LlamaForCausalLM": "CausalLM",
    "gemma2:Gemma2ForCausalLM": "CausalLMSoftcapped",
    "mixtral:MixtralForCausalLM": "MoeCausalLMBalanced",
}
LEFT_ALONE = {
    "cohere:CohereForCausalLM": "statement 5 is `logits = logits * self.logit_scale`",
    "bart:BartForCausalLM": "self.model.decoder",
    "biogpt:BioGptForCausalLM": "statement 1 is `outputs = self.biogpt(",
}

SIZES = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "use_cache": False,
}


@pytest.fixture
def fused() -> Iterator[None]:
    with use_kernel_mapping(load_kernel_mapping("fused_loss"), inherit_mapping=False):
        yield


@pytest.fixture(scope="module")
def rules() -> TagRules:
    (rule,) = load_kernel_mapping("fused_loss").rules
    assert isinstance(rule, TagRules)
    return rule


def model(family: str, **changes: Any) -> Any:
    """A tiny language model in training."""
    torch.manual_seed(0)
    name = {"llama": "Llama", "gemma2": "Gemma2", "mixtral": "Mixtral", "deepseek_v3": "DeepseekV3"}[family]
    more: dict[str, Any] = {
        "gemma2": {"head_dim": 8, "final_logit_softcapping": 3.0},
        "mixtral": {"num_local_experts": 2, "output_router_logits": True},
        "deepseek_v3": {"n_routed_experts": 2, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 1}
        | {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
        | {"first_k_dense_replace": 1, "head_dim": 4},
    }.get(family, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = getattr(transformers, f"{name}Config")(**SIZES | more | changes)
        return getattr(transformers, f"{name}ForCausalLM")(config).train()


def tokens() -> Tensor:
    return torch.randint(0, 64, (2, 7), generator=torch.Generator().manual_seed(1))


def decision_of(rules: TagRules, name: str) -> Any:
    """What is decided of a class, `family:Class`."""
    family, _, cls = name.partition(":")
    decision = rules.decide_class(
        getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), cls)
    )
    assert decision is not None, name
    return decision


@pytest.mark.exhaustive
def test_coverage(rules: TagRules) -> None:
    """Of every model of transformers, which takes long to import."""
    found: Counter[str] = Counter()
    for module in modeling_modules():
        for thing in vars(module).values():
            if (
                inspect.isclass(thing)
                and thing.__module__ == module.__name__
                and issubclass(thing, nn.Module)
            ):
                decision = rules.decide_class(thing)
                if decision is not None and decision.reason is None:
                    found[decision.layer_name] += 1
    assert all(found[layer] >= count for layer, count in COVERAGE.items()), found


def test_what_is_covered_and_what_deviates(rules: TagRules) -> None:
    for name, layer in COVERED.items():
        assert decision_of(rules, name).layer_name == layer and decision_of(rules, name).reason is None, name
    for name, reason in LEFT_ALONE.items():
        assert reason in str(decision_of(rules, name).reason)


@pytest.mark.parametrize("family", ["llama", "gemma2", "mixtral", "deepseek_v3"])
@pytest.mark.usefixtures("fused")
def test_a_step_is_the_same_without_logits(family: str) -> None:
    eager = model(family)
    ours = kernelize(copy.deepcopy(eager), mode=Mode.TRAINING)
    assert report(ours).rows[0].swapped, report(ours).rows[0].reason
    labels = tokens()
    labels[0, :3] = -100
    for more in ({}, {"num_items_in_batch": torch.tensor(5)}, {"attention_mask": torch.ones_like(labels)}):
        expected, found = (m(input_ids=tokens(), labels=labels, **more) for m in (eager, ours))
        assert found.logits is None
        torch.testing.assert_close(found.loss, expected.loss)
        assert type(found) is type(expected)
        assert set(expected.keys()) - set(found.keys()) == {"logits"}
        eager.zero_grad()
        ours.zero_grad()
        expected.loss.backward()
        found.loss.backward()
        for (name, one), other in zip(ours.named_parameters(), eager.parameters(), strict=True):
            if other.grad is None:
                assert one.grad is None, name
            else:
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("family", ["llama", "gemma2", "mixtral"])
@pytest.mark.usefixtures("fused")
def test_logits_where_they_are_asked_for(family: str) -> None:
    eager = model(family)
    ours = kernelize(copy.deepcopy(eager), mode=Mode.TRAINING)
    for call in (
        {"labels": tokens(), "skip_logits": False},
        {},
        {"labels": tokens(), "logits_to_keep": torch.arange(7)},
    ):
        found = ours(input_ids=tokens(), **call)
        call.pop("skip_logits", None)
        expected = eager(input_ids=tokens(), **call)
        torch.testing.assert_close(found.logits, expected.logits)
        torch.testing.assert_close(found.loss, expected.loss)
    ours.eval()
    eager.eval()
    with torch.no_grad():
        found, expected = (m(input_ids=tokens(), labels=tokens()) for m in (ours, eager))
        torch.testing.assert_close((found.loss, found.logits), (expected.loss, expected.logits))
        skipped = ours(input_ids=tokens(), labels=tokens(), skip_logits=True)
        assert skipped.logits is None
        torch.testing.assert_close(skipped.loss, expected.loss)
        as_tuple = ours(input_ids=tokens(), labels=tokens(), return_dict=False)
        torch.testing.assert_close(as_tuple, eager(tokens(), labels=tokens(), return_dict=False))
        generated = [m.generate(tokens(), max_new_tokens=3, do_sample=False) for m in (ours, eager)]
    assert torch.equal(*generated)


@pytest.mark.usefixtures("fused")
def test_a_head_or_a_loss_of_another_kind_is_called() -> None:
    eager = model("llama")
    ours = kernelize(copy.deepcopy(eager), mode=Mode.TRAINING)
    seen: list[Tensor] = []
    hook = ours.lm_head.register_forward_hook(lambda module, args, out: seen.append(out))
    found, expected = (m(input_ids=tokens(), labels=tokens()) for m in (ours, eager))
    assert len(seen) == 1 and found.logits is not None
    torch.testing.assert_close(found.loss, expected.loss)
    hook.remove()
    ours.loss_function = lambda logits, labels, vocab_size, **_: logits.sum()
    torch.testing.assert_close(ours(input_ids=tokens(), labels=tokens()).loss, expected.logits.sum())


@pytest.mark.usefixtures("fused")
def test_what_is_not_taken_says_why() -> None:
    other_head = model("llama")
    other_head.lm_head = nn.Sequential(other_head.lm_head)
    other_loss = model("llama")
    other_loss.loss_function = functools.partial(print)
    for refused, reason in (
        (other_head, "its lm_head is torch.nn.modules.container:Sequential, this applies to torch.nn:Linear"),
        (other_loss, "its loss_function is functools:partial, this applies to transformers.loss.loss_utils"),
    ):
        row = explain(refused, mode=Mode.TRAINING).rows[0]
        assert not row.swapped
        assert reason in str(row.reason)


@pytest.mark.usefixtures("fused")
def test_restore_gives_logits_back_and_the_default_mapping_never_takes_them() -> None:
    ours = restore(kernelize(model("llama"), mode=Mode.TRAINING))
    assert ours(input_ids=tokens(), labels=tokens()).logits is not None
    with use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        plain = kernelize(model("llama"), mode=Mode.TRAINING, use_fallback=True)
    assert plain(input_ids=tokens(), labels=tokens()).logits is not None
    assert report(plain).rows[0].layer_name is None


@pytest.mark.usefixtures("fused")
def test_a_step_compiles_whole() -> None:
    eager = model("llama")
    ours = kernelize(copy.deepcopy(eager), mode=Mode.TRAINING | Mode.TORCH_COMPILE)
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    found, expected = (m(input_ids=tokens(), labels=tokens()) for m in (compiled, eager))
    assert found.logits is None
    found.loss.backward()
    expected.loss.backward()
    torch.testing.assert_close(found.loss, expected.loss)
    for one, other in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)
