"""`kernels-hub init`: a layer repository that works as it is, to be changed into one's own.

One layer, SquaredReLU, with a Triton kernel for GPUs and plain PyTorch for CPUs behind one operator,
so that autograd and torch.compile work; a test, a benchmark, a README, and what to do next.
"""

from __future__ import annotations

from pathlib import Path

from kernels_hub.errors import BuildError
from kernels_hub.repository.build import KERNEL_NAME, NAME_RULE

_MANIFEST = """\
[kernel]
name = "@NAME@"
version = "0.1.0"
license = "Apache-2.0"
summary = "Squared ReLU in one pass over memory"
layers = ["SquaredReLU"]
functions = ["squared_relu"]
dtypes = ["float32", "bfloat16", "float16"]

# The folders of a backend are laid over one another into one Python package.
[backends.cpu]
sources = ["package", "cpu"]

[backends.cuda]
sources = ["package", "triton"]
python-depends = ["triton"]

[backends.rocm]
sources = ["package", "triton"]
python-depends = ["triton"]
"""

_INIT = '''\
"""Squared ReLU."""

from . import layers
from .operators import squared_relu

__all__ = ["layers", "squared_relu"]
'''

_LAYERS = '''\
"""The layers. A forward runs with `self` being the module that it replaces: keep no state here."""

from __future__ import annotations

from torch import Tensor, nn

from .operators import squared_relu


class SquaredReLU(nn.Module):
    """max(x, 0)^2, for x of any shape; returns like x. Source: arXiv 2109.08668."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, x: Tensor) -> Tensor:
        return squared_relu(x)
'''

_OPERATORS = '''\
"""One operator, whose kernels differ by backend: autograd and torch.compile see its name only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from . import kernels

# Clients import a package under a name of its own, so two versions of it never collide here.
_NAMESPACE = (__package__ or "@PYTHON_NAME@").replace(".", "_").replace("-", "_")
_LIBRARY = Library(_NAMESPACE, "DEF")


def _operator(name: str, schema: str, kernel: Any, fake: Any) -> Any:
    _LIBRARY.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{_NAMESPACE}::{name}", fake, lib=_LIBRARY)
    return getattr(getattr(torch.ops, _NAMESPACE), name).default


_BACKWARD = _operator(
    "squared_relu_backward",
    "(Tensor grad, Tensor x) -> Tensor",
    kernels.backward,
    lambda grad, x: torch.empty_like(x),
)
_FORWARD = _operator("squared_relu", "(Tensor x) -> Tensor", kernels.forward, torch.empty_like)


def _setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _derivative(ctx: Any, grad: Tensor) -> Tensor:
    return _BACKWARD(grad, *ctx.saved_tensors)


torch.library.register_autograd(
    f"{_NAMESPACE}::squared_relu", _derivative, setup_context=_setup_context, lib=_LIBRARY
)


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)^2, contiguous."""
    return _FORWARD(x.contiguous())
'''

_CPU = '''\
"""The kernels for CPUs: plain PyTorch, in place where that is possible."""

from __future__ import annotations

import torch
from torch import Tensor


def forward(x: Tensor) -> Tensor:
    """max(x, 0)^2."""
    return torch.relu(x).square_()


def backward(grad: Tensor, x: Tensor) -> Tensor:
    """2 max(x, 0) grad."""
    return torch.relu(x).mul_(2).mul_(grad)
'''

_TRITON = '''\
"""The kernels for GPUs: one pass over memory, in float32, rounded once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _forward_kernel(x, y, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    wide = tl.maximum(tl.load(x + offsets, mask=mask).to(tl.float32), 0.0)
    tl.store(y + offsets, (wide * wide).to(y.dtype.element_ty), mask=mask)


@triton.jit
def _backward_kernel(grad, x, dx, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    wide = tl.maximum(tl.load(x + offsets, mask=mask).to(tl.float32), 0.0)
    slope = 2.0 * wide * tl.load(grad + offsets, mask=mask).to(tl.float32)
    tl.store(dx + offsets, slope.to(dx.dtype.element_ty), mask=mask)


def forward(x: Tensor) -> Tensor:
    """max(x, 0)^2, for x contiguous."""
    y = torch.empty_like(x)
    if x.numel():
        with torch.cuda.device_of(x):
            _forward_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK)
    return y


def backward(grad: Tensor, x: Tensor) -> Tensor:
    """2 max(x, 0) grad, for x contiguous."""
    grad = grad.contiguous()
    dx = torch.empty_like(x)
    if x.numel():
        with torch.cuda.device_of(x):
            _backward_kernel[(triton.cdiv(x.numel(), BLOCK),)](grad, x, dx, x.numel(), BLOCK)
    return dx
'''

_TEST = '''\
"""The layer against its formula: every dtype, odd shapes, gradients, kernelize, torch.compile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from kernels_hub import (
    LocalLayerRepository,
    Mode,
    get_local_kernel,
    kernelize,
    report,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
)

REPOSITORY = Path(__file__).parents[1]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@use_kernel_forward_from_hub("SquaredReLU")
class SquaredReLU(nn.Module):
    """The module that the layer replaces."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).square()


@pytest.fixture(scope="module")
def squared_relu():
    return get_local_kernel(REPOSITORY, backend=DEVICE).squared_relu


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 1025), (4, 7, 129)], ids=str)
def test_values_and_gradients(squared_relu, shape, dtype):
    torch.manual_seed(0)
    x = torch.randn(shape, device=DEVICE).to(dtype).requires_grad_()
    grad = torch.randn(shape, device=DEVICE).to(dtype)
    y = squared_relu(x)
    y.backward(grad)
    wide = x.detach().double().requires_grad_()
    expected = torch.relu(wide).square()
    expected.backward(grad.double())
    tolerance = TOLERANCE[dtype]
    assert y.dtype == x.grad.dtype == dtype
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=tolerance, atol=tolerance)


def test_strides(squared_relu):
    x = torch.randn(6, 5, device=DEVICE).T
    torch.testing.assert_close(squared_relu(x), torch.relu(x).square())


def test_kernelize():
    model = nn.Sequential(nn.Linear(8, 16), SquaredReLU(), nn.Linear(16, 4)).to(DEVICE)
    x = torch.randn(3, 8, device=DEVICE)
    expected = model(x)
    layer = LocalLayerRepository(REPOSITORY, layer_name="SquaredReLU")
    with use_kernel_mapping({"SquaredReLU": {DEVICE: layer}}, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE | Mode.TORCH_COMPILE, use_fallback=False)
    assert [row.path for row in report(model).rows if row.swapped] == ["1"]
    torch.testing.assert_close(model(x), expected)


def test_torch_compile(squared_relu):
    x = torch.randn(33, device=DEVICE)
    compiled = torch.compile(squared_relu, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), squared_relu(x))
'''

_BENCHMARK = '''\
"""Time the layer against the module that it replaces, and keep the figures for the card.

    python benchmark.py            writes benchmark-<device>.json, which `kernels-hub publish` puts into the card
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from kernels_hub import get_local_kernel

SHAPES = ((1, 4096), (512, 4096), (2048, 8192))


def original(x: torch.Tensor) -> torch.Tensor:
    """What the layer replaces."""
    return torch.relu(x).square()


def milliseconds(function: Callable[[], object], device: str, seconds: float) -> float:
    """Median time of one call."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[1:])


def main() -> None:
    """Measure every shape and dtype, in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    device: str = options.device
    squared_relu = get_local_kernel(Path(__file__).parent, backend=device).squared_relu
    cases = {}
    for shape in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(shape, device=device, dtype=dtype)
            peers = {"eager": lambda x=x: original(x), "kernel": lambda x=x: squared_relu(x)}
            with torch.inference_mode():
                rounds = [
                    {name: milliseconds(peer, device, options.seconds) for name, peer in peers.items()}
                    for _ in range(options.rounds)
                ]
                error = (squared_relu(x).double() - original(x.double())).abs().max().item()
            name = f"SquaredReLU {'x'.join(map(str, shape))} {str(dtype).removeprefix('torch.')}"
            ratio = statistics.median(turn["eager"] / turn["kernel"] for turn in rounds)
            cases[name] = {
                "median_ms": {peer: round(statistics.median(t[peer] for t in rounds), 4) for peer in peers},
                "speedup_over_eager": {"kernel": round(ratio, 2)},
                "errors": {"max_abs_error": error},
            }
            print(f"{name}: {ratio:.2f} times faster")
    machine = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "cpu": platform.processor() or platform.machine(),
        "versions": {"torch": torch.__version__},
    }
    target = Path(__file__).with_name(f"benchmark-{device}.json")
    result = {"machine": machine, "threads": torch.get_num_threads(), "cases": cases}
    target.write_text(json.dumps(result, indent=1) + "\\n", encoding="utf-8")
    print(f"written to {target}")


if __name__ == "__main__":
    main()
'''

_README = """\
# @NAME@

Squared ReLU, max(x, 0)^2, with a Triton kernel for GPUs and plain PyTorch for CPUs.
"""

_NEXT_STEPS = """\
# Make it your own

Write the formula into `package/layers.py` (the signature of `forward` has to be
that of the module it replaces), the kernels into `cpu/kernels.py` and `triton/kernels.py`, and the
names of layers and functions into `kernel.toml`. README.md is what users read: it becomes the introduction of
the card. This file is for you, and is not published.

    python -m pytest tests             the kernels against the formula
    python benchmark.py                figures for the card
    kernels-hub build . -o /tmp/out    checks, and the folders that clients load
    kernels-hub publish . --repo ORG/@NAME@ --version 0.1.0 --dry-run
"""

_IGNORED = "build/\n__pycache__/\n"

FILES = {
    ".gitignore": _IGNORED,
    "NEXT_STEPS.md": _NEXT_STEPS,
    "README.md": _README,
    "benchmark.py": _BENCHMARK,
    "cpu/kernels.py": _CPU,
    "kernel.toml": _MANIFEST,
    "package/__init__.py": _INIT,
    "package/layers.py": _LAYERS,
    "package/operators.py": _OPERATORS,
    "tests/test_squared_relu.py": _TEST,
    "triton/kernels.py": _TRITON,
}
"""Path inside the repository -> text; @NAME@ and @PYTHON_NAME@ stand for its name."""


def write_template(name: str, folder: Path) -> list[Path]:
    """Write a working layer repository into a folder, and return its files.

    name: as in kernel.toml: a-z, 0-9 and "-".
    folder: new or empty.

    Raises BuildError for a name that cannot be published, and for a folder with anything in it.
    """
    if KERNEL_NAME.fullmatch(name) is None:
        raise BuildError(f"{name!r} cannot be a kernel's name: {NAME_RULE}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BuildError(f"{folder} is not empty; give a new folder with --path")
    written = []
    for inside, text in FILES.items():
        path = folder / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        content = text.replace("@NAME@", name).replace("@PYTHON_NAME@", name.replace("-", "_"))
        path.write_text(content, encoding="utf-8", newline="\n")
        written.append(path)
    return written
