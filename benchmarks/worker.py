"""A peer's process: build the case, warm up, then run when told to. Spoken to by `benchmarks.harness`."""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from typing import Any

from benchmarks.harness import Step, measure


def main(case: str, arguments: str, threads: str) -> None:
    import torch

    torch.set_num_threads(int(threads))
    module, _, function = case.partition(":")
    started = time.perf_counter()
    made = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    info: dict[str, Any]
    step, info = made if isinstance(made, tuple) else (made, {})
    steps: dict[str, Step] = step if isinstance(step, dict) else {"": step}
    for each in steps.values():
        each()
    builds = sys.modules.get("kernels_hub.kernelization.native_builds")
    if builds is not None:  # until they are there originals run
        builds.wait_for_native_builds()
    first = time.perf_counter() - started
    for each in steps.values():
        measure(each, 0.5 / len(steps), minimum=3)
    _say({"first_result_s": round(first, 3), "peak_mib": _peak_mib(), **info})
    for line in sys.stdin:
        seconds, _, name = line.strip().partition(" ")
        _say({"median_s": measure(steps[name], float(seconds))})


def _peak_mib() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def _say(answer: dict[str, Any]) -> None:
    print("@@" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
