"""48 classes of transformers or, with --timm, 20 families of timm, eager against kernelized, in turn.

Run as `python -m benchmarks.zoo`.

The models of `benchmarks.zoo_models`, each in its forms, by the peers

    eager     PyTorch as it is
    control   eager once more, in a process of its own: its spread is what a ratio of 1 looks like here
    default   kernelize(model, mode=Mode.INFERENCE)
    compiled  the mapping `compiled` (with --compiled), which its first calls wait for

A few models share a set of processes, a process a peer, so that importing costs once. In a set the peers take short
turns, and a peer's time is its least disturbed turn: a neighbour on the machine can only lengthen one. But how fast a
model is also depends on its process (where its memory lies, say), by up to a half; so there are several sets, and a
ratio is the median over the sets, with the least and the largest as its spread. Each peer's first output is compared
with eager's, and its tokens where it generates.

On a machine with other work --processor-time counts what the threads of a peer use instead of what passes, and has them
wait asleep: it does not see how well the threads share the work.

With --write, what is measured is kept after each set of models, and what was kept today is not measured again.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.harness import Worker, arguments, table, write, written_today
from benchmarks.zoo_models import GENERATE, NEW_TOKENS, TIMM, ZOO, build, forms, inputs

_TOGETHER = 6
_PAUSE_S = 0.03
_LEAST, _GOAL = 0.95, 1.1


def run(
    models: Sequence[str], peer: str, only_forms: Sequence[str], processor_time: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Steps by "model form", each of which runs one model once, and what a peer has to say of its models."""
    import warnings

    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    steps: dict[str, Callable[[], Any]] = {}
    info: dict[str, Any] = {}
    for name in models:
        told = info[name] = {}
        model = build(name)
        for form in forms(name):
            if form in only_forms:
                steps[f"{name} {form}"] = _step(model, name, form, processor_time)
        if peer not in ("eager", "control"):
            told["errors"] = _errors(model, steps, name, peer)
            told.update(_told(model))
    return steps, {"models": info}


def _step(model: Any, name: str, form: str, processor_time: bool) -> Callable[[], Any]:
    import torch

    given = inputs(name, form)

    def step() -> float:
        clock = time.process_time if processor_time else time.perf_counter
        started = clock()
        output(model, given, form)
        return clock() - started

    def output(model: Any, given: dict[str, Any], form: str) -> Any:
        with torch.inference_mode():
            if form == GENERATE:
                return model.generate(
                    **given, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False
                )
            result = model(**given)
            return result if isinstance(result, torch.Tensor) else result[0]

    step.output = lambda: output(model, given, form)  # type: ignore[attr-defined]
    return step


def _errors(model: Any, steps: dict[str, Any], name: str, peer: str) -> dict[str, float]:
    """Kernelize a model, and compare its outputs with those of before: the largest difference by form."""
    import torch

    from kernels_hub import Mode, kernelize, load_kernel_mapping, use_kernel_mapping

    mine = {key.partition(" ")[2]: step for key, step in steps.items() if key.partition(" ")[0] == name}
    expected = {form: step.output() for form, step in mine.items()}
    if peer == "compiled":
        with use_kernel_mapping(load_kernel_mapping("compiled"), inherit_mapping=False):
            kernelize(model, mode=Mode.INFERENCE, wait=True)
    else:
        kernelize(model, mode=Mode.INFERENCE)
    found = {}
    for form, step in mine.items():
        actual = step.output()
        if form == GENERATE:
            found[form] = 0.0 if torch.equal(actual, expected[form]) else math.inf
        else:
            found[form] = float((actual - expected[form]).abs().max() / expected[form].abs().max())
    return found


def _told(model: Any) -> dict[str, Any]:
    from kernels_hub import report

    rows = report(model)
    layers = sorted({str(row.layer_name) for row in rows.swapped})
    weights = sum(one.nbytes for one in model.parameters())
    return {
        "swapped": layers,
        "weights_mib": round(weights / 2**20, 1),
        "packed_mib": round(rows.packed_nbytes / 2**20, 1),
    }


def measured(models: Sequence[str], peers: Sequence[str], options: Any) -> dict[str, dict[str, Any]]:
    """The rows of models that share their processes, by "model form"."""
    cases = [f"{model} {form}" for model in models for form in forms(model) if form in options.forms]
    times: dict[str, dict[str, list[float]]] = {case: {peer: [] for peer in peers} for case in cases}
    loads, said = [os.getloadavg()[0]], {}
    for set_ in range(options.sets):
        said = _set_of_processes(
            models, [*peers[set_ % len(peers) :], *peers[: set_ % len(peers)]], options, times
        )
        loads.append(os.getloadavg()[0])
    rows = {}
    for case in cases:
        model, _, form = case.partition(" ")
        told = {peer: info["models"][model] for peer, info in said.items()}
        rows[case] = {**_result(form, times[case], told), "load": [min(loads), max(loads)]}
    return rows


def _set_of_processes(
    models: Sequence[str], peers: Sequence[str], options: Any, times: dict[str, dict[str, list[float]]]
) -> dict[str, dict[str, Any]]:
    """Adds to the times of each case and peer that of its fastest turn in one new process; what the peers said."""
    given = {"models": list(models), "only_forms": options.forms, "processor_time": options.processor_time}
    environment = {"OMP_WAIT_POLICY": "passive"} if options.processor_time else {}
    workers = [
        Worker(peer, "benchmarks.zoo:run", {**given, "peer": peer}, options.threads, environment)
        for peer in peers
    ]
    started: list[Worker] = []
    try:
        for worker in workers:
            worker.start()
            started.append(worker)
        for case, taken in times.items():
            turns: dict[str, list[float]] = {peer: [] for peer in peers}
            for round_ in range(options.rounds):
                for worker in workers if round_ % 2 == 0 else reversed(workers):
                    time.sleep(_PAUSE_S)
                    turns[worker.name].append(worker.turn(options.seconds, case))
            for peer, each in turns.items():
                taken[peer].append(min(each))
        return {worker.name: worker.info for worker in workers}
    finally:
        for worker in started:
            worker.stop()


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", nargs="*", metavar="MODEL", help="these models alone")
    parser.add_argument(
        "--timm", action="store_true", help="families of timm in the place of transformers' classes"
    )
    parser.add_argument("--forms", nargs="*", default=["4x64", "1x7", GENERATE], help="these forms alone")
    parser.add_argument("--compiled", action="store_true", help="the mapping `compiled` as well")
    parser.add_argument("--sets", type=int, default=5, help="of processes")
    parser.add_argument("--seconds", type=float, default=0.04, help="of a turn")
    parser.add_argument("--processor-time", action="store_true", help="of all threads; see above")
    parser.set_defaults(rounds=4)
    options = parser.parse_args()
    options.only = options.only or list(TIMM if options.timm else ZOO)
    peers = ["eager", "control", "default", *(["compiled"] if options.compiled else [])]
    from kernels_hub.calibration.processor import processor_name

    kind = ("zoo-timm" if options.timm else "zoo") + ("-processor-time" if options.processor_time else "")
    results: dict[str, dict[str, Any]] = (
        written_today(kind, processor_name()).get("cases", {}) if options.write else {}
    )
    missing = [model for model in options.only if not _is_there(model, peers, options.forms, results)]
    for start in range(0, len(missing), _TOGETHER):
        rows = measured(missing[start : start + _TOGETHER], peers, options)
        for case, row in rows.items():
            results[case] = row
            print(case, f"{row['eager_ms']:.2f} ms", row["ratio"], row["spread"], row["swapped"], flush=True)
        if options.write:
            about = {key: vars(options)[key] for key in ("threads", "sets", "rounds", "seconds")}
            write(
                kind, {**about, "summary": _summary(results, peers[1:]), "cases": results}, processor_name()
            )
    header = ("case", "eager ms", *peers[1:], "error", "swapped")
    print(table(header, [_cells(case, row, peers[1:]) for case, row in results.items()]))
    for peer, told in _summary(results, peers[1:]).items():
        print(peer, told)


def _is_there(model: str, peers: Sequence[str], only_forms: Sequence[str], results: dict[str, Any]) -> bool:
    """Whether results hold a model in each form by each peer."""
    return all(
        set(peers[1:]) <= results.get(f"{model} {form}", {}).get("ratio", {}).keys()
        for form in forms(model)
        if form in only_forms
    )


def _result(form: str, times: dict[str, list[float]], told: dict[str, Any]) -> dict[str, Any]:
    eager = times["eager"]
    ratios = {
        peer: [before / after for before, after in zip(eager, taken, strict=True)]
        for peer, taken in times.items()
        if peer != "eager"
    }
    errors = {peer: said["errors"][form] for peer, said in told.items() if "errors" in said}
    return {
        "eager_ms": round(statistics.median(eager) * 1e3, 4),
        "ratio": {peer: round(statistics.median(each), 3) for peer, each in ratios.items()},
        "spread": {peer: [round(min(each), 3), round(max(each), 3)] for peer, each in ratios.items()},
        "errors": errors,
        "swapped": told["default"]["swapped"],
        "weights_mib": told["default"]["weights_mib"],
        "packed_mib": told["default"]["packed_mib"],
    }


def _summary(results: dict[str, dict[str, Any]], peers: Sequence[str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for peer in peers:
        ratios = {case: row["ratio"][peer] for case, row in results.items() if peer in row["ratio"]}
        by_class: dict[str, list[float]] = {}
        for case, ratio in ratios.items():
            by_class.setdefault(case.partition(" ")[0], []).append(ratio)
        if not ratios:
            continue
        found[peer] = {
            "geometric_mean": round(statistics.geometric_mean(ratios.values()), 3),
            "median": round(statistics.median(ratios.values()), 3),
            "least": min(ratios.items(), key=lambda item: item[1]),
            f"below {_LEAST}": sorted(case for case, ratio in ratios.items() if ratio < _LEAST),
            f"below {_LEAST} and the control": sorted(
                case
                for case, ratio in ratios.items()
                if ratio < min(_LEAST, results[case]["spread"]["control"][0])
            ),
            f"classes above {_GOAL}": sum(
                statistics.geometric_mean(each) > _GOAL for each in by_class.values()
            ),
            "classes": len(by_class),
        }
    return found


def _cells(case: str, row: dict[str, Any], peers: Sequence[str]) -> tuple[str, ...]:
    ratios = (f"{row['ratio'][peer]:.2f}" if peer in row["ratio"] else "" for peer in peers)
    error = max(row["errors"].values(), default=0.0)
    return (case, f"{row['eager_ms']:.2f}", *ratios, f"{error:.0e}", ", ".join(row["swapped"]))


if __name__ == "__main__":
    main()
