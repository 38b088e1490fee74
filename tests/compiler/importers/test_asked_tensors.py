"""`compile` of forwards that ask their arguments for more than what they hold: calls get the same answers, or refusals."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import Parameter as Renamed

from kernels_hub.compiler import compile
from kernels_hub.compiler.errors import ImportFailure, PlanError
from kernels_hub.compiler.importers.torch_export import import_torch


class Asking(nn.Module):
    """Does what a function says."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.of_instance = forward
        self.calls, self.largest = 0, 0
        self.memory: object = None
        self.seen: list[int] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.of_instance(self, *args, **kwargs)


def _run(forward: Callable[..., Any], *example: Any, **named: Any) -> Any:
    return compile((Asking(forward).eval(), example, named), "cpu", engines=["library"])


X = torch.randn(4, 4)
OF_LAYOUT = {
    "is_contiguous": (lambda m, x: x if x.is_contiguous() else -x, X.t()),
    "stride": (lambda m, x: x * x.stride(0), X.t()),
    "storage_offset": (lambda m, x: x + x.storage_offset(), torch.randn(6, 4)[2:]),
    "requires_grad": (lambda m, x: x if x.requires_grad else -x, torch.randn(4, 4, requires_grad=True)),
    "is_leaf": (lambda m, x: x if x.is_leaf else -x, torch.randn(4, 4, requires_grad=True) * 1),
    "Parameter": (lambda m, x: x if isinstance(x, nn.Parameter) else -x, nn.Parameter(X)),
    "Parameter renamed": (lambda m, x: x if isinstance(x, Renamed) else -x, nn.Parameter(X)),
}


@pytest.mark.parametrize(("forward", "other"), OF_LAYOUT.values(), ids=OF_LAYOUT)
def test_what_tensors_have_beside_what_they_hold_is_that_of_the_example(
    forward: Callable[..., Any], other: torch.Tensor, tmp_path
):
    run = _run(forward, X)
    assert torch.equal(run(X.clone()), forward(None, X.clone()))
    with pytest.raises(PlanError, match=r"asks tensors for strides.*call the module itself"):
        run(other)
    assert torch.equal(run(X), forward(None, X))
    with pytest.raises(PlanError, match="asks of its arguments what they are"):
        run.save(tmp_path / "asking.khplan")
    with pytest.raises(ImportFailure, match="give an example of such tensors"):
        _run(forward, other)


def test_strides_in_code_of_pytorch_are_nobodys_question():
    run = _run(lambda m, x: m.linear(x.contiguous()).view(-1), X)
    assert run(X.t()).shape == (16,)


def test_the_same_object_twice():
    run = _run(lambda m, a, b: a if a is b else a + b, X, X)
    other = torch.randn(4, 4)
    assert torch.equal(run(X, other), X + other)
    with pytest.raises(PlanError, match="same object"):
        run(other, other)


def test_a_weight_as_an_argument():
    model = Asking(lambda m, x: x if x is m.linear.weight else -x)
    run = compile((model, (X,)), "cpu", engines=["library"])
    assert torch.equal(run(X), -X)
    with pytest.raises(PlanError, match="or a parameter"):
        run(model.linear.weight)


def test_comparisons_with_what_is_no_tensor():
    def forward(m: Asking, x: torch.Tensor, scale: Any = None) -> torch.Tensor:
        return x if scale is None or type(x) is nn.Linear else x * scale

    run = _run(forward, X, X)
    assert torch.equal(run(X, X), X * X)


def _counts(m: Asking, x: torch.Tensor) -> torch.Tensor:
    m.calls += 1
    return x * m.calls


def _remembers(m: Asking, x: torch.Tensor) -> torch.Tensor:
    result = x if m.memory is None else x + 1
    m.memory = 1
    return result


def _collects(m: Asking, x: torch.Tensor) -> torch.Tensor:
    m.seen.append(1)
    return x * torch.tensor(len(m.seen))


@pytest.mark.parametrize(
    ("forward", "name"), [(_counts, "calls"), (_remembers, "memory"), (_collects, "seen")]
)
def test_what_a_forward_keeps_from_call_to_call_is_refused(forward: Callable[..., Any], name: str):
    model = Asking(forward)
    before = copy.copy(model.seen)
    with pytest.raises(ImportFailure, match=f"the forward changes {name} of its module at each call"):
        compile((model, (X,)), "cpu")
    assert (model.calls, model.memory, model.seen) == (0, None, before)


def test_what_a_forward_only_leaves_behind_is_not():
    def forward(m: Asking, x: torch.Tensor) -> torch.Tensor:
        m.calls += 1
        m.largest = max(m.largest, x.shape[0])
        m.seen.append(x.shape[0])
        return m.linear(x)

    model = Asking(forward)
    run = compile((model, (X,)), "cpu", engines=["library"])
    assert (model.calls, model.largest, model.seen) == (0, 0, [])
    torch.testing.assert_close(run(X), model(X))


class Remembering(nn.Module):
    """Adds what its first call computed, by the way of `attention_bias_cache` in models of timm."""

    def __init__(self, bias: Callable[[Remembering, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(2, 4))
        self.bias = bias
        self.cache: dict[str, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "bias" not in self.cache:
            self.cache["bias"] = self.bias(self, x)
        return x + self.cache["bias"]


def test_what_a_forward_remembers_of_its_module_is_computed_at_each_call():
    model = Remembering(lambda m, x: m.table[torch.tensor([1, 0, 0, 1])])
    run = compile((model, (X,)), "cpu", engines=["library"])
    assert model.cache == {}
    for other in (X, torch.randn(4, 4)):
        assert torch.equal(run(other), model(other))


@pytest.mark.parametrize(
    "bias",
    [lambda m, x: x * 2, lambda m, x: x.mean() + m.table[0], lambda m, x: torch.randn(4)],
    ids=["argument", "mean of an argument", "random"],
)
def test_what_a_forward_remembers_of_a_call_is_refused(bias: Callable[..., torch.Tensor]):
    model = Remembering(bias)
    with pytest.raises(ImportFailure, match="the forward leaves cache in its module"):
        compile((model, (X,)), "cpu")
    assert model.cache == {}


class Stateful(nn.Module):
    """A cell that keeps its state, in an attribute or in a buffer, and starts anew where it is told to."""

    def __init__(self, *, buffer: bool, anew: bool) -> None:
        super().__init__()
        self.anew, self.layer = anew, nn.Linear(4, 4)
        if buffer:
            self.register_buffer("state", torch.zeros(4, 4))
        else:
            self.state = torch.zeros(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = torch.zeros(4, 4) if self.anew else self.state
        self.state = torch.tanh(self.layer(x) + before)
        return self.state * 2


@pytest.mark.parametrize("buffer", [False, True])
@pytest.mark.parametrize("anew", [False, True])
def test_a_state_that_a_forward_leaves_in_its_module_is_refused(buffer: bool, anew: bool):
    """Also by a call whose result is that of a first one: what a later call goes on from would not be there."""
    model = Stateful(buffer=buffer, anew=anew).eval()
    state = model.state
    with pytest.raises(ImportFailure, match="the forward leaves state in its module"):
        compile((model, (X,)), "cpu")
    assert model.state is state and torch.equal(state, torch.zeros(4, 4))


def test_a_tensor_that_a_forward_shows_is_refused():
    class Showing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.weights = nn.Linear(4, 4), None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.weights = self.layer(x).softmax(-1)
            return self.weights @ x

    with pytest.raises(ImportFailure, match="the forward leaves weights in its module"):
        compile((Showing().eval(), (X,)), "cpu")


class Writing(Remembering):
    """Writes to its weights as well."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        with torch.no_grad():
            self.table.add_(1.0)
        return y


def test_weights_stay_while_it_is_found_out_what_a_forward_remembers():
    model = Writing(lambda m, x: m.table[0] * 2)
    before = model.table.detach().clone()
    with pytest.raises(ImportFailure, match="a call changes this parameter|the forward changes cache"):
        compile((model, (X,)), "cpu")
    assert torch.equal(model.table, before) and model.cache == {}


def test_what_a_forward_remembers_by_the_sizes_of_its_arguments_is_refused():
    """It may be what an earlier, larger call left."""
    model = Remembering(lambda m, x: torch.ones(x.shape[0], 1) * x.shape[0])
    with pytest.raises(ImportFailure):
        import_torch(model, (X,), dynamic_shapes=({0: torch.export.Dim("rows", min=2, max=64)},))


OF_ONE_CALL: Sequence[Callable[..., Any]] = (
    lambda m, x: x * x._version,
    lambda m, x: x if x._is_view() else -x,
    lambda m, x: x if x._base is None else -x,
    lambda m, x: x if x.grad is None else -x,
)


@pytest.mark.parametrize("forward", OF_ONE_CALL, ids=["_version", "_is_view", "_base", "grad"])
def test_what_is_of_one_call_is_refused(forward: Callable[..., Any]):
    with pytest.raises(ImportFailure, match="which is of one call"):
        _run(forward, X)


class Together(nn.Module):
    """Sees the order of its keyword arguments."""

    def forward(self, x: torch.Tensor, *, shift: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        for value in more.values():
            x = x * 2 + value
        return x + shift


def test_keyword_arguments_in_another_order():
    named = {"shift": X, "a": X, "b": -X}
    run = compile((Together(), (X,), named), "cpu", engines=["library"])
    expected = Together()(X, **named)
    torch.testing.assert_close(run(X, **named), expected)
    torch.testing.assert_close(run(X, a=X, b=-X, shift=X), expected)
    with pytest.raises(PlanError, match=r"traced with a, b in this order.*called with b, a"):
        run(X, shift=X, b=-X, a=X)


class Named(nn.Module):
    """Takes arguments by position and by name, with defaults."""

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, scale: float = 2.0, *, shift: float = 1.0
    ) -> torch.Tensor:
        return (x - y) * scale + shift


def test_arguments_by_name_or_by_position():
    x, y = torch.randn(4), torch.randn(4)
    expected = Named()(x, y)
    for example in ((x, y), {}), ((x,), {"y": y, "shift": 1.0}), ((), {"y": y, "x": x, "scale": 2.0}):
        run = compile((Named(), *example), "cpu", engines=["library"])
        for args, kwargs in (
            ((x, y), {}),
            ((x,), {"y": y}),
            ((), {"y": y, "x": x}),
            ((x, y, 2.0), {"shift": 1.0}),
        ):
            torch.testing.assert_close(run(*args, **kwargs), expected)
        with pytest.raises(PlanError, match=r"arguments|shift"):
            run(x, y, shift=3.0)
        with pytest.raises(PlanError, match="arguments"):
            run(x)
