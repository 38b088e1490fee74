"""Shallow copies and replicas of kernelized modules run on themselves, under every mapping."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernels_hub import report, restore
from kernels_hub.kernelization.bind import COPIED
from tests.kernelization.test_changes_around_calls import both, images, is_compiled, of
from tests.kernelization.test_travel import Scaled, X, kernelized, mapping

__all__ = ["mapping"]


def replica_of(module: nn.Module) -> nn.Module:
    return module._replicate_for_data_parallel()  # type: ignore[no-any-return,operator]


def with_own_weights(module: nn.Module) -> nn.Module:
    """A shallow copy has the very tables of weights; who wants others gives it tables of its own."""
    made = copy.copy(module)
    made._parameters = {
        name: nn.Parameter(one.detach() * 10) for name, one in module._parameters.items() if one is not None
    }
    return made


def replicated(module: nn.Module) -> nn.Module:
    """As torch.nn.parallel.replicate does it: weights are tensors among the attributes."""
    made = replica_of(module)
    for name, one in module._parameters.items():
        object.__setattr__(made, name, None if one is None else one.detach() * 10)
    return made


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {"copy": with_own_weights, "replica": replicated}


@pytest.mark.parametrize("how", COPIES)
def test_copies_run_the_kernel_on_their_own_weights(mapping: Any, how: str) -> None:
    model = kernelized(mapping)[0]
    assert torch.equal(model(X), 2 * X)
    twin = COPIES[how](model)
    assert type(twin) is Scaled and twin.forward.__self__ is twin
    assert torch.equal(twin(X), 20 * X) and torch.equal(model(X), 2 * X)
    again = copy.copy(copy.copy(twin))
    assert again.forward.__self__ is again and torch.equal(again(X), 20 * X)


def test_other_copies_and_restored_modules_are_as_before(mapping: Any) -> None:
    model = kernelized(mapping)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            twin[0].weight.mul_(10)
        shallow = copy.copy(twin[0])
        assert torch.equal(shallow(X), 20 * X) and torch.equal(model[0](X), 2 * X)
    twin = copy.copy(model[0])
    restore(model)
    assert not set(COPIED) & vars(model[0]).keys()
    assert torch.equal(model[0](X), X) and torch.equal(twin(X), 2 * X)
    assert copy.copy(model[0]).forward.__func__ is Scaled.forward


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.usefixtures("mapping_compiled")
@pytest.mark.parametrize("how", COPIES)
def test_copies_of_compiled_models_compute_with_their_own_weights(how: str) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)) * self.scale

    def make() -> nn.Module:
        model = of(forward)()
        model.scale = nn.Parameter(torch.full((8,), 2.0))
        return model

    reference, model = both(make)
    x = images(4, 8)
    torch.testing.assert_close(model(x), reference(x))
    assert is_compiled(model), report(model).rows[0]
    twin, expected = COPIES[how](model), COPIES[how](reference)
    for _ in range(2):
        torch.testing.assert_close(twin(x), expected(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model(x), reference(x), rtol=1e-5, atol=1e-5)
