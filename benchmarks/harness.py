"""Measure peers side by side: each in a process of its own, in turn, the same threads, median of pairs.

A worker process builds its case, warms up, and then waits; the parent lets one worker run at a
time and pauses before each turn, so that the spinning threads of the last one have gone to sleep.
One round is one turn of every worker. Ratios are taken within a round and the median over the
rounds is quoted: a machine whose speed drifts changes both sides of a pair.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAUSE_S = 0.15

CLOCK = "KERNELS_HUB_BENCHMARK_CLOCK"
"""Set to "processor" in a worker's environment, times are of the processor and not on the clock."""
now: Callable[[], float] = time.process_time if os.environ.get(CLOCK) == "processor" else time.perf_counter
"""Seconds, from some time on: what steps are timed by."""

Step = Callable[[], Any]
"""What is timed; one that returns a float has timed itself."""


@dataclass
class Worker:
    """A peer's process. `case` is "module:function", called with the arguments; it returns a step, or some by name.

    folder: where it runs, and from which it imports `benchmarks` and the library; by default, this checkout.
    """

    name: str
    case: str
    arguments: Mapping[str, Any]
    threads: int
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path = Path(__file__).parents[1]
    process: subprocess.Popen[str] | None = None
    info: dict[str, Any] = field(default_factory=dict)

    def start(self) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(self.threads),
            "MKL_NUM_THREADS": str(self.threads),
        }
        environment.update(self.environment)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.worker",
                self.case,
                json.dumps(dict(self.arguments)),
                str(self.threads),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=self.folder,
        )
        self.info = self._answer()

    def turn(self, seconds: float, step: str = "") -> float:
        """Median seconds of one step, over at least `seconds` of steps. step: which, of a case with several."""
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.write(f"{seconds} {step}\n")
        self.process.stdin.flush()
        return float(self._answer()["median_s"])

    def stop(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait(timeout=30)
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        assert self.process is not None and self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("@@"):
                answer: dict[str, Any] = json.loads(line[2:])
                return answer
        raise RuntimeError(f"benchmark worker {self.name!r} ended with {self.process.wait()}")


def in_a_process(
    answer: Callable[..., dict[str, Any]], arguments: Sequence[Any], seconds: float, start: str = "spawn"
) -> dict[str, Any]:
    """What `answer(*arguments)` returns in a process of its own.

    {"failed": why} where it raises, its process ends otherwise, or it takes longer.
    start: "spawn", or "fork" for what is imported already.
    """
    context: Any = multiprocessing.get_context(start)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, answer, arguments))
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            return {"failed": f"it takes more than {seconds:g} s"}
        said: dict[str, Any] = ours.recv()
        return said
    except EOFError:
        process.join()
        return {"failed": f"its process ended with {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def _send(pipe: Any, answer: Callable[..., dict[str, Any]], arguments: Sequence[Any]) -> None:
    try:
        said = answer(*arguments)
    except Exception as error:  # noqa: BLE001 - a row of the result
        said = {"failed": f"{type(error).__name__}: {error}"[:500]}
    pipe.send(said)


@dataclass(frozen=True)
class Comparison:
    """Rounds of several peers on one case; times in seconds."""

    times: Mapping[str, Sequence[float]]
    info: Mapping[str, Mapping[str, Any]]

    def median(self, name: str) -> float:
        return statistics.median(self.times[name])

    def speedup(self, name: str, over: str) -> float:
        """Median over the rounds of time(over) / time(name): above 1, `name` is faster."""
        return statistics.median(b / a for a, b in zip(self.times[name], self.times[over], strict=True))

    def to_dict(self) -> dict[str, Any]:
        return {
            "median_ms": {name: round(self.median(name) * 1e3, 4) for name in self.times},
            "rounds_ms": {name: [round(t * 1e3, 4) for t in times] for name, times in self.times.items()},
            "info": {name: dict(info) for name, info in self.info.items()},
        }


def compare(workers: Sequence[Worker], *, rounds: int = 9, seconds: float = 0.4) -> Comparison:
    """Run the workers in turn for `rounds` rounds; every other round in the reverse order."""
    started: list[Worker] = []
    try:
        for worker in workers:
            worker.start()
            started.append(worker)
        times: dict[str, list[float]] = {worker.name: [] for worker in workers}
        for round_ in range(rounds):
            for worker in workers if round_ % 2 == 0 else reversed(workers):
                time.sleep(PAUSE_S)
                times[worker.name].append(worker.turn(seconds))
        return Comparison(times, {worker.name: worker.info for worker in workers})
    finally:
        for worker in started:
            worker.stop()


def measure(step: Step, seconds: float, minimum: int = 5) -> float:
    """Median seconds of a step, over at least `seconds` and `minimum` steps."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < minimum or time.perf_counter() < end:
        start = now()
        own = step()
        # A step may time itself, to leave out what only prepares it: it then returns its seconds.
        times.append(own if isinstance(own, float) else now() - start)
    return statistics.median(times)


def apart(case: str, *given: object, environment: Mapping[str, str] | None = None) -> Any:
    """What a function returns, as JSON, in a process of its own in this checkout. case: "module:function".

    given: its arguments, by way of JSON. Raises RuntimeError with what the process wrote on stderr where it fails.
    """
    module, _, function = case.partition(":")
    code = (
        f"import json, sys, {module} as module\n"
        f"print('@@' + json.dumps(module.{function}(*json.loads(sys.argv[1]))))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, json.dumps(given)], cwd=Path(__file__).parents[1],
        capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{case} failed:\n{done.stderr}")
    return json.loads(done.stdout.rpartition("@@")[2])


def machine() -> dict[str, Any]:
    """What the figures were taken on: processor, cores, versions."""
    model = platform.processor() or platform.machine()
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as cpuinfo:
            lines = dict(line.split(":", 1) for line in cpuinfo if ":" in line)
        fields = {key.strip(): value.strip() for key, value in lines.items()}
        model = f"{fields.get('model name', model)}, family {fields.get('cpu family')} model {fields.get('model')}"
    except OSError:
        pass
    versions = {}
    for package in (
        "torch",
        "triton",
        "transformers",
        "kernels",
        "kernels-hub",
        "liger-kernel",
        "onnxruntime",
        "openvino",
        "timm",
        "numpy",
    ):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "versions": versions,
        "device": _accelerator(),
    }


def _accelerator() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def write(name: str, result: Mapping[str, Any], device: str = "") -> Path:
    """Keep a result as benchmarks/results/<date>-<device>-<name>.json; device: by default, the accelerator's name."""
    about = machine()
    path = _path(name, device or about["device"])
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps({"machine": about, **result}, indent=1) + "\n", encoding="utf-8")
    return path


def written_today(name: str, device: str = "") -> dict[str, Any]:
    """What `write` kept today; empty where it kept nothing."""
    path = _path(name, device or machine()["device"])
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def _path(name: str, device: str) -> Path:
    device = "".join(c if c.isalnum() else "-" for c in device.lower())
    return RESULTS / f"{datetime.datetime.now(tz=datetime.UTC).date().isoformat()}-{device}-{name}.json"


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--threads", type=int, default=min(2, os.cpu_count() or 1), help="threads of every peer"
    )
    parser.add_argument("--rounds", type=int, default=9, help="turns of every peer")
    parser.add_argument("--write", action="store_true", help="keep the figures under benchmarks/results/")
    return parser


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    line = "  ".join("-" * width for width in widths)
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]
    return "\n".join((text[0], line, *text[1:]))


def cache_argument() -> str:
    """The name under which the installed transformers takes a cache: renamed in 5.24."""
    from transformers.modeling_outputs import BaseModelOutputWithPast

    return "cache" if hasattr(BaseModelOutputWithPast, "cache") else "past_key_values"
