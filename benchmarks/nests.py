"""Loops that rewrites find for products, beside the runtime's hand-written kernel: `python -m benchmarks.nests`.

Each product is a graph of two inputs. The e-graph of its naive loops (`compiler.search.nests`) gives the cheapest few
plans by its model; the fastest of these in a first round of turns is then timed anew against the kernel that `compile`
takes by itself, in turn in one process, beside a second executable of that kernel as the control. A ratio is the
median, over the rounds, of the kernel's time over the plan's.
"""

from __future__ import annotations

import os
import statistics
from typing import Any

from benchmarks.harness import arguments, table, write
from benchmarks.search import paired

SHAPES = ((128, 128, 128), (512, 64, 512), (1, 1024, 1024))
"""Rows, depth, columns."""
PLANS = 6
BAR = 0.85
"""Of the hand-written kernel's speed."""


def run(shape: tuple[int, int, int], rounds: int) -> dict[str, Any]:
    """The figures of a product."""
    import torch

    from kernels_hub import compiler
    from kernels_hub.compiler.schedule.choices import Choices
    from kernels_hub.compiler.search.nests.nests import nest_choices

    rows, depth, columns = shape
    graph = compiler.Graph("product")
    graph.output("y", graph.input("a", (rows, depth)) @ graph.input("b", (depth, columns)))
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(rows, depth, generator=generator), torch.randn(depth, columns, generator=generator)
    found = list(nest_choices(graph, Choices(), PLANS))
    usual, control = (compiler.compile(graph, "cpu", engines=("cpp",)) for _ in range(2))
    planned = [
        compiler.compile(graph, "cpu", engines=("cpp",), knobs={"cpp": dict(one.choices)}) for one in found
    ]
    trial = paired([lambda one=one: one(a, b) for one in planned], max(3, rounds // 3))
    spent = [statistics.median(one) for one in zip(*trial, strict=True)]
    best = spent.index(min(spent))
    times = paired(
        [lambda: usual(a, b), lambda: planned[best](a, b), lambda: control(a, b), lambda: a @ b], rounds
    )
    kernel, plan, again, eager = ([one[place] for one in times] for place in range(4))
    exact = a.double() @ b.double()
    return {
        "us": {
            "kernel": statistics.median(kernel) * 1e6, "plan": statistics.median(plan) * 1e6,
            "eager": statistics.median(eager) * 1e6,
        },
        "of_the_kernel": statistics.median(one / other for one, other in zip(kernel, plan, strict=True)),
        "control": statistics.median(one / other for one, other in zip(kernel, again, strict=True)),
        "error": float((planned[best](a, b) - exact).norm() / exact.norm()),
        "terms": found[best].terms,
        "plan": str(found[best].priced.plan),
        "rewrites": [str(step) for step in found[best].steps],
    }  # fmt: skip


def main() -> None:
    parser = arguments(__doc__ or "")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    import torch

    from kernels_hub.calibration.processor import processor_name

    torch.set_num_threads(options.threads)
    figures = {" x ".join(map(str, shape)): run(shape, options.rounds) for shape in SHAPES}
    rows = [
        (
            name, *(f"{one['us'][peer]:.1f}" for peer in ("eager", "kernel", "plan")), f"{one['of_the_kernel']:.2f}",
            f"{one['control']:.2f}", f"{one['error']:.1e}", str(one["terms"]), str(len(one["rewrites"])),
        )
        for name, one in figures.items()
    ]  # fmt: skip
    header = (
        "product",
        "eager us",
        "kernel us",
        "plan us",
        "of the kernel",
        "control",
        "error",
        "terms",
        "rewrites",
    )
    print(table(header, rows))
    behind = [name for name, one in figures.items() if one["of_the_kernel"] < BAR]
    print(f"below {BAR} of the hand-written kernel: {', '.join(behind) or 'none'}")
    if options.write:
        print(write("nests", {"threads": options.threads, "products": figures}, processor_name()))


if __name__ == "__main__":
    main()
