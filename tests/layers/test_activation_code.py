"""Activations of anyone's, recognised by the code of their forwards."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels_hub import BundledLayerRepository


@pytest.fixture(scope="module")
def blocks() -> ModuleType:
    package = BundledLayerRepository("linear", layer_name="Linear").resolve("cpu").load()
    return importlib.import_module(f"{package.__name__}.blocks")


class Swish(nn.Module):
    """As many libraries have it."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns x sigmoid(x)."""
        return x * torch.sigmoid(x)


class Quick(nn.Module):
    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return input * torch.sigmoid(1.702 * input)


class Named(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        out = nn.functional.gelu(hidden)
        return out  # noqa: RET504 - as some have it


class Tanh(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


@pytest.mark.parametrize(
    ("module", "name"), [(Swish(), "silu"), (Quick(), "quick_gelu"), (Named(), "gelu"), (Tanh(), "gelu_tanh")]
)
def test_what_they_spell(blocks: ModuleType, module: nn.Module, name: str) -> None:
    assert blocks.activation_name(module) == name
    x = torch.randn(100) * 4
    torch.testing.assert_close(blocks.FORMULAS[name](x), module(x))


def _classes() -> list[type[nn.Module]]:
    class Other(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.tanh(x)

    class Scale(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(1.7 * x)

    class Two(nn.Module):
        def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
            return F.relu(x)

    class Held(nn.Module):
        beta = 1.702

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(self.beta * x)

    class Stored(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.last = x
            return F.relu(x)

    class Mish(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.mish(x)

    return [Other, Scale, Two, Held, Stored, Mish]


@pytest.mark.parametrize("kind", _classes(), ids=lambda kind: kind.__name__)
def test_what_they_do_not(blocks: ModuleType, kind: type[nn.Module]) -> None:
    assert blocks.activation_name(kind()) is None


def test_a_name_that_means_something_else(blocks: ModuleType) -> None:
    namespace = {"torch": nn}
    exec("def forward(self, x):\n    return x * torch.sigmoid(x)\n", namespace)
    assert blocks.activation_of_code(namespace["forward"]) is None
    namespace["torch"] = torch  # type: ignore[assignment]
    assert blocks.activation_of_code(namespace["forward"]) == "silu"


def test_hooks_and_other_forwards_are_seen(blocks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Swish()
    module.register_forward_hook(lambda *_: None)
    assert blocks.activation_name(module) is None
    monkeypatch.setattr(Swish, "forward", lambda self, x: x)
    assert blocks.activation_name(Swish()) is None
