"""`torch.utils.flop_counter` counts a kernelized model as it counts the original."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

import pytest
import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from kernels_hub import Mode, kernelize, load_kernel_mapping, report, use_kernel_mapping
from tests.warm_process import run_script

TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 50,
}


def transformer(config: str, cls: str, **options: object) -> Callable[[], nn.Module]:
    """Makes a small model of transformers."""

    def make() -> nn.Module:
        made: nn.Module = getattr(transformers, cls)(getattr(transformers, config)(**{**TINY, **options}))
        return made

    return make


def image() -> torch.Tensor:
    return torch.randn(2, 8, 12, 12)


def tokens() -> torch.Tensor:
    return torch.arange(14).reshape(2, 7)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "linear": (
        lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 5)),
        lambda: torch.randn(9, 16),
    ),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2), nn.Conv2d(16, 4, 1)),
        image,
    ),
    "bert": (transformer("BertConfig", "BertModel"), tokens),
    "llama": (transformer("LlamaConfig", "LlamaForCausalLM", num_key_value_heads=2), tokens),
    "mixtral": (
        transformer(
            "MixtralConfig",
            "MixtralForCausalLM",
            num_key_value_heads=2,
            num_local_experts=4,
            num_experts_per_tok=2,
            experts_implementation="eager",  # the counter knows no grouped product
        ),
        tokens,
    ),
}


@pytest.fixture(autouse=True)
def default_mapping() -> Iterator[None]:
    with use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        yield


def counted(model: nn.Module, x: torch.Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        model(x)
    return counter.get_total_flops()


@pytest.mark.parametrize("case", CASES)
def test_a_kernelized_model_counts_as_the_original(case: str) -> None:
    make, example = CASES[case]
    model, x = make().eval(), example()
    with torch.no_grad():
        expected = counted(model, x)
        kernelize(model, mode=Mode.INFERENCE, wait=True)
        assert any(row.swapped for row in report(model).rows)
        model(x)
        assert counted(model, x) == expected > 0


def test_a_training_step() -> None:
    model = transformer("LlamaConfig", "LlamaForCausalLM", num_key_value_heads=2)()

    def step() -> int:
        with FlopCounterMode(display=False) as counter:
            model(tokens(), labels=tokens()).loss.backward()
        return counter.get_total_flops()

    expected = step()
    kernelize(model, mode=Mode.TRAINING, wait=True)
    assert any(row.swapped for row in report(model).rows)
    assert step() == expected > 0


def test_the_counter_may_be_imported_later() -> None:
    code = """
        import sys
        import torch
        from torch import nn
        from kernels_hub import Mode, kernelize, report
        model = kernelize(nn.Sequential(nn.Linear(16, 32)).eval(), mode=Mode.INFERENCE, wait=True)
        assert report(model).rows[1].swapped
        assert "torch.utils.flop_counter" not in sys.modules
        finders = len(sys.meta_path)
        from torch.utils.flop_counter import FlopCounterMode
        assert len(sys.meta_path) < finders
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(torch.randn(9, 16))
        print(counter.get_total_flops())
    """
    done = run_script(textwrap.dedent(code))
    assert done.stdout.split() == [str(2 * 9 * 16 * 32)]
