"""Blocks of models: what a search finds beside what the compiler makes by itself: `python -m benchmarks.search`.

Each block is searched anew, for `--budget` seconds at most; then the default and the winner run in turn in one
process, so that what disturbs the machine disturbs both. A ratio is the median, over the rounds, of default over
searched. Run it on a machine that does nothing else: it takes a minute a block at most with the default budget.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import arguments, table, write

ROOT = Path(__file__).parents[1]
_LEAST = 0.9
"""A winner that is slower than this, of the default, is called a loss."""


def paired(calls: Sequence[Any], rounds: int, seconds: float = 0.1) -> list[list[float]]:
    """Seconds of each call, in each of so many rounds in which they alternate."""
    from benchmarks.harness import measure

    for call in calls:
        call()
    return [[measure(call, seconds) for call in calls] for _ in range(rounds)]


def run(name: str, budget: float, seed: int, rounds: int) -> dict[str, Any]:
    """The figures of a block."""
    import torch

    from benchmarks.search_blocks import block
    from kernels_hub import compiler
    from kernels_hub.compiler.plan.tuning_database import TuningDatabase
    from kernels_hub.compiler.search.search import search

    module, args = block(name)
    with torch.inference_mode():
        graph = compiler.import_torch(module, args)
        with tempfile.TemporaryDirectory() as folder:
            database = TuningDatabase(folder)
            found = search(graph, "cpu", budget=budget, seed=seed, database=database)
            again = search(graph, "cpu", budget=budget, seed=seed, database=database)
        default, searched = compiler.compile(graph, "cpu"), found.plan()
        expected = module(*args)
        wanted = expected if isinstance(expected, tuple) else (expected,)
        got = searched(*args)
        results = got if isinstance(got, tuple) else (got,)
        error = max(float((a - b).norm() / b.norm()) for a, b in zip(results, wanted, strict=True))
        times = paired([lambda: default(*args), lambda: searched(*args), lambda: module(*args)], rounds)
    ratios = [before / after for before, after, _ in times]
    return {
        "default_us": statistics.median(one[0] for one in times) * 1e6,
        "searched_us": statistics.median(one[1] for one in times) * 1e6,
        "eager_us": statistics.median(one[2] for one in times) * 1e6,
        "ratio": statistics.median(ratios),
        "ratios": [min(ratios), max(ratios)],
        "origin": found.winner.candidate.origin,
        "choices": dict(found.choices),
        "graph": str(found.graph).replace(f"{ROOT}/", ""),
        "tried": len(found.rows),
        "seconds": found.elapsed,
        "chosen_again": again.winner.candidate.digest == found.winner.candidate.digest,
        "error": error,
    }


def main() -> None:
    from benchmarks.search_blocks import BLOCKS

    parser = arguments(__doc__ or "")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of the search of a block")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--blocks", nargs="+", choices=tuple(BLOCKS), default=tuple(BLOCKS))
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    import torch

    torch.set_num_threads(options.threads)
    figures = {}
    for name in options.blocks:
        figures[name] = one = run(name, options.budget, options.seed, options.rounds)
        print(f"{name}: {one['ratio']:.2f} times the default, {one['origin']}", flush=True)
    rows = [
        (
            name, f"{one['default_us']:.0f}", f"{one['searched_us']:.0f}", f"{one['eager_us']:.0f}",
            f"{one['ratio']:.2f}", str(one["tried"]), f"{one['seconds']:.0f}", f"{one['error']:.1e}", one["origin"],
        )
        for name, one in figures.items()
    ]  # fmt: skip
    header = ("block", "default us", "searched us", "eager us", "ratio", "tried", "s", "error", "chosen")
    print(table(header, rows))
    better = [name for name, one in figures.items() if one["ratio"] >= 1.1]
    worse = [name for name, one in figures.items() if one["ratio"] < _LEAST]
    print(
        f"10% or more faster: {len(better)} ({', '.join(better) or 'none'}); slower: {', '.join(worse) or 'none'}"
    )
    if options.write:
        print(write("search", {"threads": options.threads, "budget_s": options.budget, "blocks": figures}))


if __name__ == "__main__":
    main()
