"""Decorators that stay around a kernel: transformers' for arguments that were renamed."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub import (
    LocalLayerRepository,
    Mode,
    kernelize,
    load_kernel_mapping,
    report,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
)
from kernels_hub.kernelization.contract import Contract, class_difference

deprecate_kwarg: Callable[..., Any] = pytest.importorskip(
    "transformers.utils.deprecation", reason="needs the package transformers"
).deprecate_kwarg

GradientCheckpointingLayer: Any = pytest.importorskip(
    "transformers.modeling_layers"
).GradientCheckpointingLayer

SOURCE = "def forward(self, x, scale=1.0): return x * scale"
TRIPLED = """
from torch import nn
class Scaled(nn.Module):
    def forward(self, x, scale=1.0):
        return 3 * x * scale
"""
"""Another result, so that it is seen to run."""


@use_kernel_forward_from_hub("Scaled")
class Scaled(nn.Module):
    @deprecate_kwarg("factor", "99.0", new_name="scale")
    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x * scale


class Twice(nn.Module):
    """Renamed twice."""

    @deprecate_kwarg("factor", "99.0", new_name="scale")
    @deprecate_kwarg("by", "99.0", new_name="scale")
    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x * scale


def halving(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(self: Any, x: torch.Tensor, scale: float = 1.0) -> Any:
        return function(self, x, scale) / 2

    return wrapper


class Halved(nn.Module):
    @deprecate_kwarg("factor", "99.0", new_name="scale")
    @halving
    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x * scale


def test_a_contract_looks_inside() -> None:
    contract = Contract("scaled", SOURCE)
    assert class_difference(Scaled, [contract]) is None and class_difference(Twice, [contract]) is None
    found = class_difference(Halved, [contract])
    assert found is not None and found.reason == "its forward cannot be compared: it is decorated"
    named = Contract("scaled", SOURCE, decorators=(f"{__name__}:halving",))
    assert class_difference(Halved, [named]) is None


def test_an_old_name_reaches_the_kernel(make_repository: Callable[..., Any]) -> None:
    x, module = torch.arange(4.0), Scaled()
    source = LocalLayerRepository(make_repository("scaled", TRIPLED), layer_name="Scaled")
    with use_kernel_mapping({"Scaled": {"cpu": source}}, inherit_mapping=False):
        kernelize(module, mode=Mode.INFERENCE, device="cpu")
    assert module(x, scale=2.0).equal(6 * x) and module(x).equal(3 * x)
    with pytest.warns(FutureWarning, match="`factor` is deprecated .* for `Scaled.forward`"):
        assert module(x, factor=2.0).equal(6 * x)
    assert list(inspect.signature(module.forward).parameters) == ["x", "scale"]


def test_an_old_name_reaches_what_is_compiled() -> None:
    x, model, original = torch.randn(8, 64), Twice(), Twice()
    with use_kernel_mapping(load_kernel_mapping("compiled"), inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for given in ({}, {"scale": 2.0}, {"factor": 3.0}, {"by": 4.0}):
            assert model(x, **given).equal(original(x, **given)), given
    (row,) = (row for row in report(model) if row.layer_name == "CompiledModel")
    assert row.swapped or "no faster" in row.reason or "kept" in row.reason, row.reason


class Layer(GradientCheckpointingLayer):
    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x * scale


def checkpointing(self: Any, *args: Any, **kwargs: Any) -> Any:
    """As releases of transformers before 5.24 have it."""
    return nn.Module.__call__(self, *args, **kwargs)


def test_layers_whose_gradients_may_be_checkpointed(monkeypatch: pytest.MonkeyPatch) -> None:
    contract = Contract("scaled", SOURCE)
    assert class_difference(Layer, (contract,)) is None
    monkeypatch.setattr(GradientCheckpointingLayer, "__call__", checkpointing, raising=False)
    found = class_difference(Layer, (contract,))
    assert found is not None and found.reason == "it has a __call__ of its own"  # of another module's
    monkeypatch.setattr(checkpointing, "__module__", GradientCheckpointingLayer.__module__)
    assert class_difference(Layer, (contract,)) is None
    monkeypatch.setattr(Layer, "__call__", lambda self, x: x, raising=False)
    found = class_difference(Layer, (contract,))
    assert found is not None and found.reason == "it has a __call__ of its own"
