"""What a kernelized model goes through afterwards: pickle, deepcopy, hooks, compile, autograd, state_dict."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub import (
    BundledLayerRepository,
    LocalLayerRepository,
    Mode,
    kernelize,
    report,
    restore,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
)
from tests.kernelization.conftest import DOUBLE
from tests.kernelization.test_apply import SHIFT, Holding, Shifting, shift
from tests.warm_process import run_script

X = torch.arange(4.0)
Make = Callable[..., Path]


@use_kernel_forward_from_hub("Double")
class Scaled(nn.Module):
    """At module level, so that it pickles."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


SCALED = "class Double(nn.Module):\n    can_torch_compile = True\n    def forward(self, x):\n        return 2 * x * self.weight\n"


@pytest.fixture
def mapping(make_repository: Make) -> dict[str, dict[str, LocalLayerRepository]]:
    return {
        "Double": {"cpu": LocalLayerRepository(make_repository("scaled", SCALED), layer_name="Double")},
        "shift": {"cpu": LocalLayerRepository(make_repository("shift", SHIFT), layer_name="shift")},
    }


def kernelized(
    mapping: dict[str, dict[str, LocalLayerRepository]], mode: Mode = Mode.INFERENCE
) -> nn.Sequential:
    model = nn.Sequential(Scaled(), Shifting(), Holding())
    with use_kernel_mapping(mapping):
        kernelize(model, mode=mode)
    return model


EXPECTED = 2 * X + 300


def test_deepcopy_is_kernelized_and_independent(mapping: dict[str, dict[str, LocalLayerRepository]]) -> None:
    model = kernelized(mapping)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight.mul_(10)
    assert torch.equal(model(X), EXPECTED)
    assert torch.equal(twin(X), 20 * X + 300)
    restore(model)
    assert torch.equal(twin(X), 20 * X + 300)
    assert len(report(twin).swapped) == 3
    assert torch.equal(restore(twin)(X), 10 * X + 3)


@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_pickle_carries_a_reference_not_code(
    mapping: dict[str, dict[str, LocalLayerRepository]], how: str
) -> None:
    model = kernelized(mapping)
    if how == "pickle":
        data = pickle.dumps(model)
        twin = pickle.loads(data)
    else:
        buffer = io.BytesIO()
        torch.save(model, buffer)
        data = buffer.getvalue()
        buffer.seek(0)
        twin = torch.load(buffer, weights_only=False)
    assert torch.equal(twin(X), EXPECTED)
    assert b"x * self.weight" not in data
    assert {row.path for row in report(twin).swapped} == {"0", "1:shift", "2:fn"}
    assert torch.equal(restore(twin)(X), X + 3)
    assert twin[2].fn is shift


def test_a_fresh_process_loads_the_kernel_again(
    mapping: dict[str, dict[str, LocalLayerRepository]], tmp_path: Path
) -> None:
    file = tmp_path / "model.pt"
    torch.save(kernelized(mapping), file)
    code = (
        f"import torch; m = torch.load({str(file)!r}, weights_only=False); "
        "print(m(torch.arange(4.0)).tolist()); from kernels_hub import report; print(len(report(m).swapped))"
    )
    root = Path(__file__).parents[2]
    done = run_script(code, cwd=root)
    assert done.stdout.split("\n")[:2] == [str(EXPECTED.tolist()), "3"]


def test_a_kernel_that_is_gone_leaves_the_original_and_says_so(make_repository: Make, tmp_path: Path) -> None:
    path = make_repository("scaled", SCALED)
    model = nn.Sequential(Scaled())
    with use_kernel_mapping({"Double": {"cpu": LocalLayerRepository(path, layer_name="Double")}}):
        kernelize(model, mode=Mode.INFERENCE)
    file = tmp_path / "model.pt"
    torch.save(model, file)
    shutil.rmtree(path)
    code = (
        f"import torch; m = torch.load({str(file)!r}, weights_only=False); print(m(torch.arange(4.0)).tolist()); "
        "from kernels_hub import report; row = [r for r in report(m) if r.layer_name][0]; print(row.swapped, row.reason)"
    )
    root = Path(__file__).parents[2]
    lines = run_script(code, cwd=root).stdout.split("\n")
    assert lines[0] == str(X.tolist())
    assert lines[1].startswith("False the kernel could not be loaded again")


def test_state_dict_and_hooks_keep_working(mapping: dict[str, dict[str, LocalLayerRepository]]) -> None:
    model = kernelized(mapping)
    assert list(model.state_dict()) == ["0.weight"]
    seen: list[str] = []
    model[0].register_forward_pre_hook(lambda m, args: seen.append("before"))
    model[0].register_forward_hook(lambda m, args, out: seen.append("after"))
    model(X)
    assert seen == ["before", "after"]
    model.load_state_dict({"0.weight": torch.full((4,), 3.0)})
    assert torch.equal(model(X), 6 * X + 300)


def test_a_kernelized_forward_answers_like_a_bound_method(
    mapping: dict[str, dict[str, LocalLayerRepository]],
) -> None:
    model = kernelized(mapping)
    forward: Any = model[0].forward
    original = Scaled.forward.__get__(Scaled())
    assert forward.__self__ is model[0]
    assert torch.equal(forward.__func__(model[0], X), 2 * X)
    assert forward.__name__ == original.__name__
    assert list(inspect.signature(forward).parameters) == list(inspect.signature(original).parameters)
    assert not hasattr(forward, "__wrapped__")
    assert not hasattr(original, "__wrapped__")
    replaced = forward.__func__.__get__(model[0])  # as accelerate and PEFT rebuild a method
    assert torch.equal(replaced(X), 2 * X)


@pytest.mark.filterwarnings("ignore:`torch.jit")  # a FutureWarning from PyTorch 2.14 on
def test_scripting_says_what_to_do(mapping: dict[str, dict[str, LocalLayerRepository]]) -> None:
    model = kernelized(mapping)
    with pytest.raises(AttributeError, match=r"torch\.jit\.script.*restore\(model\)"):
        torch.jit.script(model)
    assert callable(torch.jit.trace(model, X))


@use_kernel_forward_from_hub("Linear")
class _Linear(nn.Linear):
    pass


@pytest.mark.filterwarnings("ignore:`torch.jit")  # FutureWarnings from PyTorch 2.14 on
def test_saving_a_trace_of_freed_weights_says_what_to_do() -> None:
    """Its code is C++ that reads a weight's memory: address 0 of one whose values are packed."""
    model = nn.Sequential(_Linear(1024, 1024)).eval()
    mapped = {"Linear": {"cpu": BundledLayerRepository("linear", layer_name="Linear")}}
    with use_kernel_mapping(mapped):
        kernelize(model, mode=Mode.INFERENCE, free_weights=True)
    x = torch.randn(256, 1024)
    with torch.no_grad():
        traced, expected = torch.jit.trace(model, x), model(x)
        torch.testing.assert_close(traced(x), expected, rtol=1e-4, atol=1e-5)
        with pytest.raises(RuntimeError, match=r"free_weights=True.*restore\(model\)"):
            torch.jit.save(traced, io.BytesIO())
        file = io.BytesIO()
        torch.jit.save(torch.jit.trace(restore(model), x), file)
        file.seek(0)
        torch.testing.assert_close(torch.jit.load(file)(x), expected)


def test_offloaded_and_brought_back(mapping: dict[str, dict[str, LocalLayerRepository]]) -> None:
    from accelerate import cpu_offload
    from accelerate.hooks import remove_hook_from_submodules

    model = kernelized(mapping)
    cpu_offload(model, torch.device("cpu"))
    assert torch.equal(model(X), EXPECTED)
    remove_hook_from_submodules(model)
    assert torch.equal(model(X), EXPECTED)


def test_compiles_whole(mapping: dict[str, dict[str, LocalLayerRepository]]) -> None:
    model = kernelized(mapping, Mode.INFERENCE | Mode.TORCH_COMPILE)
    assert len(report(model).swapped) == 3
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(X), EXPECTED)


def test_autograd_sees_through(mapping: dict[str, dict[str, LocalLayerRepository]]) -> None:
    model = kernelized(mapping, Mode.TRAINING)
    model(X).sum().backward()
    assert torch.equal(model[0].weight.grad, 2 * X)


def test_double_of_the_same_module_is_swapped_once(make_repository: Make) -> None:
    layer = Scaled()
    model = nn.Sequential(layer, layer)
    with use_kernel_mapping(
        {"Double": {"cpu": LocalLayerRepository(make_repository("double", DOUBLE), layer_name="Double")}}
    ):
        kernelize(model, mode=Mode.INFERENCE)
    assert torch.equal(model(X), 4 * X)
    assert len(report(model).swapped) == 1, "named_modules lists a shared module once"
