"""Modules, inputs and calls of the importer, each in inference mode or not: all can be traced."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from kernels_hub.compiler import compile
from kernels_hub.compiler.importers.torch_trace import decomposed, trace

STATES = list(itertools.product((False, True), repeat=3))


@pytest.mark.filterwarnings("ignore")  # torch.export's own
@pytest.mark.parametrize("weights", ["frozen", "followed"])
@pytest.mark.parametrize(("module_in", "input_in", "call_in"), STATES)
def test_compiled(module_in: bool, input_in: bool, call_in: bool, weights: str) -> None:
    with torch.inference_mode(module_in):
        module = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 8), nn.BatchNorm1d(8)).eval()
    with torch.inference_mode(input_in):
        x = torch.randn(3, 16)
    with torch.inference_mode(call_in):
        run = compile((module, (x,)), "cpu", engines=["library"], weights=weights)
        got = run(x)
    with torch.inference_mode():
        torch.testing.assert_close(got, module(x))
    assert all(one.is_inference() == module_in for one in module.parameters())


class _Anchors(nn.Module):
    """Remembers what its sizes make, beside its weights, as detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.size: int | None = None
        self.made: list[torch.Tensor] = []
        self.register_buffer("places", torch.zeros(0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.size != x.shape[1]:
            self.size, self.made = x.shape[1], [torch.arange(x.shape[1]) * 0.5]
            self.places = torch.arange(x.shape[1]) * 2.0
        return self.layer(x) + self.made[0][:, None] * self.places[:, None]


@pytest.mark.filterwarnings("ignore")  # torch.export's own
@pytest.mark.parametrize("module_in", [False, True])
def test_tensors_that_a_call_left_in_the_module(module_in: bool) -> None:
    with torch.inference_mode(module_in):
        module = _Anchors().eval()
    x = torch.randn(2, 3, 4)
    with torch.inference_mode(not module_in), torch.no_grad():
        expected = module(x)
    left = [module.made[0], module.places]
    got = compile((module, (x,)), "cpu", engines=["library"])(x)
    torch.testing.assert_close(got, expected)
    assert module.made[0] is left[0]
    assert module.places is left[1]


@pytest.mark.filterwarnings("ignore")  # torch.export's own
@pytest.mark.parametrize(("module_in", "call_in"), [*itertools.product((False, True), repeat=2)])
def test_decomposed(module_in: bool, call_in: bool) -> None:
    """Programs that are not imported as they were traced."""
    with torch.inference_mode(module_in):
        module = nn.Linear(4, 4).eval()
    x = torch.randn(2, 4)
    with torch.inference_mode(call_in):
        program, _ = trace(module, (x,), {}, None, strict=False)
        simple = decomposed(program, "Linear")
    with torch.inference_mode():
        torch.testing.assert_close(simple.module()(x), module(x))
