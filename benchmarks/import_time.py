"""What `import kernels_hub` adds to Python's own start, beside HF `kernels`: `python -m benchmarks.import_time`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks.harness import arguments, table, write

CASES = {"python alone": "pass", "kernels_hub": "import kernels_hub", "kernels": "import kernels"}


def start(code: str) -> float:
    """Seconds of one fresh interpreter running `code`."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = arguments(__doc__ or "")
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(options.rounds + 1):
        for name, code in CASES.items():
            times[name].append(start(code))
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    extra = {name: (median - medians["python alone"]) * 1e3 for name, median in medians.items()}
    print(
        table(("", "ms beyond Python's own start"), [(name, f"{value:.1f}") for name, value in extra.items()])
    )
    if options.write:
        print(write("import-time", {"extra_ms": {name: round(value, 2) for name, value in extra.items()}}))


if __name__ == "__main__":
    main()
