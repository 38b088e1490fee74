"""What the cases of a slice run on: a GPU, or in a rehearsal the CPU with Triton's interpreter."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.harness import measure

Step = Callable[[], Any]
Result = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Something to run. Its result is what the journal keeps; whatever it raises is kept in the result's place."""

    name: str
    run: Callable[[], Result]


@dataclass(frozen=True)
class Target:
    """A device, and how large and how long what runs on it may be."""

    device: str
    rehearsal: bool

    @staticmethod
    def of(rehearsal: bool) -> Target:
        """The GPU that PyTorch sees. Raises SystemExit where there is none and nothing is to be rehearsed."""
        if not rehearsal and not torch.cuda.is_available():
            raise SystemExit(
                f"PyTorch {torch.__version__} sees no GPU; python -m benchmarks.gpu --rehearse runs without one"
            )
        return Target("cpu" if rehearsal else "cuda", rehearsal)

    @property
    def name(self) -> str:
        """Of the device, as results are filed under."""
        return "rehearsal" if self.rehearsal else torch.cuda.get_device_name()

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        return (torch.float32,) if self.rehearsal else (torch.bfloat16, torch.float16)

    def sized(self, full: int, rehearsed: int) -> int:
        """A size, or the one of a rehearsal."""
        return rehearsed if self.rehearsal else full

    def some(self, items: Iterable[Any], rehearsed: int = 1) -> list[Any]:
        """All of them, or the first of a rehearsal."""
        found = list(items)
        return found[:rehearsed] if self.rehearsal else found

    def synchronize(self) -> None:
        """Wait for what was started."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds(self, step: Step) -> float:
        """Median seconds of a step on the device, which finds nothing of its data in the GPU's L2 cache."""
        if self.device == "cuda":
            from triton.testing import do_bench

            return float(do_bench(step, warmup=20, rep=60, return_mode="median")) / 1e3
        return measure(step, 0.0, minimum=1)

    def in_turn(self, steps: dict[str, Step], rounds: int = 5) -> Result:
        """Median microseconds of each step, and the first's time over each other's: median, least, most of rounds."""
        turns = [
            {name: self.seconds(step) for name, step in steps.items()} for _ in range(self.sized(rounds, 1))
        ]
        first, *others = steps
        return {
            "us": {name: round(statistics.median(one[name] for one in turns) * 1e6, 2) for name in steps},
            "ratio": {name: _spread([one[first] / one[name] for one in turns]) for name in others},
        }


def _spread(ratios: Sequence[float]) -> dict[str, float]:
    found = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
    return {name: round(ratio, 3) for name, ratio in found.items()}


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors of an argument or a result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return [tensor for one in value for tensor in tensors(one)]
    return []


def nbytes(value: Any) -> int:
    """Bytes of all of its tensors."""
    return sum(one.nbytes for one in tensors(value))


def difference(got: Any, wanted: Any) -> float:
    """The largest difference of two results, relative to the largest magnitude of the second; NaN is infinite."""
    worst = 0.0
    for a, b in zip(tensors(got), tensors(wanted), strict=True):
        scale = max(float(b.detach().double().abs().max()), 1e-12) if b.numel() else 1.0
        error = (a.detach().double() - b.detach().double()).abs().max() if b.numel() else torch.tensor(0.0)
        worst = max(worst, float(error.nan_to_num(float("inf"))) / scale)
    return worst


BOUND = {torch.float32: 1e-3, torch.bfloat16: 4e-2, torch.float16: 1e-2}
"""Relative to the largest magnitude; float32 allows for TF32's ten bits, over long sums."""


def close(got: Any, wanted: Any, dtype: torch.dtype) -> float:
    """The difference. Raises ArithmeticError for one that is too large for the dtype."""
    found = difference(got, wanted)
    if found > BOUND[dtype]:
        raise ArithmeticError(
            f"wrong numbers: the difference is {found:.1e}, at most {BOUND[dtype]:.0e} is right"
        )
    return found
