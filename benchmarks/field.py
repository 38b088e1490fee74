"""ONNX models as they are found, against ONNX Runtime and OpenVINO: opening, numbers, speed, memory.

    python -m benchmarks.field [MODEL …] [--packages DIR] [--rounds 5] [--neighbour] [--write] [--keep]

Models and sizes: `benchmarks.field_models`. Each peer has a process of its own, float32 and the same number of threads;
they run in turn, and a ratio is the median of the rounds. Time to open is from after the imports to the first output:
cold with empty caches, warm in a process after one that has compiled the model; the compiler is not waited for, as is
the default, and what is steady is measured when it is done (`ready_s`). Errors are against ONNX Runtime's outputs, by
the largest of them. In the geometric mean a ratio counts as 2 at most; quantized files and those that fail are listed,
the former outside the mean. --neighbour: one other process computes all the while. --keep: figures of the same day stay
for models that are not measured now, so that a field can be measured in parts. --compiled: a folder in which compiled
code lies from an earlier run, so that the compiler takes none of the time; the cold opening has an empty one all the
same, and ends with the first output. A second process of ONNX Runtime is the control: it by the first says how far two
figures of one thing lie apart. --openings: ours and ONNX Runtime's opening, numbers and memory alone are measured, and
other figures of the same day stay.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.field_models import MODELS, FieldModel

RIGHT, RIGHT_INT8 = 1e-3, 5e-2
"""Errors that the summary lists models above of."""
PEERS = ("ours", "onnxruntime", "openvino")
CONTROL = "onnxruntime again"
OPENINGS = ("ours cold", "ours warm", "onnxruntime", "openvino")
MOST = 2.0
LEAST = 1e-2
"""What the largest value of an output counts as at least, in errors: a detector of text in noise gives 1e-5."""


class Peer:
    """A process of `benchmarks.field_worker`. first: what it said after its first output.

    name: of a peer, of which the first word says what runs. until: "ready", or "first" of one that is closed after its
    first output.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        model: FieldModel,
        threads: int,
        folder: Path,
        cache: Path,
        until: str = "ready",
    ) -> None:
        self.name, self.outputs = name, folder / f"{name}.npz"
        environment = {
            **os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads),
            "KERNELS_HUB_CACHE": str(cache),
        }  # fmt: skip
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as users have it, modules are compiled once
        command = [
            sys.executable,
            "-m",
            "benchmarks.field_worker",
            name.partition(" ")[0],
            str(path),
            model.name,
        ]
        self.process = subprocess.Popen(
            [*command, str(threads), str(self.outputs), until],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[1],
        )  # fmt: skip
        self.first = self._answer()

    def ask(self, line: str) -> dict[str, Any]:
        """Its answer to a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(timeout=30)

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("@@"):
                answer: dict[str, Any] = json.loads(line[2:])
                return answer
        return {"error": f"its process ended with {self.process.wait()}"}


def run_model(
    model: FieldModel,
    path: Path,
    *,
    threads: int,
    rounds: int,
    seconds: float,
    neighbour: bool,
    compiled: Path | None = None,
    steady: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All figures of a model. compiled: where compiled code lies already; else the cold process compiles it.

    steady: figures of an earlier run, of which all but opening, numbers and memory stay.
    """
    result: dict[str, Any] = {
        "kind": model.kind,
        "package": model.package,
        "mib_of_file": path.stat().st_size >> 20,
    }
    with tempfile.TemporaryDirectory() as made, busy() if neighbour else contextlib.nullcontext():
        folder = Path(made)
        until = "ready" if compiled is None else "first"
        cold = Peer("ours", path, model, threads, folder, folder / "cache", until)
        result["ours cold"] = cold.first
        cold.close()
        cache = compiled or folder / "cache"
        names = PEERS[:2] if steady is not None else (*PEERS, CONTROL)
        peers = [Peer(name, path, model, threads, folder, cache) for name in names]
        warm = Peer("ours warm", path, model, threads, folder, cache, "first")
        result["ours warm"] = warm.first
        warm.close()
        try:
            result |= {peer.name: peer.first for peer in peers if peer.name != CONTROL}
            alive = [peer for peer in peers if "error" not in peer.first]
            result["errors"] = errors(folder / "ours.npz", folder / "onnxruntime.npz")
            if steady is not None:
                return {**steady, **result}
            result["sizes"] = [_size(alive, number, rounds, seconds) for number in range(len(model.sizes))]
            if any(peer.name == "ours" for peer in alive):
                result["slowest"] = alive[0].ask("profile").get("steps", [])
        finally:
            for peer in peers:
                peer.close()
    return result


def _size(peers: Sequence[Peer], number: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Median milliseconds of each peer at a size, the best peer's by ours, and the longest turn by the shortest."""
    times: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for turn in range(rounds):
        for peer in peers if turn % 2 == 0 else reversed(peers):
            time.sleep(harness.PAUSE_S)
            if (median := peer.ask(f"{number} {seconds}").get("median_s")) is not None:
                times[peer.name].append(median)
    times = {name: of for name, of in times.items() if len(of) == rounds}
    found: dict[str, Any] = {name: round(1e3 * statistics.median(of), 4) for name, of in times.items()}
    if times:
        found["spread"] = round(max(max(of) / min(of) for of in times.values()), 2)
    control = times.pop(CONTROL, None)
    if control and "onnxruntime" in times:
        pairs = zip(control, times["onnxruntime"], strict=True)
        found["control"] = round(statistics.median(again / once for again, once in pairs), 3)
    others = [of for name, of in times.items() if name != "ours"]
    if "ours" in times and others:
        turns = zip(times["ours"], *others, strict=True)
        found["best / ours"] = round(statistics.median(min(rest) / ours for ours, *rest in turns), 3)
    return found


def errors(ours: Path, other: Path) -> list[float] | None:
    """The largest difference of each output, by the largest value; None where one gave nothing."""
    if not (ours.exists() and other.exists()):
        return None
    found = []
    with np.load(ours) as a, np.load(other) as b:
        for name in b.files:
            x, y = a[name].astype(np.float64), b[name].astype(np.float64)
            if x.shape != y.shape:
                return [math.inf]
            largest = float(np.max(np.abs(y), initial=0.0))
            found.append(float(np.max(np.abs(x - y), initial=0.0)) / max(largest, LEAST))
    return [float(f"{one:.2g}") for one in found]


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """One other process that computes."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def summary(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The field in a few numbers. A model's ratio is the geometric mean over its sizes."""
    ratios: dict[str, float] = {}
    for name, of in results.items():
        own = [size["best / ours"] for size in of.get("sizes", ()) if "best / ours" in size]
        if own and not MODELS[name].quantized:
            ratios[name] = statistics.geometric_mean([min(one, MOST) for one in own])
    opened = [name for name, of in results.items() if "error" not in of["ours"]]
    ordered = sorted(ratios.values())
    wrong = {
        name: worst
        for name in opened
        if (worst := max(results[name].get("errors") or [math.inf]))
        > (RIGHT_INT8 if MODELS[name].quantized else RIGHT)
    }
    return {
        "models": len(results),
        "opened": len(opened),
        "failed": sorted(set(results) - set(opened)),
        f"error above {RIGHT} (int8: {RIGHT_INT8})": wrong,
        "at least 0.95": sum(one >= 0.95 for one in ordered),
        "geometric mean": round(statistics.geometric_mean(ordered), 3) if ordered else None,
        "quartiles": _quartiles(ordered),
        "control, quartiles": _quartiles(
            size["control"] for of in results.values() for size in of.get("sizes", ()) if "control" in size
        ),
        "least": min(ratios.items(), key=lambda one: one[1]) if ratios else None,
        **{
            f"median first output, {name} [s]": statistics.median(of[name]["first_s"] for of in known)
            for name in OPENINGS
            if (known := [of for of in results.values() if "first_s" in of.get(name, {})])
        },
        "memory after the imports, ours / ONNX Runtime, quartiles": _quartiles(
            of["ours"]["mib"] / max(of["onnxruntime"]["mib"], 1)
            for of in results.values()
            if "mib" in of["ours"] and "mib" in of["onnxruntime"]
        ),
        "first output, ours cold / ONNX Runtime, quartiles": _quartiles(
            of["ours cold"]["first_s"] / of["onnxruntime"]["first_s"]
            for of in results.values()
            if "first_s" in of["ours cold"] and "first_s" in of["onnxruntime"]
        ),
        **{
            f"longest first output of a file under 50 MB, {name} [s]": max(times)
            for name in OPENINGS[:2]
            if (
                times := [
                    (of[name]["first_s"], model)
                    for model, of in results.items()
                    if "first_s" in of.get(name, {}) and of["mib_of_file"] < 50
                ]
            )
        },
        **{
            f"median processor time to the first output, {name} [s]": statistics.median(
                of[name]["first_processor_s"] for of in known
            )
            for name in OPENINGS
            if (known := [of for of in results.values() if "first_processor_s" in of.get(name, {})])
        },
    }


def _quartiles(values: Iterable[float]) -> list[float]:
    found = list(values)
    return [round(one, 3) for one in (statistics.quantiles(found, n=4) if len(found) > 1 else found)]


def main() -> None:
    parser = harness.arguments(__doc__ or "")
    parser.add_argument("models", nargs="*", help="names of models; all by default")
    parser.add_argument(
        "--packages", type=Path, action="append", default=[], help="a folder of installed packages"
    )
    parser.add_argument("--seconds", type=float, default=0.3, help="of each turn")
    parser.add_argument("--neighbour", action="store_true", help="beside another process that computes")
    parser.add_argument("--processor", default=platform.machine(), help="its name, for that of the file")
    parser.add_argument("--compiled", type=Path, help="a folder of compiled code, of an earlier run")
    parser.add_argument("--openings", action="store_true", help="opening, numbers and memory alone")
    parser.add_argument("--keep", action="store_true", help="add to the figures of the same day")
    given = parser.parse_args()
    kind = f"field{'-neighbour' * given.neighbour}-{given.processor}"
    results: dict[str, Any] = harness.written_today(kind).get("results", {}) if given.keep else {}
    missing = []
    for name in given.models or MODELS:
        model = MODELS[name]
        path = model.path(given.packages)
        if path is None:
            missing.append(f"{name} ({model.package})")
            continue
        results[name] = of = run_model(
            model,
            path,
            threads=given.threads,
            rounds=given.rounds,
            seconds=given.seconds,
            neighbour=given.neighbour,
            compiled=given.compiled,
            steady=results.get(name, {}) if given.openings else None,
        )
        print(f"{name:24}", _line(of), flush=True)
        if given.write:  # as it grows: a run that is cut off loses the model it was at
            harness.write(kind, {"summary": summary(results), "results": results, "missing": missing})
    found = summary(results)
    print(json.dumps(found, indent=1))
    if missing:
        print("not installed:", ", ".join(missing))
    if given.write:
        print(harness.write(kind, {"summary": found, "results": results, "missing": missing}))


def _line(of: Mapping[str, Any]) -> str:
    if "error" in of["ours"]:
        return f"fails: {of['ours']['error']}"
    sizes = of.get("sizes", ())
    ratios = " ".join(str(size.get("best / ours", "-")) for size in sizes)
    times = " ".join("/".join(str(size.get(name, "-")) for name in PEERS) for size in sizes)
    opening = " ".join(f"{name} {of.get(name, {}).get('first_s', '-')}" for name in OPENINGS)
    worst = max(of["errors"] or [math.nan])
    return f"best/ours {ratios} | ms {times} | first output {opening} | error {worst:.1e}"


if __name__ == "__main__":
    main()
