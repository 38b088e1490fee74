"""A peer's process in `benchmarks.field`: opens a model, answers once, then runs the sizes that it is told to.

    python -m benchmarks.field_worker PEER FILE MODEL THREADS OUTPUTS [UNTIL]

Written to stdout: a line of JSON after the first output (UNTIL "first") or when nothing is compiled any more and all
sizes were called ("ready", the default), then one for each line "SIZE SECONDS" that is read, of the
median seconds of a call; "profile" asks for the slowest steps, where a peer tells them. OUTPUTS: an .npz of what it
gave at each size.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.field_models import MODELS, Array
from benchmarks.harness import measure

Call = Callable[[Mapping[str, Array]], Mapping[str, Array]]


@dataclass(frozen=True)
class Opened:
    """An open model. wait: until nothing is compiled in the background; profile: (step, seconds) of a call."""

    call: Call
    wait: Callable[[], object] = lambda: None
    profile: Callable[[Mapping[str, Array]], list[tuple[str, float]]] = lambda _: []


def open_ours(path: str, threads: int) -> Callable[[], Opened]:
    """The compiler's, which serves the first calls by engines that need no C++ compiler."""
    import torch

    from kernels_hub.compiler import compile as compile_model

    torch.set_num_threads(threads)

    def opened() -> Opened:
        run = compile_model(path, "cpu")

        def profile(inputs: Mapping[str, Array]) -> list[tuple[str, float]]:
            steps = run.profile(*[inputs[name] for name in run.signature.inputs]).steps
            return [(f"{step.engine} {step.name}", step.seconds) for step in steps]

        return Opened(run.arrays, run.wait, profile)

    return opened


def open_onnxruntime(path: str, threads: int) -> Callable[[], Opened]:
    """ONNX Runtime's."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads

    def opened() -> Opened:
        session = onnxruntime.InferenceSession(path, options)
        names = [one.name for one in session.get_outputs()]
        return Opened(lambda inputs: dict(zip(names, session.run(None, dict(inputs)), strict=True)))

    return opened


def open_openvino(path: str, threads: int) -> Callable[[], Opened]:
    """OpenVINO's, in float32."""
    import openvino

    def opened() -> Opened:
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        request = openvino.Core().compile_model(path, "CPU", options).create_infer_request()

        def call(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
            return {one.any_name: value for one, value in request.infer(dict(inputs)).items()}

        return Opened(call)

    return opened


PEERS = {"ours": open_ours, "onnxruntime": open_onnxruntime, "openvino": open_openvino}


def _mib(field: str) -> float:
    """A row of /proc/self/status: "VmRSS" is what is resident, "VmHWM" the most that was."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def _say(answer: Mapping[str, Any]) -> None:
    print("@@" + json.dumps(answer), flush=True)


def main(peer: str, path: str, name: str, threads: str, outputs: str, until: str = "ready") -> None:
    model = MODELS[name]
    opened = PEERS[peer](path, int(threads))
    examples = [model.example(size) for size in model.sizes]
    Path("/proc/self/clear_refs").write_text("5")  # the most so far counts no more, nor that of the parent
    before = _mib("VmRSS")
    start, processor = time.perf_counter(), time.process_time()
    try:
        made = opened()
        open_s = time.perf_counter() - start
        made.call(examples[0])
        first_s, processor_s = time.perf_counter() - start, time.process_time() - processor
        opening = {
            "open_s": round(open_s, 3),
            "first_s": round(first_s, 3),
            "first_processor_s": round(processor_s, 3),
        }
        if until == "first":
            _say(opening)
            return
        for one in examples:
            made.call(one)
        made.wait()
        ready_s = time.perf_counter() - start
        results = [made.call(one) for one in examples]
    except Exception as error:  # noqa: BLE001  (the benchmark reports whatever a peer says)
        _say({"error": f"{type(error).__name__}: {str(error)[:300]}"})
        return
    arrays = {f"{size}:{key}": value for size, one in enumerate(results) for key, value in one.items()}
    np.savez(outputs, **arrays)  # type: ignore[arg-type]
    peak = _mib("VmHWM") - before
    _say({**opening, "ready_s": round(ready_s, 3), "mib": round(peak)})
    for line in sys.stdin:
        if line.strip() == "profile":
            steps = made.profile(examples[-1])
            total = sum(seconds for _, seconds in steps) or 1.0
            slowest = sorted(steps, key=lambda step: -step[1])[:5]
            _say({"steps": [[step, round(seconds / total, 3)] for step, seconds in slowest]})
            continue
        size, seconds = line.split()
        _say({"median_s": measure(functools.partial(made.call, examples[int(size)]), float(seconds))})


if __name__ == "__main__":
    main(*sys.argv[1:])
