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
    step: Step
    info: dict[str, Any]
    step, info = made if isinstance(made, tuple) else (made, {})
    step()
    first = time.perf_counter() - started
    measure(step, 0.5, minimum=3)
    _say({"first_result_s": round(first, 3), "peak_mib": _peak_mib(), **info})
    for line in sys.stdin:
        _say({"median_s": measure(step, float(line))})


def _peak_mib() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def _say(answer: dict[str, Any]) -> None:
    print("@@" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
