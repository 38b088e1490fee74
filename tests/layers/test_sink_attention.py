"""Attention with sinks in `layers/attention` on the CPU, against GPT-OSS of transformers."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention

from kernels_hub import Mode, kernelize, load_kernel_mapping, report, use_kernel_mapping
from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.tolerances import assert_close

PACKAGE: ModuleType = import_kernel(source_variant(bundled_folder() / "attention", "cpu"))
FORWARD = PACKAGE.layers.SinkAttention.forward
LENGTH = 7


def build(dtype: torch.dtype = torch.float32, **settings: Any) -> tuple[nn.Module, Tensor, dict[str, Any]]:
    """(block, hidden states, other arguments); a query of the second sequence sees no key."""
    torch.manual_seed(0)
    config = GptOssConfig(
        hidden_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        attn_implementation="eager",
        **settings,
    )
    block = GptOssAttention(config, 0).eval()
    nn.init.normal_(block.sinks)
    angles = torch.randn(2, LENGTH, 16)
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1).expand(2, 1, LENGTH, LENGTH).clone()
    hidden[1, 0, 2] = True
    mask = torch.zeros(2, 1, LENGTH, LENGTH, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)
    arguments = {
        "position_embeddings": (angles.cos().to(dtype), angles.sin().to(dtype)),
        "attention_mask": mask,
    }
    return block.to(dtype), torch.randn(2, LENGTH, 128).to(dtype), arguments


def kernel(block: nn.Module) -> Callable[..., Any]:
    return types.MethodType(FORWARD, block)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_as_the_block(dtype: torch.dtype, masked: bool) -> None:
    block, x, arguments = build(dtype)
    if not masked:
        arguments["attention_mask"] = None
    with torch.inference_mode():
        expected = block(x, **arguments)[0]
        found, weights = kernel(block)(x, **arguments)
    assert weights is None, "the kernel ran"
    assert found.dtype is dtype
    bound = 1e-5 if dtype is torch.float32 else 3e-2
    torch.testing.assert_close(found, expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sink", [-100.0, 0.0, 5.0])
def test_the_function(dtype: torch.dtype, sink: float) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, heads, LENGTH, 32).to(dtype) for heads in (4, 2, 2))
    sinks = (torch.randn(4) + sink).to(dtype)
    found = PACKAGE.attention_with_sinks(query, key, value, sinks)
    wide = [t.double().repeat_interleave(2, 1) for t in (key, value)]
    scores = query.double() @ wide[0].mT * 32**-0.5
    scores = torch.cat((scores, sinks.double().view(-1, 1, 1).expand(2, 4, LENGTH, 1)), -1)
    exact = scores.softmax(-1)[..., :-1] @ wide[1]
    assert found.dtype is dtype
    assert_close(found, exact, factor=2)
    if sink >= 0:
        with pytest.raises(AssertionError):  # the comparison sees sinks that are missing
            assert_close(PACKAGE.attention(query, key, value), exact, factor=2)


def test_a_sink_that_takes_all() -> None:
    x = torch.randn(1, 4, 3, 8)
    assert PACKAGE.attention_with_sinks(x, x, x, torch.full((4,), 1e4)).abs().max() == 0


def test_gradients() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(1, heads, 3, 4, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(PACKAGE.attention_with_sinks, (*tensors, sinks))


def test_sinks_of_another_number_are_refused() -> None:
    x = torch.randn(1, 4, 3, 8)
    with pytest.raises(ValueError, match=r"expected sinks \(4,\), one a head of query, got \(2,\)"):
        PACKAGE.attention_with_sinks(x, x, x, torch.zeros(2))


def _hooked(block: nn.Module) -> dict[str, Any]:
    block.register_forward_hook(lambda module, args, output: None)
    return {}


def _recorded(block: nn.Module) -> dict[str, Any]:
    block.config.output_attentions = True
    return {}


def _asked(block: nn.Module) -> dict[str, Any]:
    return {"output_attentions": True}


def _bool_mask(block: nn.Module) -> dict[str, Any]:
    """What the formula adds as 0 and 1."""
    return {"attention_mask": torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)}


@pytest.mark.parametrize("change", [_hooked, _recorded, _asked, _bool_mask])
def test_what_only_the_original_knows(change: Callable[[nn.Module], dict[str, Any]]) -> None:
    block, x, arguments = build()
    arguments |= change(block)
    with torch.inference_mode():
        expected, theirs = block(x, **arguments)
        found, weights = kernel(block)(x, **arguments)
    assert torch.equal(found, expected) and torch.equal(weights, theirs)


def model() -> Any:
    torch.manual_seed(0)
    built = GptOssForCausalLM(
        GptOssConfig(
            vocab_size=64,
            hidden_size=64,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=8,
            pad_token_id=0,
            eos_token_id=None,
        )
    ).eval()
    for parameter in built.parameters():
        nn.init.normal_(parameter, std=0.2)
    return built


def test_a_model_writes_the_same_past_its_window_and_still_has_weights() -> None:
    eager = model()
    ours = copy.deepcopy(eager)
    with use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        kernelize(ours, mode=Mode.INFERENCE)
    assert sum(row.layer_name == "SinkAttention" for row in report(ours).swapped) == 2
    prompt = torch.randint(1, 64, (2, 6))
    padded = torch.ones_like(prompt)
    padded[1, :3] = 0
    for given in ({}, {"attention_mask": padded}, {"num_beams": 2}):
        texts = [m.generate(prompt, max_new_tokens=12, do_sample=False, **given) for m in (eager, ours)]
        assert torch.equal(*texts)
    with torch.inference_mode():
        expected, found = (m(prompt, output_attentions=True) for m in (eager, ours))
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)
    assert len(found.attentions) == len(expected.attentions) == 2
    torch.testing.assert_close(found.attentions[1], expected.attentions[1], rtol=1e-4, atol=1e-4)
