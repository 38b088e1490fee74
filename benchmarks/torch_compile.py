"""20 models under `torch.compile(backend="kernels_hub")`, against inductor and eager.

Run as `python -m benchmarks.torch_compile`.

Models of `benchmarks.zoo_models` (small, "4x64") and `benchmarks.compiler_models` (larger), float32, one shape; two are
trained: the mean square of the first result, and its gradients of all weights. Every model by the peers

    eager        PyTorch as it is
    inductor     torch.compile(model, backend="inductor")
    control      inductor once more, in a process of its own: its spread is what a ratio of 1 looks like here
    kernels_hub  torch.compile(model, backend="kernels_hub")

A set of processes is a new process for each peer, one after the other, in another order in every set. Each builds the
model, calls it eager, and then, with caches that are empty, calls it compiled: the time from torch.compile to the first
result is the cold start, imports of the compiler and compiling its C++ included, those of torch and transformers not.
After that the peers of a set take turns: see `benchmarks.harness`. A ratio of calls is the median over a set's rounds,
one of cold starts is of one set; both are quoted as the median over the sets, with the least and the largest.

Which graphs fell back, and their share of the FLOPs of all graphs, is what the backend's `statistics` say in the first
set. Errors are the largest difference from eager's results, over the largest of these. In training both are compared
with the model in float64, whose gradients change by more than rounding where a ReLU's input is nearly zero; eager's own
error stands beside, and a peer may have twice that.

On a machine with other work, --processor-time counts what a peer's threads use instead of what passes, in calls alone.
With --write, what is measured is kept after each model, and what was kept today is not measured again.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import CLOCK, Worker, arguments, compare, table, write, written_today

FORM = "4x64"
MODELS = {
    "bert": "compiler", "modernbert": "zoo", "deberta_v2": "zoo", "gpt2": "zoo", "llama": "compiler",
    "llama_decode": "compiler", "qwen3": "zoo", "mixtral": "zoo", "t5": "zoo", "whisper": "zoo", "wav2vec2": "zoo",
    "vit": "zoo", "swin": "zoo", "convnext": "zoo", "resnet50": "compiler", "mobilenet_v2": "zoo",
    "unet_block": "compiler", "mlp": "compiler", "llama_training": "zoo", "resnet_training": "zoo",
}  # fmt: skip
"""Name -> where the model is from: `benchmarks.compiler_models` or `benchmarks.zoo_models`."""
_TRAINING = "_training"

PEERS = ("eager", "inductor", "control", "kernels_hub")
_BACKENDS = {"inductor": "inductor", "control": "inductor", "kernels_hub": "kernels_hub"}
_CACHES = {
    name: name.lower() for name in ("KERNELS_HUB_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
}

SPEED, COLD_START, FELL_BACK, ERROR = 1.0, 0.5, 0.1, 1e-3
"""The bars: geometric mean of the calls' ratios to inductor, at least; of the cold starts' ratios to inductor's, at
most; mean of the models' shares of FLOPs in graphs that fell back, at most; error of a model, at most."""

Result = list[Any]


def built(name: str) -> tuple[Any, Callable[[Any], Result]]:
    """A model, and what calls it or its compiled form once: tensors of results, or of the loss and gradients."""
    import torch

    from benchmarks.zoo_breadth import tensors

    if MODELS[name] == "compiler":
        from benchmarks.compiler_models import model as of_the_compiler

        module, args = of_the_compiler(name)
        given: dict[str, Any] = {}
    else:
        from benchmarks.zoo_models import build, inputs

        zoo = name.removesuffix(_TRAINING)
        module, args, given = build(zoo), (), inputs(zoo, FORM)
    if not name.endswith(_TRAINING):

        def infer(model: Any) -> Result:
            with torch.no_grad():
                return tensors(model(*args, **given))

        return module, infer
    module.train()

    def train(model: Any) -> Result:
        model.zero_grad(set_to_none=True)
        dtype = next(model.parameters()).dtype
        cast = {key: one.to(dtype) if one.is_floating_point() else one for key, one in given.items()}
        loss = model(*args, **cast)[0].square().mean()
        loss.backward()
        return [loss.detach(), *(one.grad for one in model.parameters() if one.grad is not None)]

    return module, train


def run(model: str, peer: str) -> tuple[Callable[[], Any], dict[str, Any]]:
    """A step that runs a model once, by a peer, and how it started; for `benchmarks.worker`."""
    import copy
    import warnings

    import torch
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    module, call = built(model)
    own = call(module)
    if peer not in _BACKENDS:
        return lambda: call(module), {}
    expected = call(copy.deepcopy(module).double()) if model.endswith(_TRAINING) else own
    own_error = difference_of(own, expected)
    began = time.perf_counter()
    compiled = torch.compile(module, backend=_BACKENDS[peer])
    found = call(compiled)
    info: dict[str, Any] = {
        "cold_start_s": round(time.perf_counter() - began, 3), "error": difference_of(found, expected),
        "own_error": own_error,
    }  # fmt: skip
    if peer == "kernels_hub":
        info.update(_counted())
    return lambda: call(compiled), info


def difference_of(found: Result, expected: Result) -> float:
    """The largest difference, over the largest number of its tensor; infinite where shapes differ."""
    from benchmarks.zoo_breadth import difference

    said = difference([one.to(other.dtype) for one, other in zip(found, expected, strict=True)], expected)
    return float(said["error"]) if said["tokens"] else float("inf")


def _counted() -> dict[str, Any]:
    """What became of the graphs that the backend got."""
    from kernels_hub.compiler.dynamo.statistics import statistics as counted

    return {
        "graphs": len(counted.graphs),
        "fell_back_share": round(1 - counted.flops_share, 4),
        "fell_back": [
            f"{one.backend} ({one.kind}, {one.ops} ops): {one.reason}" for one in counted.fell_back
        ],
    }


def measured(model: str, peers: Sequence[str], options: Any) -> dict[str, Any]:
    """The row of a model."""
    comparisons = []
    for number in range(options.sets):
        order = [*peers[number % len(peers) :], *peers[: number % len(peers)]]
        with tempfile.TemporaryDirectory() as folder:
            workers = [
                Worker(peer, "benchmarks.torch_compile:run", {"model": model, "peer": peer}, options.threads,
                       _environment(Path(folder) / peer, processor_time=options.processor_time))
                for peer in order
            ]  # fmt: skip
            comparisons.append(compare(workers, rounds=options.rounds, seconds=options.seconds))
    first = comparisons[0].info
    starts = {
        peer: [one.info[peer]["cold_start_s"] for one in comparisons] for peer in peers if peer in _BACKENDS
    }
    row: dict[str, Any] = {
        "ms": {
            peer: round(statistics.median(one.median(peer) for one in comparisons) * 1e3, 4) for peer in peers
        },
        "cold_start_s": {peer: round(statistics.median(each), 3) for peer, each in starts.items()},
        "errors": {peer: max(one.info[peer]["error"] for one in comparisons) for peer in starts},
        "error_of_eager": first["kernels_hub"]["own_error"],
        **{name: first["kernels_hub"][name] for name in ("graphs", "fell_back_share", "fell_back")},
        "load": round(os.getloadavg()[0], 2),
    }
    for base in ("eager", "inductor"):
        row[f"faster_than_{base}"] = {
            peer: _spread([one.speedup(peer, base) for one in comparisons]) for peer in peers if peer != base
        }
    row["cold_start_of_inductor"] = {
        peer: _spread([a / b for a, b in zip(starts[peer], starts["inductor"], strict=True)])
        for peer in starts
        if peer != "inductor"
    }
    return row


def _environment(folder: Path, *, processor_time: bool) -> dict[str, str]:
    """Empty caches. What is installed has its bytecode beside it: so shall what runs from a checkout."""
    environment = {name: str(folder / path) for name, path in _CACHES.items()}
    environment["PYTHONDONTWRITEBYTECODE"] = ""
    return {**environment, **({CLOCK: "processor", "OMP_WAIT_POLICY": "passive"} if processor_time else {})}


def _spread(ratios: Sequence[float]) -> list[float]:
    """Median, least and largest."""
    return [round(one, 3) for one in (statistics.median(ratios), min(ratios), max(ratios))]


def summary(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By what is judged: its figure, that of the control, the bar, and whether it is met."""

    def mean(key: str, peer: str) -> float | None:
        each = [row[key][peer][0] for row in rows.values() if peer in row[key]]
        return round(statistics.geometric_mean(each), 3) if each else None

    speed, start = (mean(key, "kernels_hub") for key in ("faster_than_inductor", "cold_start_of_inductor"))
    assert speed is not None
    assert start is not None
    share = round(statistics.mean(row["fell_back_share"] for row in rows.values()), 4)
    errors = {model: (row["errors"]["kernels_hub"], row["error_of_eager"]) for model, row in rows.items()}
    wrong = [model for model, (is_, own) in errors.items() if not is_ <= max(ERROR, 2 * own)]
    return {
        "times as fast as inductor": {
            "is": speed, "control": mean("faster_than_inductor", "control"), "bar": SPEED, "met": speed >= SPEED,
        },
        "times as fast as eager": {"is": mean("faster_than_eager", "kernels_hub")},
        "cold start, over inductor's": {
            "is": start, "control": mean("cold_start_of_inductor", "control"), "bar": COLD_START,
            "met": start <= COLD_START,
        },
        "share of FLOPs that fell back": {"is": share, "bar": FELL_BACK, "met": share <= FELL_BACK},
        "models with a larger error": {"is": wrong, "bar": ERROR, "met": not wrong},
    }  # fmt: skip


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", nargs="*", metavar="MODEL", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--no-control", action="store_true", help="without the second inductor")
    parser.add_argument("--sets", type=int, default=3, help="of processes")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a turn")
    parser.add_argument("--processor-time", action="store_true", help="of all threads; see above")
    parser.set_defaults(rounds=7)
    options = parser.parse_args(given)
    from kernels_hub.calibration.processor import processor_name

    peers = [peer for peer in PEERS if not (options.no_control and peer == "control")]
    kind = "torch-compile" + ("-processor-time" if options.processor_time else "")
    rows: dict[str, Any] = written_today(kind, processor_name()).get("models", {}) if options.write else {}
    for model in (one for one in options.only if one not in rows):
        row = rows[model] = measured(model, peers, options)
        for reason in row["fell_back"]:
            print(f"{model}: falls back to {reason}", flush=True)
        print(_told(model, row), flush=True)
        if options.write:
            about = {key: vars(options)[key] for key in ("threads", "sets", "rounds", "seconds")}
            write(kind, {**about, "summary": summary(rows), "models": rows}, processor_name())
    print(table(_HEADER, [_cells(model, row) for model, row in rows.items()]))
    for what, said in summary(rows).items():
        print(what, said)


_HEADER = (
    "model",
    "eager ms",
    "of eager",
    "of inductor",
    "control",
    "cold start s",
    "of inductor's",
    "fell back",
    "error",
)


def _cells(model: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    calls, start = row["faster_than_inductor"], row["cold_start_of_inductor"]
    return (
        model, f"{row['ms']['eager']:.2f}", f"{row['faster_than_eager']['kernels_hub'][0]:.2f}",
        f"{calls['kernels_hub'][0]:.2f}", f"{calls['control'][0]:.2f}" if "control" in calls else "",
        f"{row['cold_start_s']['kernels_hub']:.1f}", f"{start['kernels_hub'][0]:.2f}",
        f"{row['fell_back_share']:.0%}", f"{row['errors']['kernels_hub']:.0e}",
    )  # fmt: skip


def _told(model: str, row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {cell}" for name, cell in zip(_HEADER, _cells(model, row), strict=True))


if __name__ == "__main__":
    main()
