"""Modules, inputs and calls of the importer, each in inference mode or not: all can be traced."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from kernels_hub.compiler import compile

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
