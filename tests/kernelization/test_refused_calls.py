"""Calls that are refused: the original runs with next to nothing before it, and calls of other forms are still tried.

What a call asks of the compiler is counted: `signature` looks at everything, `form` at the arguments themselves.
"""

from __future__ import annotations

import copy
import pickle
import sys
import threading
import weakref
from collections.abc import Hashable
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub import KernelImportError, report, restore, use_kernel_forward_from_hub
from kernels_hub.kernelization import jit_compilations
from kernels_hub.kernelization.compiled_layer import CompiledLayer, CompileRequest
from kernels_hub.kernelization.module_calls import ModuleCalls
from kernels_hub.kernelization.trial import Timing
from tests.kernelization.jit_compiler import Compiler, Scaled, X, compiler, kernelized

__all__ = ["compiler"]

ROWS = torch.ones(2, 4)


def not_in_single_precision(request: CompileRequest) -> None:
    if request.args[0].dtype == torch.float32:
        raise ValueError("not in single precision")


class Counting:
    """Counts what calls ask a compiler for."""

    def __init__(self, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
        self.signatures = self.forms = 0
        self._signature, self._form = compiler.signature, compiler.form
        monkeypatch.setattr(compiler, "signature", self.signature)
        monkeypatch.setattr(compiler, "form", self.form)

    def signature(self, *arguments: Any) -> Hashable:
        self.signatures += 1
        return self._signature(*arguments)

    def form(self, *arguments: Any) -> Hashable:
        self.forms += 1
        return self._form(*arguments)

    def of(self, model: nn.Module, *args: Any, calls: int = 1, **kwargs: Any) -> tuple[int, int]:
        """Signatures and forms that so many calls ask for."""
        before = self.signatures, self.forms
        for _ in range(calls):
            model(*args, **kwargs)
        return self.signatures - before[0], self.forms - before[1]


@pytest.fixture
def counting(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> Counting:
    return Counting(compiler, monkeypatch)


def with_facts_in_keys(compiler: Compiler) -> None:
    """Have the compiler tell apart dtypes of arguments, and training or not, also where it looks for what it knows."""
    key = compiler.key

    def told_apart(layer: CompiledLayer, module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> str:
        return f"{key(layer, module, args, kwargs)} {module.training} {args[0].dtype}"

    compiler.key = told_apart  # type: ignore[method-assign]


def without_bias(compiler: Compiler) -> None:
    """Have the compiler refuse calls without a bias, alone."""

    def inside(request: CompileRequest) -> None:
        if len(request.args) < 2 and not request.kwargs:
            raise ValueError("no bias")

    compiler.inside = inside


def test_a_refused_form_asks_for_no_signature(compiler: Compiler, counting: Counting) -> None:
    compiler.fails = "no kernel computes this"
    model = kernelized(Scaled())
    model(X)
    assert counting.of(model, X, calls=3) == (0, 3)
    signatures, forms = counting.of(model, X, calls=1000)
    assert signatures == 0 and 1000 / 16 <= forms < 1000 / 10, "more and more rarely"
    assert torch.equal(model(X), 2 * X)
    assert report(model).rows[1].reason == "it cannot be compiled: no kernel computes this"


@pytest.mark.parametrize("before", [1, 1000])
def test_a_call_of_another_form_is_compiled(compiler: Compiler, before: int) -> None:
    without_bias(compiler)
    model = kernelized(Scaled())
    for _ in range(before):
        assert torch.equal(model(X), 2 * X)
    assert torch.equal(model[0](X, bias=1), 2 * X + 101), "other names of arguments: at once"
    assert torch.equal(model[0](X, 1), 2 * X + 101), "another number of them: at once"
    for _ in range(40):
        assert torch.equal(model(X), 2 * X) and torch.equal(model[0](X, bias=1), 2 * X + 101)
    assert report(model).rows[1].swapped


def test_of_the_same_names_another_form_is_seen_after_a_few_calls(compiler: Compiler) -> None:
    with_facts_in_keys(compiler)
    compiler.inside = not_in_single_precision
    compiler.form = lambda layer, args, kwargs: args[0].dtype  # type: ignore[method-assign]
    model = kernelized(Scaled())
    for _ in range(1000):
        model(X)
    doubles = X.double()
    found = [torch.equal(model(doubles), 2 * doubles + 100) for _ in range(16)]
    assert found[-1], "fifteen calls at most go by"
    assert all(torch.equal(model(doubles), 2 * doubles + 100) for _ in range(40)), "and none from then on"
    assert torch.equal(model(X), 2 * X)
    assert torch.equal(model(doubles), 2 * doubles + 100)


def test_beside_compiled_calls_a_refused_form_is_asked_for_ever_more_rarely(
    compiler: Compiler, counting: Counting
) -> None:
    """A prompt that is compiled, and tokens that are not: tokens have a shape of their own."""
    with_facts_in_keys(compiler)
    compiler.inside = not_in_single_precision
    counting._form = lambda layer, args, kwargs: args[0].dtype
    model = kernelized(Scaled())
    prompt, token = ROWS.double(), ROWS[:1]
    asked = 0
    for _ in range(70):
        assert torch.equal(model(prompt), 2 * prompt + 100), (
            "a prompt is compiled however many tokens came before"
        )
        asked += counting.of(model, token, calls=15)[1]
    assert torch.equal(model(token), 2 * token)
    assert asked < 70 * 15 / 8
    found = [torch.equal(model(token.double()), 2 * token.double() + 100) for _ in range(16)]
    assert found[-1], "of a token's shape, fifteen calls at most go by"
    assert all(torch.equal(model(token.double()), 2 * token.double() + 100) for _ in range(40))


def test_refused_calls_pass_a_decorator_once(compiler: Compiler) -> None:
    deprecation = pytest.importorskip("transformers.utils.deprecation")

    @use_kernel_forward_from_hub("Scaled")
    class Renamed(Scaled):
        @deprecation.deprecate_kwarg("offset", "99.0", new_name="bias")  # type: ignore[untyped-decorator]
        def forward(self, x: torch.Tensor, bias: Any = 0) -> torch.Tensor:
            return x * self.weight + bias

    compiler.fails = "no kernel computes this"
    model = kernelized(Renamed())
    for _ in range(1000):
        model(X)
    passed: list[str] = []
    code = Renamed.forward.__code__
    calls = 16
    sys.setprofile(lambda frame, event, _: passed.append(event) if frame.f_code is code else None)
    try:
        for _ in range(calls):
            model(X)
    finally:
        sys.setprofile(None)
    assert passed.count("call") <= calls + 1, "once, but for the one of them whose form is asked for"
    with pytest.warns(FutureWarning, match="offset"):
        assert torch.equal(model[0](X, offset=1), 2 * X + 1)


def test_a_form_of_which_a_signature_is_compiled_is_not_refused(
    compiler: Compiler, counting: Counting
) -> None:
    with_facts_in_keys(compiler)
    compiler.inside = not_in_single_precision
    model = kernelized(Scaled())
    doubles, halves = X.double(), X.bfloat16()
    assert torch.equal(model(doubles), 2 * doubles + 100)
    assert torch.equal(model(X), 2 * X)
    assert torch.equal(model(halves), 2 * halves + 100), "still asked for"
    assert counting.of(model, X) == (1, 0)


def test_what_is_kept_for_its_time_refuses_no_other(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_facts_in_keys(compiler)
    monkeypatch.setenv("KERNELS_HUB_JIT_TRIAL", "")
    ratios = iter([0.5, 2.0])
    monkeypatch.setattr(
        jit_compilations, "time_in_turn", lambda *given: Timing(1.0, 2.0, next(ratios), False)
    )
    model = kernelized(Scaled())
    assert torch.equal(model(X), 2 * X)
    doubles = X.double()
    assert torch.equal(model(doubles), 2 * doubles + 100)


def test_strict_calls_are_refused_one_by_one(compiler: Compiler) -> None:
    compiler.fails = "no kernel computes this"
    model = kernelized(Scaled(), use_fallback=False)
    for x in (X, X.double()):
        with pytest.raises(KernelImportError, match="no kernel computes this"):
            model(x)


def test_training_is_another_form(compiler: Compiler) -> None:
    with_facts_in_keys(compiler)

    def inside(request: CompileRequest) -> None:
        if not request.module.training:
            raise ValueError("not in eval mode")

    compiler.inside = inside
    model = kernelized(Scaled()).eval()
    for _ in range(3):
        assert torch.equal(model(X), 2 * X)
    assert torch.equal(model.train()(X), 2 * X + 100)
    assert torch.equal(model.eval()(X), 2 * X)


def test_weights_that_change_are_the_module_s(compiler: Compiler) -> None:
    compiler.fails = "no kernel computes this"
    layer = Scaled()
    model = kernelized(layer)
    for _ in range(100):
        model(X)
    with torch.no_grad():
        layer.weight.mul_(10)
    assert torch.equal(model(X), 20 * X)
    layer.weight = nn.Parameter(torch.ones(4))
    assert torch.equal(model(X), X)


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_copies_begin_anew(compiler: Compiler, how: str) -> None:
    compiler.fails = "no kernel computes this"
    model = kernelized(Scaled())
    for _ in range(100):
        model(X)
    twin = pickle.loads(pickle.dumps(model)) if how == "pickle" else copy.deepcopy(model)
    compiler.fails = None
    twin[0].number = 5
    assert torch.equal(twin(X), 2 * X + 100) and torch.equal(model(X), 2 * X)
    assert torch.equal(restore(model)(X), 2 * X)


def test_kernelized_again_it_is_tried_again(compiler: Compiler) -> None:
    compiler.fails = "no kernel computes this"
    model = kernelized(Scaled())
    for _ in range(100):
        model(X)
    compiler.fails = None
    assert torch.equal(kernelized(*model)(X), 2 * X + 100)


@pytest.mark.parametrize("fails", [None, "no kernel computes this"])
def test_a_budget_that_is_spent(
    compiler: Compiler, counting: Counting, monkeypatch: pytest.MonkeyPatch, fails: str | None
) -> None:
    """Signatures without end, as of a number that counts: what is compiled serves on; where nothing is, no
    call asks for anything."""
    monkeypatch.setenv("KERNELS_HUB_JIT_SIGNATURES", "3")
    signature = compiler.signature
    monkeypatch.setattr(
        compiler,
        "signature",
        lambda layer, module, args, kwargs: (signature(layer, module, args, kwargs), *args[1:]),
    )
    monkeypatch.setattr(compiler, "form", lambda layer, args, kwargs: args[1:])
    compiler.fails = fails
    added = 0 if fails else 100
    model = kernelized(Scaled())
    layer = model[0]
    for step in range(3):
        layer(X, step)
    for step in range(3, 120):
        assert torch.equal(layer(X, step), 2 * X + step)
    for step in range(3):
        assert torch.equal(layer(X, step), 2 * X + step + added)
    assert "over budget: 3 call signatures" in str(report(model).rows[1].details)
    before = counting.signatures
    layer(X, 1000)
    assert counting.signatures - before == (0 if fails else 1)


def test_threads(compiler: Compiler) -> None:
    without_bias(compiler)
    model = kernelized(Scaled())
    model(X), model[0](X, bias=1)
    wrong: list[int] = []

    def call(number: int) -> None:
        for _ in range(300):
            plain, biased = model(X), model[0](X, bias=number)
            if not torch.equal(plain, 2 * X) or not torch.equal(biased, 2 * X + 100 + number):
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong


def test_a_compiler_without_forms(
    compiler: Compiler, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of an older release: its refused calls ask for their signatures."""
    monkeypatch.setattr(compiler, "form", None)
    without_bias(compiler)
    model = kernelized(Scaled())
    assert counting.of(model, X, calls=5)[0] == 5
    assert torch.equal(model(X), 2 * X) and torch.equal(model[0](X, bias=1), 2 * X + 101)


def test_a_form_waits_for_requests_of_its_own() -> None:
    """A call of it that is being compiled would not be adopted by calls that ask for nothing."""
    calls = ModuleCalls()
    refused = jit_compilations.Compiled(None)
    layer = nn.Linear(2, 2)
    request = jit_compilations.Request(
        weakref.ref(layer), "signature", (), {}, False, True, lambda: False, list, lambda: False, form="form"
    )
    calls.requests["signature"] = request
    calls.note("form", refused)
    assert not calls.refused
    calls.requests.clear()
    calls.note("form", refused)
    assert calls.refused == {"form"}


def test_the_report_says_why_after_many_calls(compiler: Compiler) -> None:
    compiler.fails = "no kernel computes this"
    model = kernelized(Scaled())
    for _ in range(100):
        model(X)
    (row,) = report(model).rows[1:]
    assert (row.swapped, row.reason) == (False, "it cannot be compiled: no kernel computes this")
