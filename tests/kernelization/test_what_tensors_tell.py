"""What forwards of compiled models ask of the tensors of a call beside what they hold, and what its strides decide."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels_hub import report
from tests.kernelization.test_changes_around_calls import both, compare, images, is_compiled, of
from tests.kernelization.test_views import check

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.usefixtures("mapping_compiled"),
]


def with_gradients(self: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        return torch.tanh(self.layer(x))


def with_gradients_set(self: Any, x: Tensor) -> Tensor:
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    found = torch.tanh(self.layer(x))
    torch.set_grad_enabled(before)
    return found


UNFOLLOWED: dict[str, Callable[..., object]] = {
    "switches gradients on": with_gradients,
    "switches gradients on, also where": with_gradients_set,
    "switches gradients on, also": lambda self, x: torch.tanh(x).requires_grad_(),
    "asks a tensor for its _version": lambda self, x: torch.tanh(x) * (1 + x._version),
    "asks a tensor for its _is_view()": lambda self, x: torch.tanh(x) * (2 if x._is_view() else 3),
    "asks a tensor for its grad,": lambda self, x: torch.tanh(x) * (1 if x.grad is None else 2),
}


@pytest.mark.parametrize("reason", UNFOLLOWED)
def test_what_no_program_does_keeps_the_forward(reason: str) -> None:
    reference, model = both(of(UNFOLLOWED[reason]))
    for x in (images(4, 8), images(4, 8).add_(1)):
        assert compare(reference, model, x).requires_grad == model(x).requires_grad
    assert not is_compiled(model) and reason in (report(model).rows[0].reason or "")


def test_attributes_of_arguments() -> None:
    reference, model = both(of(lambda self, x: torch.tanh(x) * getattr(x, "scale", 1.0)))
    scaled = images(4, 8)
    scaled.scale = 5.0  # type: ignore[attr-defined]
    for x in (images(4, 8), scaled, images(4, 8)):
        compare(reference, model, x)
        assert is_compiled(model)


def contiguous(self: Any, x: Tensor) -> Any:
    of_format = x.contiguous(memory_format=torch.contiguous_format)
    return x.contiguous(), of_format[1:], x, torch.tanh(self.layer(x))


def of_copies(self: Any, x: Tensor) -> Any:
    y, copied, turned = x * 2, x.contiguous(), x.t().contiguous()
    turned.add_(1)
    return y, y.contiguous(), copied, copied[0], torch.tanh(turned)


@pytest.mark.parametrize("forward", [contiguous, of_copies])
def test_what_is_copied_where_strides_ask_for_it(forward: Callable[..., Any]) -> None:
    reference, model = both(of(forward))
    for make in (images(8, 8).clone, lambda: images(8, 8).t(), lambda: images(16, 8)[::2]):
        check(reference, model, lambda make=make: (make(),))
        assert is_compiled(model)
