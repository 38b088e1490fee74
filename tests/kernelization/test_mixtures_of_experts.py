"""Mixtures of experts of transformers under the default mapping: the same numbers, and the same router's logits."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernels_hub import (
    BundledLayerRepository,
    Mode,
    explain,
    kernelize,
    load_kernel_mapping,
    report,
    restore,
    use_kernel_mapping,
)

transformers = pytest.importorskip("transformers", reason="needs the package transformers")

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "use_cache": False,
}
MORE: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 4},
    "Qwen2Moe": {"num_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24},
    "Qwen3Moe": {"num_experts": 4, "moe_intermediate_size": 24, "head_dim": 16},
    "GptOss": {"num_local_experts": 4, "head_dim": 16, "sliding_window": 4},
}
EXPERTS = {"GptOss": "ClampedExperts"}
ROUTERS = ("TopKRouter", "TopKRouterRounded")


@pytest.fixture(autouse=True)
def mapping() -> Iterator[None]:
    with use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        yield


def model(name: str, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = getattr(transformers, f"{name}Config")(**SIZES | MORE[name])
        built = getattr(transformers, f"{name}Model")(config).eval().to(dtype)
    for parameter in built.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return built


def tokens() -> Tensor:
    return torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(1))


def swapped(built: nn.Module) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in report(built).rows:
        if row.swapped and row.layer_name is not None:
            found[row.layer_name] = found.get(row.layer_name, 0) + 1
    return found


@pytest.mark.parametrize("name", MORE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("routed", [False, True])
def test_the_same_numbers(name: str, dtype: torch.dtype, routed: bool) -> None:
    """With routers mapped too: they are bundled, and no faster than PyTorch's own."""
    eager = model(name, dtype)
    ours = copy.deepcopy(eager)
    if routed and name not in EXPERTS:
        mapped = {layer: {"cpu": BundledLayerRepository("moe", layer_name=layer)} for layer in ROUTERS}
        with use_kernel_mapping(mapped):
            kernelize(ours, mode=Mode.INFERENCE)
    else:
        kernelize(ours, mode=Mode.INFERENCE)
    found = swapped(ours)
    assert found[EXPERTS.get(name, "GatedExperts")] == 2
    assert sum(found.get(layer, 0) for layer in ROUTERS) == (2 if routed and name not in EXPERTS else 0)
    with torch.no_grad():
        expected, got = (m(input_ids=tokens(), output_router_logits=True) for m in (eager, ours))
    bound = 1e-5 if dtype == torch.float32 else 6e-2
    torch.testing.assert_close(got[0], expected[0], rtol=bound, atol=bound)
    assert len(got.router_logits) == len(expected.router_logits) == 2
    torch.testing.assert_close(got.router_logits[0], expected.router_logits[0], rtol=bound, atol=bound)


def test_training_and_restoring() -> None:
    eager = model("Mixtral").train()
    ours = kernelize(copy.deepcopy(eager), mode=Mode.TRAINING)
    assert "GatedExperts" not in swapped(ours), "on the CPU it is for inference"
    mapped = {"GatedExperts": {"cpu": BundledLayerRepository("moe", layer_name="GatedExperts")}}
    with use_kernel_mapping(mapped):
        kernelize(ours, mode=Mode.TRAINING)
    assert swapped(ours)["GatedExperts"] == 2
    for built in (eager, ours):
        built(input_ids=tokens())[0].square().mean().backward()
    for (name, one), other in zip(ours.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)
    with torch.no_grad():
        assert torch.equal(restore(ours)(input_ids=tokens())[0], eager(input_ids=tokens())[0])


def test_other_ways_to_run_experts_are_left_alone() -> None:
    built = model("Mixtral")
    built.config._experts_implementation = "deepgemm"
    built.layers[0].mlp.experts.config = built.config
    row = next(row for row in explain(built, mode=Mode.INFERENCE).rows if row.path == "layers.0.mlp.experts")
    assert not row.swapped
    assert "its config._experts_implementation is 'deepgemm', this applies to eager or grouped_mm" in str(
        row.reason
    )
    built.config._experts_implementation = "eager"
    built.layers[0].mlp.experts.act_fn = nn.Tanh()
    row = next(row for row in explain(built, mode=Mode.INFERENCE).rows if row.path == "layers.0.mlp.experts")
    assert "its act_fn is torch.nn.modules.activation:Tanh" in str(row.reason)
