"""Following a forward's words to autograd: in its own thread alone, and nothing is left behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub.compiler import import_torch
from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.importers.asked_tensors import Asking
from kernels_hub.compiler.importers.torch_autograd import listening
from tests.compiler.autodiff.tricky_modules import Tripled, Written

X = torch.randn(3, 4)


def _patched() -> tuple[Any, ...]:
    inference = torch.inference_mode
    return inference.__enter__, inference.__exit__, vars(torch.autograd.Function).get("apply")


def test_nothing_is_left_behind():
    before = _patched()
    module = Written(lambda m, x: Tripled.apply(x) * m.weight)
    import_torch(module, (X,))
    with pytest.raises(ImportFailure):
        import_torch(Written(lambda m, x: x.tolist()[0]), (X,))
    assert _patched() == before and "forward" not in vars(module)
    (found,) = torch.autograd.grad(module(x := X.clone().requires_grad_()).sum(), x)
    assert torch.equal(found, module.weight.detach().expand(3, 4) * 7)


def test_other_threads_are_as_they_were():
    """While one thread traces, another trains: its functions and modes work."""
    module = Written(lambda m, x: x * m.weight)
    found: dict[str, Any] = {}

    def train() -> None:
        x = X.clone().requires_grad_()
        with torch.inference_mode():
            found["inference"] = (x * 2).is_inference()
        with torch.no_grad():
            found["no_grad"] = (x * 2).requires_grad
        (found["gradient"],) = torch.autograd.grad(Tripled.apply(x).sum(), x)

    with listening(module, Asking(module)):
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    assert found["inference"] and not found["no_grad"]
    assert torch.equal(found["gradient"], torch.full_like(X, 7))


def test_traces_inside_and_beside_each_other():
    results: list[bool] = []

    def trace() -> None:
        for _ in range(3):
            graph = import_torch(Written(lambda m, x: Tripled.apply(x.detach() * m.weight)), (X,))
            results.append(sum(node.op.name == "stop_gradient" for node in graph.nodes) == 2)

    before = _patched()
    one, other = nn.Identity(), nn.Identity()
    with listening(one, Asking(one)), listening(other, Asking(other)):
        trace()
    assert results == [True] * 3 and _patched() == before


def test_a_weight_is_detached_and_an_integer_is_not():
    graph = import_torch(
        Written(lambda m, x, ids: x * m.weight.detach() + ids.detach()), (X, torch.arange(4))
    )
    assert [str(node.operands[0].dtype) for node in graph.nodes if node.op.name == "stop_gradient"] == [
        "float32"
    ]
