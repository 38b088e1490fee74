"""Modules that are refused before they are traced, and those that must not be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import register_pytree_node

from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.importers import brief_run
from kernels_hub.compiler.importers.torch_precheck import refuse_early


@pytest.fixture(autouse=True, params=[60.0, -1.0], ids=["with values", "without values"])
def _seconds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brief_run, "SECONDS", request.param)


class SingularValues(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.linalg.svdvals(x)


class Solved(nn.Module):
    """Of a result in a dataclass-like object, whose class is no pytree."""

    def forward(self, x: Tensor) -> Any:
        class Result:
            def __init__(self) -> None:
                self.values = torch.linalg.eigvalsh(x @ x.mT)

        return Result()


class Counted(nn.Module):
    """Its singular values are of nothing that comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: Tensor, seen: list[Tensor] | None = None) -> Tensor:
        self.calls += 1
        self.total.add_(1)
        torch.linalg.svdvals(x)
        if seen is not None:
            seen.append(x)
        return self.linear(x).relu()


class Closed:
    """A result that cannot be taken apart, as a cache that is no tree any more."""


def _flatten(_: Closed) -> Any:
    raise ImportFailure("it is closed")


register_pytree_node(Closed, _flatten, lambda *_: Closed())


class Closing(nn.Module):
    def forward(self, x: Tensor) -> Closed:
        torch.linalg.svdvals(x)
        return Closed()


class Raising(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError(str(torch.linalg.svdvals(x).shape))


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (
            nn.Sequential(nn.Linear(4, 4), SingularValues(), nn.ReLU()),
            ["aten._linalg_svd.default: no handler; in 1"],
        ),
        (nn.Sequential(SingularValues(), SingularValues()), ["in 0", "in 1"]),
        (Solved(), ["aten._linalg_eigh.default: no handler; in its forward"]),
    ],
    ids=["one", "two", "an object"],
)
def test_what_is_refused(module: nn.Module, names: list[str]) -> None:
    with pytest.raises(ImportFailure) as error:
        refuse_early(module, (torch.randn(4, 4),), {}, "Layer")
    first, *lines = str(error.value).splitlines()
    count = "1 thing is" if len(names) == 1 else f"{len(names)} things are"
    assert first == f"Layer cannot be imported: {count} not supported:"
    assert len(lines) == len(names) and all(name in line for name, line in zip(names, lines, strict=True))


def test_what_nothing_comes_of_is_not_refused_and_nothing_is_changed() -> None:
    module, seen, x = Counted().eval(), [], torch.randn(4, 4)
    before = x.clone()
    refuse_early(module, (x,), {"seen": seen}, "Layer")
    assert module.calls == 0 and module.total == 0 and seen == [] and torch.equal(x, before)
    assert not module._forward_hooks and not module.linear._forward_hooks


@pytest.mark.parametrize(
    ("module", "given"),
    [
        (Raising(), (torch.randn(4),)),
        (Closing(), (torch.randn(4),)),
        (nn.LSTM(4, 4, batch_first=True).eval(), (torch.randn(2, 3, 4),)),
        (nn.MultiheadAttention(8, 2, batch_first=True).eval(), (torch.randn(2, 3, 8),) * 3),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (torch.randn(2, 3, 8),)),
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Hardswish()).eval(),
            (torch.randn(1, 3, 8, 8),),
        ),
    ],
    ids=["a call that raises", "a closed result", "LSTM", "attention", "a transformer", "convolutions"],
)
def test_what_has_other_forms_when_it_is_traced_is_not_refused(
    module: nn.Module, given: tuple[Any, ...]
) -> None:
    refuse_early(module, given, {}, "Layer")


class Branched(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


def test_calls_of_the_module_itself_are_as_before():
    """PyTorch 2.11 runs `cond` under torch.compile, which failed ever after."""
    module, x = Branched().eval(), torch.ones(2, 2)
    with torch.no_grad():
        before = module(x)
        refuse_early(module, (x,), {}, "it")
        assert torch.equal(module(x), before)
