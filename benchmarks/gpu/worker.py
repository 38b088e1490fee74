"""A process that runs cases of slices and says how each went: `python -m benchmarks.gpu.worker SLICE …`.

It takes --rehearse and --once of the command, and reads cases from its input, the number of a slice and a name on each
line, each after the answer to the one before.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from benchmarks.gpu.slices import SLICES
from benchmarks.gpu.target import Target

ANSWER = "@@"


def main(numbers: Sequence[int], target: Target) -> None:
    """Say the names of the cases of each slice, then the result of each that is asked for."""
    cases = {
        number: {case.name: case for case in SLICES[number - 1].cases(target)}
        for number in dict.fromkeys(numbers)
    }
    _say([(number, list(of)) for number, of in cases.items()])
    for line in sys.stdin:
        began = time.perf_counter()
        result, error = {}, ""
        try:
            number, name = json.loads(line)
            result = cases[number][name].run()
            target.finish()
        except Exception as raised:  # noqa: BLE001  (of a kernel, a compiler, a test: it is the result)
            error = f"{type(raised).__name__}: {raised}"[:2000]
        _say({"result": result, "error": error, "seconds": round(time.perf_counter() - began, 3)})


def _say(answer: object) -> None:
    print(ANSWER + json.dumps(answer), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("slices", type=int, nargs="+")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--once", default="")
    options = parser.parse_args()
    if options.rehearse:
        from kernels_hub.compiler.runtime.triton_versions import mend_interpreter

        mend_interpreter()
    main(options.slices, Target.of(options.rehearse, options.once))
