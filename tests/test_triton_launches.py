"""Launches of Triton kernels: through the JIT once, then with what it compiled, for nothing but what it compiled for."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels_hub import triton_launches

pytest.importorskip("triton", reason="needs Triton")


class OnGpu(Tensor):
    """Says that it is on a GPU."""

    def get_device(self) -> int:
        return 0


class Kernel:
    """Stands for a jitted function: compiles at every call, and says what was started and how."""

    arg_names = ("x", "n", "eps", "FLAG", "BLOCK")

    def __init__(self) -> None:
        self.compiled, self.started = 0, []  # type: ignore[var-annotated]

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def start(*arguments: Any, **constants: Any) -> Any:
            self.compiled += 1
            return SimpleNamespace(function="function", packed_metadata="metadata", run=self.run)

        return start

    def run(self, gridX: int, gridY: int, gridZ: int, stream: str, function: str, *rest: Any) -> None:
        self.started.append((gridX, gridY, gridZ, stream, function, *rest))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    active = SimpleNamespace(get_current_stream=lambda device: "stream")
    monkeypatch.setattr("triton.runtime.driver", SimpleNamespace(active=active))
    monkeypatch.setattr(triton_launches, "_remembered", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    return triton_launches


def memory(dtype: torch.dtype = torch.float32, offset: int = 0) -> Tensor:
    """Aligned to 16 bytes, but for the offset, in elements."""
    whole = torch.zeros(64, dtype=dtype)
    assert whole.data_ptr() % 16 == 0
    return whole[offset:].as_subclass(OnGpu)


def test_the_second_launch_is_of_what_the_first_compiled(launches: ModuleType) -> None:
    kernel, x = Kernel(), memory()
    for _ in range(3):
        launches.launch(kernel, (5, 2), (x, 7, 0.5), FLAG=True, BLOCK=64, num_warps=4)
    assert kernel.compiled == 1
    given = (5, 2, 1, "stream", "function", "metadata", None, None, None, x, 7, 0.5, True, 64)
    assert len(kernel.started) == 2 and all(
        all(mine is theirs or mine == theirs for mine, theirs in zip(one, given, strict=True))
        for one in kernel.started
    )


def test_what_triton_compiles_for_is_told_apart(launches: ModuleType) -> None:
    kernel, constants = Kernel(), {"FLAG": True, "BLOCK": 64, "num_warps": 4}
    different = [
        ((memory(), 7, 0.5), constants),
        ((memory(torch.bfloat16), 7, 0.5), constants),
        ((memory(offset=1), 7, 0.5), constants),
        ((memory(), 16, 0.5), constants),
        ((memory(), 1, 0.5), constants),
        ((memory(), 2**33, 0.5), constants),
        ((memory(), None, 0.5), constants),
        ((memory(), 7, 0.5), {**constants, "FLAG": False}),
        ((memory(), 7, 0.5), {**constants, "BLOCK": 32}),
        ((memory(), 7, 0.5), {**constants, "num_warps": 8}),
    ]
    for arguments, given in different:
        launches.launch(kernel, (1,), arguments, **given)
    assert kernel.compiled == len(different) and not kernel.started
    launches.launch(Kernel(), (1,), *different[0][:1], **constants)
    launches.launch(kernel, (1,), (memory(), 7, 0.25), **constants)  # Triton takes a float as it comes
    assert kernel.compiled == len(different) and len(kernel.started) == 1


def test_rocm_compiles_for_large_memory_of_its_own(
    launches: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that only the grid knows of may not change what is compiled for small offsets."""
    monkeypatch.setattr(launches, "_HIP", True)
    kernel, constants = Kernel(), {"FLAG": True, "BLOCK": 64}
    small, large = memory(), torch.empty(2**31, dtype=torch.int8, device="meta")
    for held in (small.as_subclass(Tensor), large, small.as_subclass(Tensor)):
        monkeypatch.setattr(OnGpu, "untyped_storage", lambda self, held=held: held.untyped_storage())
        launches.launch(kernel, (1,), (small, 7, 0.5), **constants)
    assert kernel.compiled == 2 and len(kernel.started) == 1


def test_hooks_and_other_devices_go_through_the_jit(
    launches: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.knobs import runtime

    kernel, constants = Kernel(), {"FLAG": True, "BLOCK": 64}
    launches.launch(kernel, (1,), (memory(), 7, 0.5), **constants)
    hook = lambda metadata: None  # noqa: E731
    runtime.launch_enter_hook.add(hook)
    try:
        launches.launch(kernel, (1,), (memory(), 7, 0.5), **constants)
    finally:
        runtime.launch_enter_hook.remove(hook)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    launches.launch(kernel, (1,), (memory(), 7, 0.5), **constants)
    assert kernel.compiled == 3 and not kernel.started


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_a_function_in_the_place_of_a_chain_of_hooks_is_called(
    launches: ModuleType, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    from triton.knobs import runtime

    kernel, constants = Kernel(), {"FLAG": True, "BLOCK": 64}
    launches.launch(kernel, (1,), (memory(), 7, 0.5), **constants)
    monkeypatch.setattr(runtime, hook, lambda metadata: None)
    launches.launch(kernel, (1,), (memory(), 7, 0.5), **constants)
    assert kernel.compiled == 2 and not kernel.started


def test_a_release_of_triton_that_starts_kernels_otherwise(launches: ModuleType) -> None:
    class OtherKernel(Kernel):
        def run(self, grid: tuple[int, ...], stream: str, *rest: Any) -> None:  # type: ignore[override]
            raise AssertionError("called as another release has it")

    kernel = OtherKernel()
    for _ in range(2):
        launches.launch(kernel, (1,), (memory(), 7, 0.5), FLAG=True, BLOCK=64)
    assert kernel.compiled == 2


def test_the_installed_release_starts_kernels_so(launches: ModuleType) -> None:
    from triton.backends.amd.driver import HIPLauncher
    from triton.backends.nvidia.driver import CudaLauncher

    for kind in (CudaLauncher, HIPLauncher):
        names = tuple(inspect.signature(kind.__call__).parameters)
        assert names[1 : 1 + len(launches._FIRST)] == launches._FIRST


def test_few_are_remembered(launches: ModuleType) -> None:
    kernel = Kernel()
    for size in range(2, 2 + 3 * launches._MOST):
        launches.launch(kernel, (1,), (memory(), size, 0.5), FLAG=True, BLOCK=64)
    assert len(launches._remembered) <= launches._MOST


@pytest.mark.parametrize("size", [0, 1, 2, 3, 16, 17, 1000, 2**31 + 1])
def test_sizes_are_those_of_triton(launches: ModuleType, size: int) -> None:
    import triton

    assert launches.cdiv(size, 7) == triton.cdiv(size, 7)
    if size:
        assert launches.next_power_of_2(size) == triton.next_power_of_2(size)
