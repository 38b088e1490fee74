"""One commit against another, in pairs of processes: `python -m benchmarks.paired_commits OLD NEW`.

OLD and NEW are checkouts of this project (`git worktree add`); their insides may differ, since the cases use public
names alone. Both run with this interpreter and these cases. In a pair, a process of each checkout builds every case;
then each case takes its turns in the order old, new, new, old, in the next pair in the other order. New processes for
every pair, since where memory lies makes a difference of 2% to the same kernels. Cold starts are processes of their
own, in turn, with caches that were filled before. A case's figure is the median over the pairs of new / old, with an
interval from order statistics that holds the true median with a probability of 95% at least (from six pairs on); also
whether both computed the same, bit for bit. Give the same checkout twice to see what the machine alone makes of it.

    python -m benchmarks.paired_commits ../old . --quick
    python -m benchmarks.paired_commits ../old . --rounds 3 --keep pairs.json      again, to add three pairs
    python -m benchmarks.paired_commits ../old . --processor --threads 1           the processor's time, of one thread
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import CLOCK, PAUSE_S, Step, Worker, arguments, table, write

BENCHMARKS = Path(__file__).parent
INSTALLED = ("layers", "mappings", "compiler")
"""Folders of a checkout that are installed inside kernels_hub."""
CONFIDENCE = 0.95

Made = tuple[Step, Any]
"""A step, and what it computes first."""


# -- the cases, which run in a process of a checkout --------------------------------------------------


def _compiled(model: str) -> Made:
    """A call of `compile()`."""
    import torch

    from benchmarks.compiler_models import model as built
    from kernels_hub.compiler import compile as compile_graph

    module, args = built(model)
    run = compile_graph((module, args), "cpu")
    with torch.inference_mode():
        return (lambda: run(*args)), run(*args)


def _published(model: str, folder: Path) -> Made:
    """A call of a module whose forward is a layer that this checkout exported."""
    import torch

    module, args = _kernelized(model, folder)

    def step() -> Any:
        with torch.inference_mode():
            return module(*args)

    return step, step()


def _kernelized(model: str, folder: Path) -> tuple[Any, Any]:
    from benchmarks.compiler_models import model as built
    from kernels_hub import (
        LocalLayerRepository,
        Mode,
        kernelize,
        replace_kernel_forward_from_hub,
        use_kernel_mapping,
    )

    module, args = built(model)
    replace_kernel_forward_from_hub(type(module), "Paired")
    layer = LocalLayerRepository(folder / model, layer_name="Paired")
    with use_kernel_mapping({"Paired": {"cpu": layer}}, inherit_mapping=False):
        kernelize(module, mode=Mode.INFERENCE, device="cpu", use_fallback=False)
    return module, args


def _swaps(modules: int, depth: int) -> Made:
    """`kernelize` of a model of empty layers."""
    from benchmarks.kernelize import swap

    step, _ = swap("kernels_hub", modules, depth)
    return step, None


def _written(peer: str) -> Made:
    """A token of transformers' `generate`."""
    from benchmarks.generation import run

    step, info = run("short", peer)
    return step, info["tokens"]


PUBLISHED = ("mlp", "llama_decode")
"""Models of compiler_models.py that are exported as layers."""

STEADY: dict[str, Callable[[Path], Made]] = {
    "compile: mlp": lambda _: _compiled("mlp"),
    "compile: layer_norm": lambda _: _compiled("layer_norm"),
    "compile: llama_decode": lambda _: _compiled("llama_decode"),
    "compile: bert": lambda _: _compiled("bert"),
    "published: mlp": lambda folder: _published("mlp", folder),
    "published: llama_decode": lambda folder: _published("llama_decode", folder),
    "kernelize: 1,000 layers": lambda _: _swaps(1_000, 1),
    "kernelize: 10,000 nested": lambda _: _swaps(10_000, 4),
    "generation": lambda _: _written("kernels_hub"),
    "generation: compiled": lambda _: _written("compiled"),
}
COLD = {
    "cold start: import": "import kernels_hub",
    "cold start: compile()": "m._compiled('mlp')",
    "cold start: published": "m._published('mlp', folder)",
}
"""What a fresh process that has torch and the model's classes does first."""
QUICK = (
    "compile: mlp", "compile: layer_norm", "published: mlp", "kernelize: 1,000 layers", "generation",
    "cold start: import", "cold start: published",
)  # fmt: skip


def steady(cases: Sequence[str], folder: str) -> tuple[dict[str, Step], dict[str, Any]]:
    """The steps of several cases, for `benchmarks.worker`, and a digest of what each computes."""
    made = {case: STEADY[case](Path(folder)) for case in cases}
    return {case: step for case, (step, _) in made.items()}, {
        "digests": {case: digest(result) for case, (_, result) in made.items()}
    }


def digest(result: Any) -> str | None:
    """Of the bits of tensors, and of other values' text; None of a case that computes nothing."""
    import torch
    from torch.utils import _pytree as pytree

    if result is None:
        return None
    found = hashlib.sha256()
    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, torch.Tensor):
            found.update(leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            found.update(repr(leaf).encode())
    return found.hexdigest()[:16]


def export(models: Sequence[str], folder: str) -> None:
    """Export and build models as layers, for `published`."""
    from benchmarks.compiler_models import model as built
    from kernels_hub.compiler import emit_layer

    for model in models:
        module, args = built(model)
        out = Path(folder) / model
        emit_layer(
            (module, args), layer_name="Paired", out=out, prebuilt=True, triton=False, training=False,
            benchmark=False,
        )  # fmt: skip
        subprocess.run(
            [sys.executable, "-m", "kernels_hub", "build", str(out), "--backend", "cpu"],
            check=True,
            stdout=subprocess.DEVNULL,
        )


# -- checkouts ----------------------------------------------------------------------------------------


class Checkout:
    """A copy of a commit's sources, laid out as an installation, with caches of its own."""

    def __init__(self, name: str, root: Path, scratch: Path, threads: int, clock: str = "") -> None:
        self.name, self.threads, self.clock = name, threads, clock
        self.tree, self.layers = scratch / name / "tree", scratch / name / "layers"
        self.caches = scratch / name / "caches"
        lay_out(root.resolve(), self.tree)
        self.layers.mkdir()

    @property
    def environment(self) -> dict[str, str]:
        """Of its processes."""
        return {
            "PYTHONPATH": str(self.tree),
            "PYTHONWARNINGS": "ignore",
            "PYTHONDONTWRITEBYTECODE": "",  # what is installed has its bytecode beside it: so shall this
            "KERNELS_HUB_CACHE": str(self.caches),
            "HF_HUB_OFFLINE": "1",
            CLOCK: self.clock,
            "OMP_NUM_THREADS": str(self.threads),
            "MKL_NUM_THREADS": str(self.threads),
        }

    def worker(self, cases: Sequence[str]) -> Worker:
        """A process that builds the cases."""
        given = {"cases": list(cases), "folder": str(self.layers)}
        case = "benchmarks.paired_commits:steady"
        return Worker(self.name, case, given, self.threads, self.environment, self.tree)

    def run(self, code: str) -> str:
        """What a process of its own prints."""
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=self.tree, env={**os.environ, **self.environment},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{self.name}: {code[:200]} failed:\n{done.stderr}")
        return done.stdout

    def start(self, code: str) -> float:
        """Seconds of the first thing that a fresh process does with the library."""
        setup = (
            "import torch, benchmarks.compiler_models, benchmarks.paired_commits as m\n"
            "from pathlib import Path\n"
            f"torch.set_num_threads({self.threads}); folder = Path({str(self.layers)!r})\n"
        )
        timed = f"from benchmarks.harness import now; began = now(); {code}\nprint(now() - began)"
        return float(self.run(setup + timed).split()[-1])


def lay_out(root: Path, tree: Path) -> None:
    """A copy that imports as an installation of a checkout does, its entry points included; this tool's benchmarks."""
    package = tree / "kernels_hub"
    for name in ("", *INSTALLED):
        shutil.copytree(
            root / (name or "kernels_hub"),
            package / name,
            ignore=shutil.ignore_patterns("__pycache__", "build"),
        )
    (tree / "benchmarks").symlink_to(BENCHMARKS)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = re.search(r'__version__ = "(.+)"', (package / "__init__.py").read_text(encoding="utf-8"))
    metadata = tree / "kernels_hub-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: kernels-hub\nVersion: {version[1] if version else 0}\n"
    )
    groups = project.get("entry-points", {}).items()
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {at}\n" for name, at in rows.items()) for group, rows in groups
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))


# -- pairs --------------------------------------------------------------------------------------------


def measured(
    old: Checkout, new: Checkout, cases: Sequence[str], number: int, seconds: float
) -> dict[str, Any]:
    """One pair: for each case the ratio new / old, both times, and whether the results are equal."""
    pair: dict[str, Any] = {}
    order = (old, new, new, old) if number % 2 == 0 else (new, old, old, new)
    for case in cases:
        if case in COLD:
            times: dict[str, list[float]] = {"old": [], "new": []}
            for checkout in order[: 2 if case != "cold start: import" else 4]:
                times[checkout.name].append(checkout.start(COLD[case]))
            pair[case] = _row(times, equal=None)
    calls = [case for case in cases if case in STEADY]
    if not calls:
        return pair
    workers = {checkout.name: checkout.worker(calls) for checkout in (old, new)}
    try:
        for checkout in order[:2]:
            workers[checkout.name].start()
        digests = {name: worker.info["digests"] for name, worker in workers.items()}
        for case in calls:
            times = {"old": [], "new": []}
            for checkout in order:
                time.sleep(PAUSE_S)
                times[checkout.name].append(workers[checkout.name].turn(seconds, case))
            old_digest, new_digest = (digests[name][case] for name in ("old", "new"))
            pair[case] = _row(times, equal=None if old_digest is None else old_digest == new_digest)
    finally:
        for worker in workers.values():
            worker.stop()
    return pair


def _row(times: Mapping[str, Sequence[float]], equal: bool | None) -> dict[str, Any]:
    old, new = (statistics.mean(times[name]) for name in ("old", "new"))
    return {"old_s": old, "new_s": new, "ratio": new / old, "equal": equal}


def interval(ratios: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """An interval for the median of what the ratios are drawn from, and its confidence, from order statistics.

    Between the k-th least and the k-th largest of n lies the median unless fewer than k are on one side of it, which
    a binomial distribution of n and 1/2 gives. The narrowest with the confidence that is asked for; the whole range,
    with what that has, where none has. Source: David and Nagaraja, Order Statistics, 7.1.

    >>> interval([0.98, 1.0, 1.01, 0.99, 1.02, 1.0, 0.97, 1.03, 1.0])
    (0.98, 1.02, 0.9609375)
    """
    ordered, count = sorted(ratios), len(ratios)

    def inside(k: int) -> float:
        return float(1 - 2 * sum(math.comb(count, i) for i in range(k)) / 2**count)

    k = max((k for k in range(1, (count + 1) // 2 + 1) if inside(k) >= confidence), default=1)
    return ordered[k - 1], ordered[-k], inside(k)


def summary(pairs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each case's median ratio, its interval, and the medians of both times."""
    result = {}
    for case in dict.fromkeys(case for pair in pairs for case in pair):
        rows = [pair[case] for pair in pairs if case in pair]
        low, high, confidence = interval([row["ratio"] for row in rows])
        result[case] = {
            "pairs": len(rows),
            "ratio": statistics.median(row["ratio"] for row in rows),
            "low": low,
            "high": high,
            "confidence": confidence,
            "old_s": statistics.median(row["old_s"] for row in rows),
            "new_s": statistics.median(row["new_s"] for row in rows),
            "equal": None if rows[0]["equal"] is None else all(row["equal"] for row in rows),
        }
    return result


def _shown(case: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    equal = {None: "", True: "equal", False: "differs"}[row["equal"]]
    between = f"{row['low']:.3f} to {row['high']:.3f} ({row['confidence']:.0%})"
    times = (f"{row[name] * 1e3:.3f}" for name in ("old_s", "new_s"))
    return (case, str(row["pairs"]), *times, f"{row['ratio']:.3f}", between, equal)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("old", type=Path, help="a checkout")
    parser.add_argument("new", type=Path, help="another, or the same for a control")
    parser.add_argument("--cases", nargs="*", choices=(*STEADY, *COLD), help="all by default")
    parser.add_argument("--quick", action="store_true", help="the quick cases, with shorter turns")
    parser.add_argument(
        "--processor",
        action="store_true",
        help="compare the processor's time (for a machine that others use, too)",
    )
    parser.add_argument("--keep", type=Path, help="a file of pairs: those in it count, and these are added")
    options = parser.parse_args()
    cases = options.cases or (QUICK if options.quick else (*STEADY, *COLD))
    pairs = json.loads(options.keep.read_text()) if options.keep and options.keep.exists() else []
    with tempfile.TemporaryDirectory() as scratch:
        clock = "processor" if options.processor else ""
        old = Checkout("old", options.old, Path(scratch), options.threads, clock)
        new = Checkout("new", options.new, Path(scratch), options.threads, clock)
        exported = [
            model
            for model in PUBLISHED
            if any(case.startswith("published") and model in case for case in cases)
        ]
        if "cold start: published" in cases and "mlp" not in exported:
            exported.append("mlp")
        for checkout in (old, new):  # and both caches are filled
            checkout.run(
                f"import benchmarks.paired_commits as m; m.export({exported!r}, {str(checkout.layers)!r})"
            )
            for case in cases:
                if case in COLD:
                    checkout.start(COLD[case])
        for _ in range(options.rounds):
            pairs.append(measured(old, new, cases, len(pairs), 0.1 if options.quick else 0.4))
            if options.keep:
                options.keep.write_text(json.dumps(pairs, indent=1) + "\n", encoding="utf-8")
            print(
                f"pair {len(pairs)}: "
                + ", ".join(f"{case} {row['ratio']:.3f}" for case, row in pairs[-1].items()),
                flush=True,
            )
    result = summary(pairs)
    header = ("case", "pairs", "old ms", "new ms", "new / old", "interval", "results")
    print(table(header, [_shown(case, row) for case, row in result.items()]))
    if options.write:
        print(
            write("paired-commits", {"threads": options.threads, "clock": clock or "wall", "cases": result})
        )


if __name__ == "__main__":
    main()
