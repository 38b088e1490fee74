"""Layers compiled where they are first called, by the real compiler: numbers, what is compiled again and what is not."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from kernels_hub import (
    CompiledLayer,
    Mode,
    kernelize,
    replace_kernel_forward_from_hub,
    report,
    use_kernel_mapping,
)
from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.jit import layer_compiler
from kernels_hub.compiler.jit import store as layer_store
from kernels_hub.compiler.jit.key import call_keys
from kernels_hub.compiler.runtime.toolchain import find_compiler
from kernels_hub.kernelization import jit
from kernels_hub.kernelization.compiled_layer import CompileRequest, Refusal
from kernels_hub.kernelization.jit_compilations import program_of
from tests.compiler.export.emitted_layers import GatedMLP
from tests.runtime_objects import share_runtime_objects
from tests.warm_process import StartedScript, run_script

ROOT = Path(__file__).resolve().parents[2]
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")


class Scaled(nn.Module):
    """As small as it gets."""

    def __init__(self, size: int = 8, scale: float = 2.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.weight) * self.scale


class Windowed(nn.Module):
    """Attention's windows, whose number no dims express."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, height, width, channels = x.shape
        windows = (
            x.view(batch, height // 2, 2, width // 2, 2, channels).transpose(2, 3).reshape(-1, 4, channels)
        )
        return self.pool(windows.softmax(1)).view(batch, -1, 4, 3)


class Sorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals(x * self.weight)


def compiled(*layers: nn.Module, **options: Any) -> nn.Sequential:
    model = nn.Sequential(*layers).eval()
    for cls in {type(one) for one in layers}:
        replace_kernel_forward_from_hub(cls, cls.__name__)
    mapping = {
        name: {"cpu": CompiledLayer(name, **options)} for name in {type(one).__name__ for one in layers}
    }
    with use_kernel_mapping(mapping, inherit_mapping=False):
        return kernelize(model, mode=Mode.INFERENCE)


def check(model: nn.Sequential, x: torch.Tensor) -> None:
    expected = x
    with torch.inference_mode():
        for layer in model:
            expected = type(layer).forward(layer, expected)
        torch.testing.assert_close(model(x), expected)


@needs_compiler
def test_sizes_that_decide_are_fixed(store: Path) -> None:
    """Windows of odd numbers are an error of the module's own."""
    model = compiled(Windowed())
    for shape in ((2, 4, 6, 8), (3, 4, 2, 8), (2, 4, 6, 8)):
        check(model, torch.randn(shape))
        (row,) = report(model).rows[1:2]
        assert row.swapped, row.reason
    with pytest.raises(RuntimeError, match="invalid for input"):
        model(torch.randn(2, 5, 6, 8))


def test_lengths_of_a_cache_are_not_fixed(store: Path) -> None:
    """They are others at every call."""
    error = ImportFailure("what it computes depends on lengths", of_sizes=True)
    for kwargs, is_asked_again in (({}, True), ({"cache": DynamicCache()}, False)):
        request = CompileRequest(CompiledLayer("Scaled"), Scaled(), (torch.zeros(8),), kwargs)
        with (
            mock.patch.object(layer_compiler.CpuCompiler, "_repository", side_effect=error),
            pytest.raises(ImportFailure),
        ):
            layer_compiler.COMPILER.repository(request, f"call-{is_asked_again}")
        refusal = layer_compiler.COMPILER.find(f"call-{is_asked_again}")
        assert isinstance(refusal, Refusal) and refusal.of_sizes is is_asked_again


def programs(layer: nn.Module) -> list[Any]:
    """What a layer's calls run on."""
    forward = layer.forward.func
    return [program_of(one) for one in forward.forwards(layer)]


def fallbacks(layer: nn.Module) -> dict[str, str]:
    return {kind: reason for one in programs(layer) for kind, reason in one.fallbacks.items()}


@needs_compiler
def test_numbers_of_any_size_and_one_compilation(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kernels_hub")
    random = torch.get_rng_state()
    model = compiled(GatedMLP(), GatedMLP())
    before = torch.get_rng_state()
    assert not torch.equal(before, random), "weights were drawn"
    x = torch.ones(3, 9, 64).cumsum(0)
    check(model, x)
    assert torch.equal(torch.get_rng_state(), before), "no random numbers are drawn"
    for sizes in ((2, 2), (5, 33), (7, 2)):
        check(model, torch.randn(*sizes, 64))
    assert fallbacks(model[0]) == {}
    assert sum("compiled in" in one.message for one in caplog.records) == 1
    assert len(report(model).swapped) == 2
    folders = [
        one.name for one in store.iterdir() if one.name[0] != "." and one.name not in {"calls", "refused"}
    ]
    assert [row.revision for row in report(model).rows[1:]][:1] * 2 == [folders[0][:12]] * 2
    assert (store / folders[0] / "README.md").is_file()
    with torch.no_grad():
        model[0].down_proj.weight.mul_(2)
    check(model, x)


@needs_compiler
def test_named_dims() -> None:
    model = compiled(Scaled(), dynamic={"x": {0: "batch"}}, ranges={"batch": (1, 6)})
    for batch in (1, 6, 4):
        check(model, torch.randn(batch, 8))
    assert fallbacks(model[0]) == {}, "the first call's size of 1 does not make it fixed"
    check(model, torch.randn(7, 8))
    (reason,) = fallbacks(model[0]).values()
    assert "batch" in reason
    one = compiled(Scaled())
    for count, batch in enumerate((1, 2, 5)):
        check(one, torch.randn(batch, 8))
        assert fallbacks(one[0]) == {}
        assert len(programs(one[0])) == min(count + 1, 2), (
            "what is 1 in a call's form is fixed, and has its own"
        )
    fixed = compiled(Scaled(), dynamic=False)
    check(fixed, torch.randn(3, 8))
    assert fallbacks(fixed[0]) == {}
    check(fixed, torch.randn(2, 8))
    assert fallbacks(fixed[0]) == {} and len(programs(fixed[0])) == 2, "other sizes are another signature"
    unknown = compiled(Scaled(), dynamic={"y": {0: "batch"}})
    check(unknown, torch.randn(3, 8))
    assert "dynamic shapes are given for 'y'" in report(unknown).rows[1].reason


@needs_compiler
def test_dtypes_and_other_weights() -> None:
    model = compiled(Scaled(), Scaled(8, 3.0))
    check(model, torch.randn(4, 8))
    assert len({row.revision for row in report(model).rows[1:]}) == 2, "the factor is part of the graph"
    half = compiled(Scaled()).to(torch.bfloat16)
    check(half, torch.randn(4, 8, dtype=torch.bfloat16))
    assert len(report(half).swapped) == 1 and fallbacks(half[0]) == {}


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.drop = nn.Parameter(torch.randn(8)), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(torch.tanh(x * self.weight))


@needs_compiler
def test_a_module_that_was_called_in_training_first() -> None:
    model, x = compiled(Dropped()), torch.ones(64, 8)
    model.train()
    for _ in range(2):
        assert (model(x) == 0).any(), "dropped"
    (row,) = report(model).rows[1:2]
    assert not row.swapped and "no longer in training" in str(row.reason)
    check(model.eval(), x)
    (row,) = report(model).rows[1:2]
    assert row.swapped and row.reason is None
    assert (model.train()(x) == 0).any(), "dropped again"
    check(model.eval(), x)


def test_what_no_kernel_computes(caplog: pytest.LogCaptureFixture) -> None:
    model = compiled(Sorted())
    check(model, torch.randn(4, 4))
    (row,) = report(model).kept
    assert (
        "linalg_eig" in row.reason
        and "\n" not in row.reason
        and row.reason.startswith("it cannot be compiled: ")
    )
    assert [one.levelname for one in caplog.records if one.name.startswith("kernels_hub.")].count(
        "WARNING"
    ) == 1


def test_without_a_cxx_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_HUB_CXX", "none")
    monkeypatch.setenv("KERNELS_HUB_PREBUILT", "ignore")
    model = compiled(Scaled(8, 5.0))
    check(model, torch.randn(4, 8))
    (row,) = report(model).kept
    assert "KERNELS_HUB_CXX" in row.reason


@needs_compiler
def test_a_damaged_layer_is_made_again(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = compiled(Scaled())
    check(first, torch.randn(4, 8))
    (table,) = store.glob("*/build/torch-cpu/table.py")
    whole = table.read_text()
    table.write_text(whole.replace("Table(", "Table (", 1))
    jit._forward_of.cache_clear()
    again = compiled(Scaled())
    check(again, torch.randn(4, 8))
    assert any("is damaged and is made again" in one.message for one in caplog.records)
    assert table.read_text() == whole and len(report(again).swapped) == 1


@needs_compiler
def test_a_store_that_cannot_be_written_to(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    store.write_text("a file")
    layer_store._say_once.cache_clear()
    model = compiled(Scaled())
    check(model, torch.randn(4, 8))
    assert len(report(model).swapped) == 1
    assert sum("every process compiles them again" in one.message for one in caplog.records) == 1


PROCESS = """
import sys, torch
from kernels_hub import CompiledLayer, Mode, kernelize, report, use_kernel_mapping, replace_kernel_forward_from_hub
from tests.compiler.export.emitted_layers import GatedMLP
replace_kernel_forward_from_hub(GatedMLP, "GatedMLP")
model, x = torch.nn.Sequential(GatedMLP(), GatedMLP()).eval(), torch.randn(3, 9, 64)
with torch.no_grad():
    expected = model(x)
    with use_kernel_mapping({"GatedMLP": {"cpu": CompiledLayer("GatedMLP")}}, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE)
    torch.testing.assert_close(model(x), expected)
assert len(report(model).swapped) == 2, report(model)
print("compiled" if "kernels_hub.compiler.export.emit_layer" in sys.modules else "found", "torch.export" in sys.modules)
"""


@needs_compiler
def test_other_processes_find_it(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("KERNELS_HUB_CACHE", None)
    share_runtime_objects(tmp_path / "cache" / "kernels_hub")
    both = [StartedScript(PROCESS, env=environment) for _ in range(2)]  # at once
    answers = [one.communicate() for one in both]
    assert [one.returncode for one in answers] == [0, 0], answers
    layers = tmp_path / "cache" / "kernels_hub" / "layers"
    assert (
        len([one for one in layers.iterdir() if one.name[0] != "." and one.name not in {"calls", "refused"}])
        == 1
    )
    third = run_script(PROCESS, env=environment)
    assert third.returncode == 0, third.stderr
    assert third.stdout.split()[0] == "found"


# -- keys -------------------------------------------------------------------------------------------

FACTOR = 2.0


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


def other_helper(x: torch.Tensor) -> torch.Tensor:
    return x + FACTOR


class Config:
    def __init__(self, eps: float) -> None:
        self.eps = eps


class Called(nn.Module):
    """Depends on all that a key must see."""

    width = 3

    def __init__(self, eps: float = 1e-5, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner or nn.Linear(8, 8)
        self.config = Config(eps)
        self.table = torch.arange(3)
        self.mode = "fast"

    def shifted(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.width

    def forward(self, x: torch.Tensor, flag: bool = False) -> torch.Tensor:
        return helper(self.shifted(self.inner(x))) + self.config.eps


def key(module: nn.Module, *args: Any, dims: Any = True, **kwargs: Any) -> str:
    return call_keys(module, args or (torch.randn(2, 8),), kwargs, dims)[0]


def _set(name: str, value: Any) -> Callable[[nn.Module], None]:
    return lambda module: setattr(module, name, value)


CHANGES: dict[str, Callable[[Called], Any]] = {
    "an attribute": _set("mode", "slow"),
    "a tensor's values that is no buffer": _set("table", torch.arange(3) + 1),
    "an attribute of a config": lambda module: setattr(module.config, "eps", 1e-6),
    "a dtype": lambda module: module.double(),
    "a class inside": _set("inner", nn.Identity()),
    "a size": _set("inner", nn.Linear(8, 9)),
    "a bias": _set("inner", nn.Linear(8, 8, bias=False)),
    "tied weights": lambda module: module.register_parameter("again", module.inner.weight),
}
SAME: dict[str, Callable[[Called], Any]] = {
    "values of weights": lambda module: nn.init.zeros_(module.inner.weight),
    "a mode": lambda module: module.eval(),
    "a gradient": lambda module: module.requires_grad_(False),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_key_sees(what: str) -> None:
    module = Called()
    before = key(module)
    CHANGES[what](module)
    assert key(module) != before


@pytest.mark.parametrize("what", SAME)
def test_a_key_does_not_see(what: str) -> None:
    module = Called()
    before = key(module)
    SAME[what](module)
    assert key(module) == before == key(Called())


def test_what_is_refused_is_refused_for_all_sizes() -> None:
    """But those of 1, as the signature has it; of images, those that a program has fixed."""
    module, images = Called(), nn.Sequential(nn.Conv2d(3, 4, 3))

    def kind(module: nn.Module, *sizes: int) -> str:
        return call_keys(module, (torch.randn(*sizes),), {}, True)[1]

    assert kind(module, 2, 8) == kind(module, 5, 8) != kind(module, 1, 8)
    assert kind(images, 2, 3, 8, 8) == kind(images, 4, 3, 8, 8) != kind(images, 2, 3, 9, 8)
    assert len({call_keys(module, (torch.randn(n, 8),), {}, True)[0] for n in (2, 3)}) == 2


def test_a_key_sees_code_that_a_forward_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(Called())
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "helper", other_helper)
        assert key(Called()) != before
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "FACTOR", 3.0)
        assert key(Called()) != before, "a constant of a function that it calls"
    with monkeypatch.context() as patch:
        patch.setattr(Called, "shifted", lambda self, x: x - 1)
        assert key(Called()) != before
    with monkeypatch.context() as patch:
        patch.setattr(Called, "width", 4)
        assert key(Called()) != before
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "width", 5, raising=False)
        assert key(Called()) == before, "a global with the name of an attribute"
    assert key(Called()) == before


class Lazy(dict[str, Any]):
    """As transformers' tables of classes: asked for what it holds, it imports all of that."""

    def items(self) -> Any:
        raise AssertionError("nobody is to ask")


TABLE = Lazy()
WORDS = {"one", "two", "three", "four"}


class Indirect(nn.Module):
    """Reads a set and a lazy table, and calls a method that only a string names."""

    def fast(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def unused(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = getattr(self, "fast")(x)  # noqa: B009
        return found if "one" in WORDS and not TABLE and len(WORDS) not in {7, 8} else x


def test_a_key_sees_what_a_string_names(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(Indirect())
    with monkeypatch.context() as patch:
        patch.setattr(Indirect, "fast", lambda self, x: x * 4)
        assert key(Indirect()) != before
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "WORDS", {"one"})
        assert key(Indirect()) != before
    with monkeypatch.context() as patch:
        patch.setattr(Indirect, "unused", lambda self, x: x * 4)
        assert key(Indirect()) == before


KEYS = """
import sys, torch, transformers
from kernels_hub.compiler.jit.key import call_keys
from tests.compiler.jit.test_layer_compiler import Indirect

sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
ids = torch.zeros(2, 5, dtype=torch.int64)
for name in ("Bert", "Mixtral"):
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**sizes, num_key_value_heads=2))
    before = len(sys.modules)
    print(*call_keys(model, (), {"input_ids": ids}, True))
    assert len(sys.modules) - before < 100, "models that have no part in it were imported"
print(*call_keys(Indirect(), (torch.zeros(3),), {}, True))
"""


@pytest.mark.exhaustive
def test_other_processes_make_the_same_keys() -> None:
    """With other hashes, and so with other orders of sets."""
    pytest.importorskip("transformers", reason="needs the package transformers")
    found = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", KEYS],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.split())
    assert found[0] == found[1] and len(set(found[0])) == 6


def test_a_key_sees_arguments() -> None:
    module = Called()
    x = torch.randn(2, 8)
    named = {"x": {0: "batch"}}
    keys = [
        key(module, x),
        key(module, torch.randn(3, 8)),
        key(module, x.double()),
        key(module, x, flag=True),
        key(module, x, dims=False),
        key(module, x, dims=named),
        key(module, x, dims={"x": {1: "batch"}}),
    ]
    assert len(set(keys)) == len(keys)
    assert key(module, torch.randn(2, 8)) == keys[0]
    assert key(module, torch.randn(5, 8), dims=named) == keys[5]
