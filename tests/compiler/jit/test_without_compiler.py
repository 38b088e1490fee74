"""The mapping `compiled` in a process without a C++ compiler: layers are bytecode, and the report says so."""

from __future__ import annotations

import copy
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from kernels_hub import refresh, report
from kernels_hub.compiler.jit.layer_compiler import COMPILER
from kernels_hub.kernelization import jit
from kernels_hub.kernelization.compiled_layer import CompiledLayer, Refusal
from kernels_hub.kernelization.jit_compilations import program_of
from tests.compiler.jit.test_layer_compiler import Scaled, check, compiled
from tests.wheel_interpreter import wheel_interpreter

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_interpreter(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch, wheel: Path) -> None:
    monkeypatch.setenv("KERNELS_HUB_CXX", "none")
    monkeypatch.setenv("KERNELS_HUB_PREBUILT", str(wheel))


class Scattered(nn.Module):
    """What bytecode has no form for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).scatter_add(-1, (x > 0).long(), x.tanh())


def test_the_report_says_what_runs() -> None:
    model = compiled(Scaled())
    for rows in (4, 7, 1):
        check(model, torch.randn(rows, 8))
    (row,) = report(model).swapped
    assert row.kernel is not None and row.kernel.endswith("/bytecode")


def test_weights_are_followed() -> None:
    model, x = compiled(Scaled()), torch.randn(4, 8)
    check(model, x)
    with torch.no_grad():
        model[0].weight.add_(1)
    check(model, x)
    model.load_state_dict({"0.weight": torch.randn(8)})
    check(model, x)
    model[0].weight.data = torch.randn(8)
    check(model, x)
    model[0].weight.data.numpy()[:] = 3.0
    refresh(model)
    check(model, x)
    model.double()
    check(model, x.double())
    model.float()
    check(model, x)


def test_copies_run_it_too() -> None:
    model, x = compiled(Scaled()), torch.randn(4, 8)
    check(model, x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            twin[0].weight.add_(1)
        check(twin, x)
        check(model, x)


def test_what_has_no_bytecode_says_so() -> None:
    model = compiled(Scattered())
    check(model, torch.randn(4, 8))
    (row,) = report(model).kept
    assert (
        row.reason is not None
        and "Scattered needs a C++ compiler, which is not here: bytecode has no" in row.reason
    )


def test_nothing_of_it_serves_beside_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was checked as bytecode alone is not built, and what bytecode was refused for is compiled."""
    modules = {"Scaled": Scaled(8, 3.25), "Scattered": Scattered()}
    x = torch.randn(4, 8)
    for module in modules.values():
        check(compiled(copy.deepcopy(module)), x)
    keys = {name: COMPILER.key(CompiledLayer(name), module, (x,), {}) for name, module in modules.items()}
    assert isinstance(COMPILER.find(keys["Scaled"]), Path) and isinstance(
        COMPILER.find(keys["Scattered"]), Refusal
    )
    monkeypatch.delenv("KERNELS_HUB_CXX")
    others = {name: COMPILER.key(CompiledLayer(name), module, (x,), {}) for name, module in modules.items()}
    assert [COMPILER.find(key) for key in others.values()] == [None, None]
    jit._forward_of.cache_clear()
    model = compiled(modules["Scaled"])
    check(model, x)
    (row,) = report(model).swapped
    assert row.variant == "torch-cpu"
    program = program_of(next(iter(jit_forwards(model))))
    assert program.engine == "cpp" and not list(Path(program.folder).glob("*.bytecode")), (
        "only what is run is kept"
    )


def jit_forwards(model: nn.Module) -> list[object]:
    return list(model[0].forward.func.forwards(model[0]))
