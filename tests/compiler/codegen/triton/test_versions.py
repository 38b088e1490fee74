"""What differs between Triton's releases."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from kernels_hub.compiler.codegen.triton_versions import scratch_bytes

pytest.importorskip("triton", reason="needs Triton")

FLIPPED = """
import torch, triton, triton.language as tl
from kernels_hub.compiler.codegen import triton_interpreted
from triton.runtime.interpreter import InterpreterBuilder

@triton.jit
def flip(x, y):
    i = tl.arange(0, 4)
    tl.store(y + i, ~tl.load(x + i))

for dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int64, torch.bool):
    x = torch.tensor([0, 1, 0, 1]).to(dtype)
    y = torch.empty_like(x)
    flip[(1,)](x, y)
    expected = torch.from_numpy(~x.numpy())
    assert torch.equal(y, expected), (dtype, y, expected)
print("right")
"""


@pytest.mark.parametrize(
    ("metadata", "nbytes"),
    [
        ({"global_scratch_size": 128, "profile_scratch_size": 64}, 192),
        ({"global_scratch_size": None, "profile_scratch_size": 64}, 64),
        ({"profile_scratch_size": 0}, 0),  # AMD's before Triton 3.8
        ({}, 0),
    ],
)
def test_scratch_memory_of_a_launch(metadata: dict[str, int | None], nbytes: int):
    assert scratch_bytes(SimpleNamespace(**metadata)) == nbytes


def test_the_interpreter_flips_unsigned_integers(tmp_path):
    program = tmp_path / "flipped.py"  # Triton reads a kernel's source from its file
    program.write_text(FLIPPED)
    done = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0 and done.stdout == "right\n", done.stdout
