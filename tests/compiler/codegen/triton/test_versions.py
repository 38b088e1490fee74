"""What differs between Triton's releases."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="needs Triton")

from kernels_hub.compiler.runtime import triton_versions as versions
from kernels_hub.compiler.runtime.tiles import attention_tile, conv_tile, product_tile
from kernels_hub.compiler.runtime.triton_versions import scratch_bytes

FLIPPED = """
import torch, triton, triton.language as tl
from kernels_hub.compiler.runtime import triton_interpreter
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


WIDE = (1000, 1000, 512, 1, 16, 3)
"""Rows, columns and depth, batches, bits and stages."""


@pytest.mark.parametrize(
    ("release", "tile", "fields"),
    [
        ("3.6", lambda: attention_tile(512, 512, 64, 64, 32), {"ROWS": 64, "COLUMNS": 16, "num_warps": 8}),
        ("3.6", lambda: attention_tile(512, 512, 128, 128, 32), {"ROWS": 32, "COLUMNS": 32, "num_warps": 4}),
        ("3.9", lambda: attention_tile(512, 512, 64, 64, 32), {"ROWS": 64, "COLUMNS": 32, "num_warps": 8}),
        ("3.6", lambda: conv_tile(*WIDE, (64, 64, 64)), {"DEPTH": 64, "num_warps": 8}),
        ("3.6", lambda: product_tile(*WIDE, (64, 64, 64)), {"DEPTH": 64, "num_warps": 4}),
        ("3.9", lambda: conv_tile(*WIDE, (64, 64, 64)), {"DEPTH": 64, "num_warps": 4}),
        ("3.7", lambda: product_tile(*WIDE, (32, 64, 64)), {"ROWS": 32, "COLUMNS": 64, "DEPTH": 32}),
        ("3.8", lambda: product_tile(*WIDE, (32, 64, 64)), {"ROWS": 32, "COLUMNS": 64, "DEPTH": 64}),
        ("", lambda: product_tile(*WIDE, (32, 64, 64)), {"ROWS": 32, "COLUMNS": 64, "DEPTH": 64}),
    ],
)
def test_tiles_that_spill_with_a_release_are_not_offered_there(release, tile, fields, monkeypatch):
    monkeypatch.setattr(versions, "release", lambda: release)
    assert fields.items() <= tile().items()


LOOPED = """
import torch, triton, triton.language as tl
from kernels_hub.compiler.runtime.triton_versions import mend_interpreter

@triton.jit
def total(y, counts):
    sum = 0
    for i in range(0, tl.load(counts), 2):
        sum += i
    tl.store(y, sum)

mend_interpreter()
mend_interpreter()
for _ in range(2):
    y = torch.zeros(1, dtype=torch.int64)
    total[(1,)](y, torch.tensor([7]))
    assert y.item() == 12, y
assert not hasattr(tl.tensor, "__index__") or "lambda" not in tl.tensor.__index__.__qualname__
print("right")
"""


@pytest.mark.parametrize("source", [FLIPPED, LOOPED], ids=["bits", "a loop to a tensor"])
def test_what_the_interpreter_is_given(source, tmp_path):
    program = tmp_path / "interpreted.py"  # Triton reads a kernel's source from its file
    program.write_text(source)
    done = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0 and done.stdout == "right\n", done.stdout
