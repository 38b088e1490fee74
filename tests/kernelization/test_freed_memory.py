"""What a model's calls free is there for the next ones: counted in page faults, in processes of their own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

# Three blocks of 8 MiB a call, freed together: more than the 16 MiB that glibc keeps if none larger was ever freed.
# No PyTorch: what importing it frees differs from run to run.
_CALLS = """
import ctypes
import resource
from kernels_hub.kernelization.freed_memory import keep_freed_memory

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
library.free.argtypes = (ctypes.c_void_p,)
library.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)

def call():
    held = [library.malloc(8 << 20) for _ in range(3)]
    for block in held:
        library.memset(block, 1, 8 << 20)
    for block in held:
        library.free(block)

def faults_of_calls(count=5):
    for _ in range(3):
        call()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // count

before = faults_of_calls()
keep_freed_memory(DEVICE)
print(before, faults_of_calls())
"""
_KERNELIZED = """
import torch
from kernels_hub import Mode, kernelize
from kernels_hub.kernelization import freed_memory

raised = []
freed_memory._raise_thresholds = lambda: raised.append(True)
kernelize(torch.nn.Sequential(torch.nn.SiLU()), mode=Mode.INFERENCE, device=DEVICE)
print(len(raised))
"""
_PAGES = (3 * 8 << 20) // 4096


def _run(code: str, device: str, **settings: str) -> list[int]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    for name in ("GLIBC_TUNABLES", "LD_PRELOAD", "KERNELS_HUB_FREED_MEMORY"):
        environment.pop(name, None)
    command = [sys.executable, "-c", code.replace("DEVICE", repr(device))]
    run = subprocess.run(command, env={**environment, **settings}, capture_output=True, text=True, check=True)
    return [int(number) for number in run.stdout.split()]


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries keep freed memory in their own way"
)
class TestFreedMemory:
    def test_later_calls_take_it_again(self) -> None:
        before, after = _run(_CALLS, "cpu")
        assert before > _PAGES // 2
        assert after < _PAGES // 20

    @pytest.mark.parametrize(
        ("device", "settings"),
        [
            ("cpu", {"KERNELS_HUB_FREED_MEMORY": "return"}),
            ("cpu", {"MALLOC_TRIM_THRESHOLD_": "1000000"}),
            ("cuda", {}),
        ],
        ids=["asked for", "a threshold of the user's", "another device"],
    )
    def test_is_given_back_as_before(self, device: str, settings: dict[str, str]) -> None:
        _, after = _run(_CALLS, device, **settings)
        assert after > _PAGES // 2


def test_kernelize_has_it_kept() -> None:
    assert _run(_KERNELIZED, "cpu", KERNELS_HUB_CALIBRATION="off") == [1]
