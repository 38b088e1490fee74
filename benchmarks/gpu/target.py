"""What the cases of a slice run on: a GPU, or in a rehearsal the CPU with Triton's interpreter."""

from __future__ import annotations

import gc
import statistics
import time
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
    """A device, and how large and how long what runs on it may be.

    once: whose ways are called once and not timed: "ours" or "all", torch.compile's as well; "" times them.
    """

    device: str
    rehearsal: bool
    once: str = ""

    @staticmethod
    def of(rehearsal: bool, once: str = "") -> Target:
        """The GPU that PyTorch sees. Raises SystemExit where there is none and nothing is to be rehearsed."""
        if not rehearsal and not torch.cuda.is_available():
            raise SystemExit(
                f"PyTorch {torch.__version__} sees no GPU; python -m benchmarks.gpu --rehearse runs without one"
            )
        return Target("cpu" if rehearsal else "cuda", rehearsal, once)

    @property
    def name(self) -> str:
        """Of the device, as results are filed under."""
        return "rehearsal" if self.rehearsal else torch.cuda.get_device_name()

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        return (torch.float32,) if self.rehearsal else (torch.bfloat16, torch.float16)

    @property
    def with_peers(self) -> bool:
        """Whether torch.compile takes part."""
        return not self.rehearsal and self.once != "ours"

    def compiled(self, module: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """torch.compile's, as of a process that has compiled nothing before.

        Else it would take the shapes of cases before this one for those of the same module, compile for any size, and
        after eight of them not at all. What it chooses by measuring, it measures here, not beside other processes.
        """
        import torch._inductor.config as inductor  # not in a rehearsal

        inductor.autotune_local_cache = False
        torch.compiler.reset()
        found: Callable[..., Any] = torch.compile(module, **options)
        return found

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

    def finish(self) -> None:
        """Wait for what was started, and leave the memory to others."""
        self.synchronize()
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def seconds(self, step: Step) -> float:
        """Median seconds of a step on the device, which finds nothing of its data in the GPU's L2 cache."""
        if self.device == "cuda" and not self.once:
            from triton.testing import do_bench

            for _ in range(2):
                self.synchronize()
                began = time.perf_counter()
                step()
                self.synchronize()
                took = time.perf_counter() - began
            if took > LONG_S:  # which do_bench would call seven times at least
                return took
            return float(do_bench(step, warmup=20, rep=60, return_mode="median")) / 1e3
        return measure(step, 0.0, minimum=1)

    def seconds_in_a_row(self, step: Step, calls: int = 50) -> float:
        """Seconds a call of many without waiting in between: what starting the work costs, where that takes longer."""
        for _ in range(5):
            step()
        self.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            step()
        self.synchronize()
        return (time.perf_counter() - began) / calls

    def in_turn(self, steps: dict[str, Step], rounds: int = 3) -> Result:
        """Median microseconds of each step, and the first's time over each other's: median, least, most of rounds.

        Nothing, and each step called once, where they are not timed.
        """
        if self.once:
            for step in steps.values():
                step()
            return {}
        turns = [
            {name: self.seconds(step) for name, step in steps.items()} for _ in range(self.sized(rounds, 1))
        ]
        found = _compared(turns)
        if found["us"][next(iter(steps))] < SHORT_US:
            rows = [
                {name: self.seconds_in_a_row(step, self.sized(50, 2)) for name, step in steps.items()}
                for _ in range(self.sized(rounds, 1))
            ]
            found |= {f"{key}_in_a_row": value for key, value in _compared(rows).items()}
        return found


LONG_S = 0.05
"""Of a step, from which on one call of it, after another, says enough."""
SHORT_US = 300.0
"""Of the first way: such steps are measured in a row as well."""


def _compared(turns: Sequence[dict[str, float]]) -> Result:
    first, *others = turns[0]
    return {
        "us": {name: round(statistics.median(one[name] for one in turns) * 1e6, 2) for name in turns[0]},
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
    """The largest difference of two results, relative to the largest magnitude of the second; NaN is infinite.

    Of their floating-point tensors: see `other_picks` for the others.
    """
    worst = 0.0
    for a, b in zip(tensors(got), tensors(wanted), strict=True):
        if not b.is_floating_point():
            continue
        scale = max(float(b.detach().double().abs().max()), 1e-12) if b.numel() else 1.0
        error = (a.detach().double() - b.detach().double()).abs().max() if b.numel() else torch.tensor(0.0)
        worst = max(worst, float(error.nan_to_num(float("inf"))) / scale)
    return worst


def other_picks(got: Any, wanted: Any) -> float:
    """The largest share of integers that differ, such as the experts that a router picks among equals."""
    pairs = zip(tensors(got), tensors(wanted), strict=True)
    return max(
        (float((a != b).double().mean()) for a, b in pairs if b.numel() and not b.is_floating_point()),
        default=0.0,
    )


def error(got: Any, exact: Any) -> float:
    """‖got - exact‖ / ‖exact‖ of the first tensors; NaN is infinite."""
    mine, theirs = tensors(got)[0].double(), tensors(exact)[0].double()
    return float(((mine - theirs).norm() / theirs.norm()).nan_to_num(float("inf")))


BOUND = {torch.float32: 1e-3, torch.bfloat16: 4e-2, torch.float16: 1e-2}
"""Relative to the largest magnitude; float32 allows for TF32's ten bits, over long sums."""


OTHER_PICKS = 0.1
"""Of integers: in bfloat16 a router's scores are equal for 4 of 100 places in 8 of 128."""


def close(got: Any, wanted: Any, dtype: torch.dtype) -> float:
    """The difference. Raises ArithmeticError for one that is too large for the dtype."""
    found = difference(got, wanted)
    if found > BOUND[dtype]:
        raise ArithmeticError(
            f"wrong numbers: the difference is {found:.1e}, at most {BOUND[dtype]:.0e} is right"
        )
    if (share := other_picks(got, wanted)) > OTHER_PICKS:
        raise ArithmeticError(f"wrong picks: {share:.1%} differ, at most {OTHER_PICKS:.0%} can be of equals")
    return found


def differences_of(results: dict[str, Any], ours: str, dtype: torch.dtype) -> dict[str, float]:
    """From "eager" of each other way. ours: how the names of our ways begin, which `close` judges.

    A peer may be wrong: that is written down, and no failure.
    """
    wanted = results["eager"]
    return {
        name: close(got, wanted, dtype) if name.startswith(ours) else difference(got, wanted)
        for name, got in results.items()
        if name != "eager"
    }
