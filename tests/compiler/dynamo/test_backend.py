"""torch.compile with the compiler as backend: numbers, strides, aliases, writes, weights, shapes, gradients, fallbacks.

Most graphs run on the engine `library`, which needs no compiler: what is tested is what lies around the plans.
"""

from __future__ import annotations

import logging
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

from kernels_hub.compiler import CompilerError
from kernels_hub.compiler.dynamo import backend
from kernels_hub.compiler.dynamo.backend import kernels_hub
from kernels_hub.compiler.dynamo.statistics import statistics
from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.importers.aten_ops import HANDLERS
from kernels_hub.compiler.runtime.toolchain import find_compiler


def compiled(model, **options):
    options = {"engines": ("library",), "fallback": "error", **options}
    return torch.compile(model, backend=kernels_hub, options=options)


def write_argument(x):
    x.add_(1)
    return x * 2


def write_a_view(x):
    x[1].mul_(3)
    return x.sum(0)


def give_views(x):
    y = x + 1
    return y, y.t(), y[1:], y[:, 1]


def give_views_of_the_argument(x):
    return x.t(), x[1:, 2], x.view(-1), x


def read_by_strides(x):
    y = (x + 1).t()
    return (
        y.as_strided((2, 2, 6), (12, 6, 1)) * 2, y.as_strided((4, 3), (1, 6), 2) + 1, y.as_strided((3, 4), (2, 1)) * 3,
        y.as_strided((6, 4), (1, 6)) - 1, y.as_strided((5, 2), (0, 7), 1) * 4,
    )  # fmt: skip


def give_strides(x):
    return (x * 2).t(), (x.sum(1, keepdim=True) + 1).expand(4, 6), torch.relu(x)[None].permute(2, 0, 1)


def give_the_same_twice(x):
    y = x.exp()
    return y, y, None, 3


def make_tensors(x):
    return x + torch.arange(6) * torch.tensor([2.0]), torch.full((3,), 7)


def return_a_view_and_write_its_base(x):
    y = x * 2
    z = y[0]
    y.add_(1)
    return z


@pytest.mark.parametrize(
    "function",
    [
        write_argument, write_a_view, give_views, give_views_of_the_argument, read_by_strides, give_strides,
        give_the_same_twice, make_tensors, return_a_view_and_write_its_base,
    ],
)  # fmt: skip
@torch.no_grad()
def test_results_are_those_of_eager(function):
    given = torch.randn(4, 6)
    theirs, ours = given.clone(), given.clone()
    expected, found = function(theirs), compiled(function)(ours)
    torch.testing.assert_close(ours, theirs)
    expected, found = (one if isinstance(one, tuple) else (one,) for one in (expected, found))
    for a, b in zip(expected, found, strict=True):
        if not isinstance(a, torch.Tensor):
            assert a == b
            continue
        torch.testing.assert_close(b, a)
        assert b.stride() == a.stride()
    # What shares memory in eager does so here.
    tensors = [(a, b) for a, b in zip(expected, found, strict=True) if isinstance(a, torch.Tensor)]
    for a, b in [*tensors, (theirs, ours)]:
        for c, d in tensors:
            assert (a.untyped_storage().data_ptr() == c.untyped_storage().data_ptr()) == (
                b.untyped_storage().data_ptr() == d.untyped_storage().data_ptr()
            )
    assert statistics.graphs and not statistics.fell_back


class Times(nn.Module):
    def forward(self, x, times):
        return x.sin() * times


@torch.no_grad()
def test_numbers_that_are_no_sizes():
    """Dynamo makes a symbol of an int that is another at the second call."""
    x = torch.randn(3, 5)
    run, refusing = (compiled(Times(), fallback=fallback) for fallback in ("eager", "error"))
    for times in (3, 4, 5, 2.5, 0):
        torch.testing.assert_close(run(x, times), Times()(x, times))
    for times in (3, 4, 7, 0, 1, 1 << 40, 2.5, -3.5, float("inf")):
        torch.testing.assert_close(refusing(x, times), Times()(x, times))
    torch.testing.assert_close(run(x, -4), Times()(x, -4))
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="a number that is no size of a tensor"):
        refusing(x, -3)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return self.linear(x) * self.seen


@pytest.mark.parametrize("weights", ["followed", "inputs"])
@torch.no_grad()
def test_weights_are_those_of_the_call(weights):
    torch.manual_seed(0)
    model, x = Counting(), torch.randn(2, 5)
    run = compiled(model, weights=weights)

    def check():
        model.seen.zero_()
        found = run(x)
        model.seen.zero_()
        torch.testing.assert_close(found, model(x))

    check()
    model.linear.weight.mul_(2)
    check()
    model.linear.bias.data = torch.randn(3)
    check()
    model.linear.weight = nn.Parameter(torch.randn(3, 5))
    check()
    model.load_state_dict({name: one + 1 for name, one in model.state_dict().items()})
    check()
    assert not statistics.fell_back


@torch.no_grad()
def test_weights_that_share_memory_may_part():
    model, x = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)), torch.randn(2, 4)
    model[1].weight.data = model[0].weight.data
    run = compiled(model)
    torch.testing.assert_close(run(x), model(x))
    model[1].weight.data = torch.randn(4, 4)
    torch.testing.assert_close(run(x), model(x))


@torch.no_grad()
def test_frozen_weights_stay():
    model, x = nn.Linear(5, 3), torch.randn(2, 5)
    run = compiled(model, weights="frozen")
    before = run(x)
    model.weight.zero_()
    assert torch.equal(run(x), before)


@torch.no_grad()
def test_sizes_are_symbols_after_the_second():
    model = nn.Sequential(nn.Linear(5, 4), nn.Softmax(-1))
    run = compiled(model)
    for rows in (2, 3, 7, 1, 11):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(run(x), model(x))
    assert len(statistics.graphs) <= 3
    run = compiled(lambda x: (x.shape[0] * 2, x + x.shape[0]))
    for rows in (2, 3, 7):
        size, found = run(torch.ones(rows, 2))
        assert size == 2 * rows and torch.equal(found, torch.full((rows, 2), rows + 1.0))


@torch.no_grad()
@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x[:, :2] + x[:, -2:],
        lambda x: sum(part.sum(1) for part in x.chunk(3, 1)),
        lambda x: torch.cat(x.chunk(2, 1), -1) if x.shape[1] % 2 == 0 else x,
        lambda x: x.unflatten(1, (2, -1)).sum(1) if x.shape[1] % 2 == 0 else x.flatten(1),
        lambda x: x.tensor_split(2, 1)[0],
        lambda x: x * 2 if x.shape[0] > 2 else x * 3,
    ],
)
def test_what_dynamo_compares_at_each_call_is_no_reason_to_fall_back(compute):
    linear = nn.Linear(6, 6)
    run = torch.compile(
        lambda x: compute(linear(x)),
        backend=kernels_hub,
        dynamic=True,
        options={"engines": ("library", "reference"), "fallback": "error"},
    )
    for sizes in ((2, 6), (3, 8), (1, 6), (2, 24), (5, 7), (2, 2)):
        x = torch.randn(*sizes, 6)
        torch.testing.assert_close(run(x), compute(linear(x)), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_sizes_that_have_to_be_equal_are_guards():
    """Keys and values of a cache that grows: symbols of their own, which PyTorch compares when it attends."""

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    run = torch.compile(
        attend, backend=kernels_hub, options={"engines": ("library", "reference"), "fallback": "error"}
    )
    for batch, queries, keys in ((2, 8, 8), (2, 1, 9), (2, 3, 10), (3, 3, 10), (1, 4, 2)):
        q, k, v = (torch.randn(batch, 3, size, 16) for size in (queries, keys, keys))
        torch.testing.assert_close(run(q, k, v), attend(q, k, v), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_sizes_that_a_guard_does_not_prove_equal_are_asked_once(monkeypatch):
    asked = []

    def refuse(*_: object, **__: object) -> None:
        raise ImportFailure("a product of sizes", unequal=[(1, 2)])

    def make_equal(pairs, _):
        asked.append(set(pairs))
        return bool(asked[-1])

    monkeypatch.setattr(backend, "import_aten", refuse)
    monkeypatch.setattr(backend, "make_equal", make_equal)
    assert torch.equal(compiled(lambda x: x + 1, fallback="eager")(torch.ones(3)), torch.full((3,), 2.0))
    assert asked == [{(1, 2)}, set()]
    assert [record.reason for record in statistics.graphs] == ["a product of sizes"]


@torch.no_grad()
def test_sizes_that_contradict_each_other_raise_as_without_a_compiler():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(q.shape[2], k.shape[2]) > 0)

    run = torch.compile(attend, backend=kernels_hub, options={"fallback": "eager"})
    for keys in (5, 7):
        run(*(torch.randn(1, 2, size, 8) for size in (4, keys, keys)))
    wrong = [torch.randn(1, 2, size, 8) for size in (4, 6, 9)]
    with pytest.raises(RuntimeError) as expected:
        attend(*wrong)
    with pytest.raises(RuntimeError) as found:
        run(*wrong)
    assert type(found.value) is type(expected.value)


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
def test_complex_tensors_are_compiled_to_cpp():
    """Complex weights that change, arguments that are conjugated, results; and gradients by them."""

    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("turn", torch.polar(torch.ones(16), torch.arange(16.0)))

        def forward(self, x, y):
            return torch.fft.fft(x * self.turn), (x * y).abs()

    module, (x, y) = Turned(), torch.randn(2, 4, 16, dtype=torch.complex64)
    run = compiled(module, engines=("cpp",))
    with torch.no_grad():
        for one, other in ((x, y), (x.conj(), y), (x, torch._neg_view(y)), (x.T.contiguous().T, y.conj())):
            torch.testing.assert_close(run(one, other), module(one, other))
        module.turn.mul_(1j)
        torch.testing.assert_close(run(x, y), module(x, y))
    gradients = []
    for forward in (run, module):
        given = x.clone().requires_grad_()
        turned, size = forward(given, y)
        (turned.abs().square().sum() + size.sum()).backward()
        gradients.append(given.grad)
    torch.testing.assert_close(*gradients)


def test_branches_and_loops_are_compiled():
    linear = nn.Linear(4, 4)

    def branch(x):
        return torch.cond(x.sum() > 0, lambda x: linear(x) * 2, lambda x: x - 1, (x,))

    def loop(i, x):
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (i, x))

    options = {"engines": ("library", "reference"), "fallback": "error"}
    run, turn = (torch.compile(one, backend=kernels_hub, options=options) for one in (branch, loop))
    with torch.no_grad():
        for rows in (3, 5, 7):
            x = torch.rand(rows, 4)
            for sign in (1, -1):
                torch.testing.assert_close(run(sign * x), branch(sign * x))
            for start in (0, 2, 5):
                torch.testing.assert_close(turn(torch.tensor(start), x), loop(torch.tensor(start), x))
    x = torch.rand(3, 4, requires_grad=True)
    found, expected = (torch.autograd.grad(one(x).sum(), x) for one in (run, branch))
    torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_graphs_break_and_a_whole_graph_is_demanded():
    def broken(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y.view(-1) + 1

    x = torch.randn(2, 3)
    torch.testing.assert_close(compiled(broken)(x), broken(x))
    assert len(statistics.compiled) == 2
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(broken, backend=kernels_hub, fullgraph=True)(x)


def test_gradients_are_those_of_eager():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4), nn.Softmax(-1))
    x = torch.randn(5, 6, requires_grad=True)
    run = compiled(model)

    def step(function):
        model.zero_grad()
        x.grad = None
        function(x).square().sum().backward()
        return [x.grad.clone(), *(one.grad.clone() for one in model.parameters())]

    for _ in range(2):
        torch.testing.assert_close(step(run), step(model))
        with torch.no_grad():
            for one in model.parameters():
                one.sub_(one.grad)
    assert [one.kind for one in statistics.compiled] == ["forward", "backward"]


def test_parts_of_a_result_share_its_memory_in_training():
    layer, x = nn.Linear(6, 6), torch.randn(4, 6)

    def parts(x):
        y = layer(x)
        return (y, *y.chunk(2, -1))

    y, first, second = compiled(parts)(x)
    torch.testing.assert_close((first, second), layer(x).chunk(2, -1))
    (y.sum() + (second * 2).sum()).backward()
    torch.testing.assert_close(layer.bias.grad, torch.tensor([4.0] * 3 + [12.0] * 3))
    y.detach().zero_()
    assert not first.any() and not second.any()
    assert [one.kind for one in statistics.compiled] == ["forward", "backward"]


@torch.no_grad()
def test_what_is_not_supported_falls_back_and_is_named(caplog):
    def function(x):
        return torch.linalg.det(x) + 1

    x = torch.randn(3, 3)
    with caplog.at_level(logging.WARNING, "kernels_hub"):
        found = compiled(function, fallback="eager")(x)
    torch.testing.assert_close(found, function(x))
    (record,) = statistics.fell_back
    assert record.backend == "eager" and "_linalg_det" in record.reason
    assert "runs on eager" in caplog.text and record.reason in str(statistics)
    assert not statistics.compiled

    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="_linalg_det"):
        compiled(function)(x)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"mode": "fastest"}, "no mode 'fastest'; it has 'default'"),
        ({"options": {"engine": "cpp"}}, "no options engine; it has engines,"),
        ({"options": {"weights": "kept"}}, "'weights' is one of 'followed'"),
    ],
)
def test_bad_options_are_refused(given, what):
    with pytest.raises(Exception, match=what) as raised:
        torch.compile(lambda x: x + 1, backend=kernels_hub, **given)(torch.ones(2))
    assert isinstance(
        raised.value.__cause__ or raised.value, (CompilerError, torch._dynamo.exc.BackendCompilerFailed)
    )


def test_flops_are_counted():
    model = nn.Linear(16, 8, bias=False)
    with torch.no_grad():
        compiled(model)(torch.randn(4, 16))
    assert statistics.graphs[0].flops == 2 * 4 * 16 * 8
    assert statistics.flops_share == 1


def test_it_is_registered():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    entries = project["project"]["entry-points"]["torch_dynamo_backends"]
    assert EntryPoint("kernels_hub", entries["kernels_hub"], "torch_dynamo_backends").load() is kernels_hub


@pytest.mark.parametrize("mask", [None, "causal", "padding"])
@pytest.mark.parametrize("trained", [False, True])
def test_a_forward_of_attention_gives_any_backward_what_it_needs(mask, trained, monkeypatch):
    """A backward reads log(sum(exp(scores))), be it compiled or PyTorch's own kernel."""
    if not trained:
        monkeypatch.delitem(HANDLERS, "_scaled_dot_product_flash_attention_for_cpu_backward.default")
    query, key, value = (torch.randn(2, 3, 5, 8, requires_grad=True) for _ in range(3))
    hidden = torch.ones(5, 5, dtype=torch.bool)
    hidden[:, 3:] = False
    options = {"is_causal": mask == "causal", "attn_mask": hidden if mask == "padding" else None}

    def attend(q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v, **options) * 2

    found = compiled(attend, fallback="eager")(query, key, value)
    expected = attend(query, key, value)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(found, (query, key, value), weights),
        torch.autograd.grad(expected, (query, key, value), weights),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
    assert [one.kind for one in statistics.compiled] == ["forward", *["backward"][:trained]]
