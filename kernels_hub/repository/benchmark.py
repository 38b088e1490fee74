"""Benchmarks of a kernel repository: classes in its `benchmarks/benchmark*.py`, timed against their own references.

    from kernels_hub import Benchmark

    class SiluBenchmark(Benchmark):
        seed = 42

        def setup(self):
            self.x = torch.randn(128, 1024, device=self.device)
            self.out = torch.empty(128, 512, device=self.device)

        def benchmark_silu(self):
            self.kernel.silu_and_mul(self.out, self.x)

        def verify_silu(self):
            return torch.nn.functional.silu(self.x[..., :512]) * self.x[..., 512:]

`kernels-hub benchmark REPO` runs them, and those that were written for Hugging Face's `kernels`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import truediv
from pathlib import Path
from types import ModuleType
from typing import Any

from kernels_hub.errors import BenchmarkError

FOLDER = "benchmarks"
SCRIPTS = "benchmark*.py"
TOLERANCE = 1e-2
"""Absolute, as `kernels` compares; relative beside it, for large numbers."""


class Benchmark:
    """Base of a benchmark: `setup` or `setup_<name>`, `benchmark_<name>`, and `verify_<name>` for its reference.

    seed: of torch's and Python's generators, set before each workload. device: of torch, set by the runner. kernel: the
    kernel's module. out: what `benchmark_<name>` computed, which `verify_<name>`'s result is compared with.
    """

    seed: int | None = None
    device: str = "cpu"

    def __init__(self) -> None:
        self.kernel: Any = None
        self.out: Any = None

    def setup(self) -> None:
        """Make tensors, as attributes."""


@dataclass(frozen=True)
class Workload:
    """A `benchmark_<name>` that ran. Times in milliseconds; speedup: the median of reference / kernel, in pairs."""

    name: str
    iterations: int
    median_ms: float
    least_ms: float
    most_ms: float
    reference_ms: float | None = None
    speedup: float | None = None
    error: float | None = None
    """The largest absolute difference from the reference."""
    verified: bool | None = None
    """None without a reference."""
    reason: str = ""
    """Why it did not run to its end."""


def scripts(folder: Path) -> list[Path]:
    """The benchmark scripts of a repository. Raises BenchmarkError where there are none."""
    found = sorted((folder / FOLDER).glob(SCRIPTS))
    if not found:
        raise BenchmarkError(
            f"{folder} has no benchmarks: expected {FOLDER}/{SCRIPTS}, each with a Benchmark"
        )
    return found


def digest(files: Sequence[Path]) -> str:
    """SHA-256 of scripts, one after the other."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def run(
    script: Path, kernel: ModuleType, device: str, *, iterations: int = 100, warmup: int = 10
) -> Iterator[Workload]:
    """Run a script's benchmarks. What fails is a Workload with the reason; the others go on.

    Raises BenchmarkError for a script that does not load, or has no benchmarks.
    """
    for of in _classes(script):
        names = [name.removeprefix("benchmark_") for name in dir(of) if name.startswith("benchmark_")]
        if not names:
            raise BenchmarkError(f"{script}: {of.__name__} has no method benchmark_<name>")
        for name in names:
            what = f"{of.__name__}.{name}"
            try:
                yield _run(of, name, what, kernel, device, iterations, warmup)
            except Exception as error:  # noqa: BLE001  (a script may raise anything)
                line = " ".join(str(error).split())
                yield Workload(what, 0, 0.0, 0.0, 0.0, reason=f"{type(error).__name__}: {line}"[:500])


def _run(
    of: type[Benchmark], name: str, what: str, kernel: ModuleType, device: str, iterations: int, warmup: int
) -> Workload:
    import torch

    made = of()
    made.kernel, made.device = kernel, device
    if made.seed is not None:
        torch.manual_seed(made.seed)
        random.seed(made.seed)
    getattr(made, f"setup_{name}", made.setup)()
    call, verify = getattr(made, f"benchmark_{name}"), getattr(made, f"verify_{name}", None)
    error, verified = None, None
    if verify is not None:
        call()
        error, verified = _compared(made.out, verify())
        if not verified:
            reason = f"it differs from its reference by {error:.3g}" if error is not None else "no such shape"
            return Workload(what, 0, 0.0, 0.0, 0.0, error=error, verified=False, reason=reason)
    for _ in range(warmup):
        call()
        if verify is not None:
            verify()
    times, references = [], []
    for _ in range(iterations):  # in turn: what else goes on slows both
        times.append(_timed(call, device))
        if verify is not None:
            references.append(_timed(verify, device))
    speedup = statistics.median(map(truediv, references, times)) if references else None
    return Workload(
        what, iterations, statistics.median(times), min(times), max(times),
        statistics.median(references) if references else None, speedup, error, verified,
    )  # fmt: skip


def _compared(out: object, reference: object) -> tuple[float | None, bool]:
    """The largest difference, None for what cannot be compared, and whether it is small enough."""
    import torch

    if not isinstance(out, torch.Tensor) or not isinstance(reference, torch.Tensor):
        raise BenchmarkError(
            f"self.out is a {type(out).__name__} and verify gave a {type(reference).__name__}: both are tensors"
        )
    if out.shape != reference.shape:
        return None, False
    wide, expected = out.double(), reference.to(out.device).double()
    difference = (wide - expected).abs().max().item() if out.numel() else 0.0
    return difference, bool(torch.allclose(wide, expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True))


def _timed(call: Callable[[], object], device: str) -> float:
    _synchronize(device)
    started = time.perf_counter()
    call()
    _synchronize(device)
    return 1000 * (time.perf_counter() - started)


def _synchronize(device: str) -> None:
    if not device.startswith("cpu"):
        import torch

        torch.accelerator.synchronize()


def _classes(script: Path) -> list[type[Benchmark]]:
    """Classes that a script defines with `benchmark_` methods, of our Benchmark or of that of `kernels`."""
    name = f"kernels_hub_benchmark_{hashlib.sha256(str(script).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, script)
    if spec is None or spec.loader is None:
        raise BenchmarkError(f"{script} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with contextlib.chdir(script.parent.parent):
            spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        way = ": install it, or import Benchmark from kernels_hub" if error.name == "kernels" else ""
        raise BenchmarkError(f"{script} needs the package {error.name!r}, which is not here{way}") from error
    except Exception as error:
        raise BenchmarkError(f"{script} does not load: {type(error).__name__}: {error}") from error
    classes: list[type[Any]] = [
        var for var in vars(module).values()
        if inspect.isclass(var) and var.__module__ == name
        and any(base.__name__ == "Benchmark" for base in var.__mro__[1:])
    ]  # fmt: skip
    if not classes:
        raise BenchmarkError(f"{script} defines no Benchmark")
    return classes
