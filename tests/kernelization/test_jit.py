"""Layers compiled at their first call: when, how often, what is changed, and what happens where it cannot be done.

The compiler here writes a repository whose layer does as it is told; the real one is tested in tests/compiler.
"""

from __future__ import annotations

import copy
import logging
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub import (
    CompiledLayer,
    KernelImportError,
    LayerContractError,
    MappingError,
    Mode,
    NoKernelError,
    VerificationError,
    explain,
    kernelize,
    report,
    restore,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
)
from kernels_hub.kernelization.bind import KernelForward
from kernels_hub.kernelization.compiled_layer import CompileRequest
from tests.kernelization.jit_compiler import Compiler, Scaled, X, compiler, kernelized

__all__ = ["compiler"]


def test_compiled_at_the_first_call_and_bound_in_its_place(compiler: Compiler) -> None:
    model = kernelized(Scaled(), Scaled())
    (row,) = {(row.swapped, row.repository, row.revision, row.variant) for row in report(model).rows[1:]}
    assert row == (True, "compiled:Scaled", None, "compiled at its first call")
    assert compiler.asked == []
    assert torch.equal(model(X), 4 * X + 300), "2 (2x + 100) + 100"
    assert len(compiler.asked) == 1, "once for two modules of one key"
    assert torch.equal(model[0](X, bias=5), 2 * X + 105)
    assert len(compiler.asked) == 2, "another signature"
    assert all(type(layer.forward) is KernelForward for layer in model)
    (row,) = {(row.swapped, row.revision, row.variant, row.reason) for row in report(model).rows[1:]}
    assert row == (True, "layer-1", "torch-cpu", None)


def test_explain_says_what_would_be_done(compiler: Compiler) -> None:
    with use_kernel_mapping({"Scaled": {"cpu": CompiledLayer("Scaled")}}, inherit_mapping=False):
        model = nn.Sequential(Scaled())
        text = str(explain(model, mode=Mode.INFERENCE))
        assert "compiled:Scaled/would be compiled at its first call" in text
        other = explain(model, mode=Mode.INFERENCE, device="cuda").rows[1]
    assert not other.swapped and other.reason.startswith("'Scaled' has no kernel for cuda")
    with use_kernel_mapping({"Scaled": {"cuda": CompiledLayer("Scaled")}}, inherit_mapping=False):
        missing = explain(model, mode=Mode.INFERENCE, device="cuda").rows[1]
    assert missing.reason == "no layer compiler is installed for cuda; there is one for cpu"
    assert compiler.asked == [] and "forward" not in vars(model[0])


def test_one_key_one_compilation_another_key_another(compiler: Compiler) -> None:
    model = kernelized(Scaled(1), Scaled(2), Scaled(1))
    model(X)
    assert len(compiler.asked) == 2
    assert [row.revision for row in report(model).rows[1:]] == ["layer-1", "layer-2", "layer-1"]


def test_what_cannot_be_compiled_keeps_its_forward_and_says_why(
    compiler: Compiler, caplog: pytest.LogCaptureFixture
) -> None:
    compiler.fails = "no kernel computes this"
    model = kernelized(*(Scaled(number) for number in range(5)))
    assert torch.equal(model(X), 32 * X)
    assert len(compiler.asked) == 2, "the others are believed to fail as well"
    (said,) = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert said.endswith("Scaled keeps its original forward: it cannot be compiled: no kernel computes this")
    rows = report(model).rows[1:]
    assert {(row.swapped, row.reason) for row in rows} == {
        (False, "it cannot be compiled: no kernel computes this")
    }
    compiler.fails = None
    with use_kernel_mapping({"Scaled": {"cpu": CompiledLayer("Scaled")}}, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE)
    model(X)
    assert len(report(model).swapped) == 5, "tried again"


def test_what_sizes_decide_is_compiled_for_those_of_each_call(
    compiler: Compiler, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_HUB_JIT_SIGNATURES", "3")
    compiler.needs_sizes = True
    model = kernelized(Scaled(1), Scaled(1))
    rows = torch.ones(2, 4)
    for x in (X, rows, X, rows):
        assert torch.equal(model(x), (2 * x + 100) * 2 + 100)
    assert len(compiler.asked) == 3, "for any sizes, for four elements, for two rows of them"
    assert [row.swapped for row in report(model).rows[1:]] == [True, True]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    for count in (3, 5):
        model(torch.ones(count, 4))
    assert torch.equal(model(torch.ones(5, 4)), torch.full((5, 4), 4.0)), "no more than three signatures"
    assert len(compiler.asked) == 4


def test_what_cannot_be_compiled_for_fixed_sizes_either_says_why(compiler: Compiler) -> None:
    compiler.needs_sizes, compiler.fails = True, "no kernel computes this"
    model = kernelized(*(Scaled(number) for number in range(4)))
    assert torch.equal(model(X), 16 * X)
    assert len(compiler.asked) == 4, "two of them, both ways; the others are believed"
    assert {row.reason for row in report(model).rows[1:]} == {
        "it cannot be compiled: no kernel computes this"
    }


def test_named_dims_are_not_fixed(compiler: Compiler) -> None:
    """Who says which sizes change is told that they cannot."""
    compiler.needs_sizes = True
    layer = CompiledLayer("Scaled", dynamic={"x": ["rows"]})
    with use_kernel_mapping({"Scaled": {"cpu": layer}}, inherit_mapping=False):
        model = kernelize(nn.Sequential(Scaled()), mode=Mode.INFERENCE, device="cpu")
    compiler.fails = "rows are not free"
    assert torch.equal(model(X), 2 * X)
    assert report(model).rows[1].reason == "it cannot be compiled: rows are not free"


def test_strict(compiler: Compiler) -> None:
    compiler.fails = "no kernel computes this"
    model = kernelized(Scaled(), use_fallback=False)
    with pytest.raises(
        KernelImportError, match="Scaled: compiled:Scaled cannot be compiled: .*no kernel computes"
    ):
        model(X)
    compiler.fails = None
    assert torch.equal(kernelized(model[0], use_fallback=False)(X), 2 * X + 100)
    with (
        use_kernel_mapping({"Scaled": {"cuda": CompiledLayer("Scaled")}}, inherit_mapping=False),
        pytest.raises(NoKernelError, match="no layer compiler is installed for cuda"),
    ):
        kernelize(model, mode=Mode.INFERENCE, device="cuda", use_fallback=False)


def test_verify_compiles_and_keeps_the_original_where_it_disagrees(compiler: Compiler) -> None:
    model = kernelized(Scaled(), verify=X)
    assert torch.equal(model(X), 2 * X)
    assert report(model).rows[1].reason.startswith("verify: relative error")
    with pytest.raises(VerificationError):
        kernelized(Scaled(), verify=X, use_fallback=False)
    compiler.added = "0"
    model = kernelized(Scaled(7), verify=X)
    row = report(model).rows[1]
    assert row.swapped and row.revision is not None, "compiled before kernelize returned"
    asked = len(compiler.asked)
    assert compiler.keys[-1] == compiler.key(CompiledLayer("Scaled"), model[0], (X,), {})
    model(X)
    assert len(compiler.asked) == asked
    compiler.fails = "no"
    model = kernelized(Scaled(8), verify=X)
    assert report(model).rows[1].reason == "it cannot be compiled: no"


@use_kernel_forward_from_hub("Pair")
class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Scaled()
        self.number = 3

    @property
    def weight(self) -> torch.Tensor:
        return self.inner.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@pytest.mark.parametrize("verify", [None, X])
def test_the_compiler_gets_a_copy_of_its_own(compiler: Compiler, verify: Any) -> None:
    compiler.added = "0"
    pair = Pair()

    def inside(request: CompileRequest) -> Any:
        if not isinstance(request.module, Pair):
            return None
        request.args[0].fill_(0)
        request.module.train()
        request.module.inner.number = 9
        compiler.fails = "enough"
        return {
            "forwards": [vars(one).get("forward") for one in request.module.modules()],
            "weight": request.module.inner.weight is pair.inner.weight,
            "modes": (torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
        }

    compiler.inside = inside
    mapping = {name: {"cpu": CompiledLayer(name)} for name in ("Pair", "Scaled")}
    pair.eval()
    with torch.inference_mode(), torch.autocast("cpu"):
        x = X.clone()
        with use_kernel_mapping(mapping, inherit_mapping=False):
            kernelize(pair, mode=Mode.INFERENCE, verify=verify)
        result = pair(x)
    assert torch.equal(result, 2 * X) and torch.equal(x, X)
    assert not pair.training and pair.inner.number == 0
    alone = {"forwards": [None, None], "weight": True, "modes": [False, False]}
    assert alone in compiler.asked, "no kernels inside"
    assert {row.path: row.swapped for row in report(pair).rows} == {"": False, "inner": True}


def test_restore_and_again(compiler: Compiler) -> None:
    model = kernelized(Scaled())
    model(X)
    assert torch.equal(restore(model)(X), 2 * X)
    again = kernelized(*model)
    assert torch.equal(again(X), 2 * X + 100)
    assert len(compiler.asked) == 1, "known by its key"


def test_two_models_are_independent(compiler: Compiler) -> None:
    first, second = kernelized(Scaled()), kernelized(Scaled())
    first(X)
    assert report(second).rows[1].variant == "compiled at its first call"
    restore(first)
    assert torch.equal(second(X), 2 * X + 100)
    compiler.fails = "no"
    third = kernelized(Scaled(5))
    assert torch.equal(third(X), 2 * X)
    assert torch.equal(second(X), 2 * X + 100) and len(report(second).swapped) == 1


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_travels_as_a_reference(compiler: Compiler, called: bool, how: str) -> None:
    model = kernelized(Scaled())
    if called:
        model(X)
    twin = pickle.loads(pickle.dumps(model)) if how == "pickle" else copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight.mul_(10)
    assert torch.equal(twin(X), 20 * X + 100) and torch.equal(model(X), 2 * X + 100)
    assert torch.equal(restore(twin)(X), 20 * X)
    assert len(compiler.asked) == 1


def test_where_it_does_not_belong(compiler: Compiler) -> None:
    for mode in (Mode.TRAINING, Mode.INFERENCE | Mode.TORCH_COMPILE):
        (row,) = report(kernelized(Scaled(), mode=mode)).kept
        assert row.reason.startswith("compiled:Scaled ")
    model = kernelized(Scaled())
    traced = torch.func.vmap(model[0])(torch.stack([X, X]))
    assert torch.equal(traced, 2 * torch.stack([X, X])) and compiler.asked == [], (
        "not while it is transformed"
    )
    torch._dynamo.reset()
    traced = torch.compile(model, backend="eager", fullgraph=True)(X)
    assert torch.equal(traced, 2 * X) and compiler.asked == [], "not while it is traced"

    @use_kernel_forward_from_hub("Scaled")
    def function(x: torch.Tensor) -> torch.Tensor:
        return x

    holder = nn.Module()
    holder.function = function
    with pytest.raises(LayerContractError, match="modules are compiled, not functions"):
        kernelized(holder)


def test_the_reference_is_a_value() -> None:
    named = CompiledLayer("L", dynamic={"x": {0: "batch", 1: "length"}}, ranges={"length": (1, 9)})
    assert named == CompiledLayer("L", dynamic={"x": ["batch", "length"]}, ranges={"length": [1, 9]})
    assert named == CompiledLayer(
        "L", dynamic={"x": {"0": "batch", "1": "length"}}, ranges={"length": (1, 9)}
    )
    assert len({named, CompiledLayer("L"), CompiledLayer("L", dynamic=False)}) == 3
    assert pickle.loads(pickle.dumps(named)) == named and hash(copy.deepcopy(named)) == hash(named)
    assert named.dims() == {"x": {0: "batch", 1: "length"}}
    nested = CompiledLayer("L", dynamic={"pair": [{0: "batch"}, None], "more": {"y": {1: "length"}}})
    assert nested.dims() == {"pair": [{0: "batch"}, None], "more": {"y": {1: "length"}}}
    with pytest.raises(KernelImportError, match="is compiled from a module"):
        named.load()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("two words", {}, "a name that a class can have"),
        ("class", {}, "a name that a class can have"),
        ("L", {"dynamic": "batch"}, "dynamic is True, False or"),
        ("L", {"dynamic": {0: {0: "batch"}}}, "expected names of arguments, got 0"),
        ("L", {"dynamic": {"x": {0: "not a name"}}}, r"dynamic\['x'\]: expected the name of a dim"),
        ("L", {"dynamic": {"x": 3}}, "expected {axis: name} or a list of names, got 3"),
        ("L", {"dynamic": {"x": {0: "b"}}, "ranges": {"c": (1, 2)}}, "'c'; dynamic names b"),
        ("L", {"dynamic": {"x": {0: "b"}}, "ranges": {"b": (2, 1)}}, "the range of 'b' is"),
    ],
)
def test_what_a_reference_refuses(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(MappingError, match=message):
        CompiledLayer(name, **options)
