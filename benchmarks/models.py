"""Whole models against eager PyTorch in the same run: `python -m benchmarks.models`.

Each model runs eager, kernelized with the default mapping and with `compiled`, and (with --compile) through
torch.compile, each in a process of its own, in float32 or another --dtype. Beside the speed: in float32 the most that
any kernels could gain (all operations at the processor's peak, or all weights read once at the memory's speed, the
longer of the two, and nothing else taking time; PyTorch's counter leaves out the experts of a mixture), the largest
difference from eager, the memory of packed weights, and the peak memory with and without `free_weights`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.harness import Worker, apart, arguments, compare, table, write

CASES = ("minilm", "llama", "llama_decode", "vit", "resnet", "bert", "mixtral")
DTYPES = ("float32", "bfloat16", "float16")


def _model(name: str, dtype: str = "float32") -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A model with the arguments of a call: one of the demo's, or llama_decode, one token of it with a cache of 128."""
    import torch

    args: tuple[Any, ...]
    if name == "llama_decode":
        from benchmarks.compiler_models import model

        built, args = model(name)
        inputs: dict[str, Any] = {}
    else:
        from kernels_hub.cli.demo_models import MODELS

        built, inputs = MODELS[name]()
        args = ()
    if dtype == "float32":
        return built, args, inputs
    wanted = getattr(torch, dtype)
    return built.to(wanted), *_cast(args, inputs, wanted)


def _cast(args: Any, inputs: Any, dtype: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with their floats in a dtype."""

    def cast(one: Any) -> Any:
        return one.to(dtype) if one.is_floating_point() else one

    return tuple(map(cast, args)), {name: cast(one) for name, one in inputs.items()}


def run(model: str, peer: str, dtype: str = "float32", free_weights: bool = False) -> Any:
    """A step that runs a model once: `peer` is "eager", "kernels_hub", "compiled" (the mapping) or "compile"."""
    import torch

    from kernels_hub import Mode, kernelize, load_kernel_mapping, report, use_kernel_mapping

    built, args, inputs = _model(model, dtype)
    info: dict[str, Any] = {}
    if peer == "kernels_hub":
        kernelize(built, mode=Mode.INFERENCE, free_weights=free_weights)
        rows = report(built)
        info = {"swapped": len(rows.swapped), "packed_mib": round(rows.packed_nbytes / 2**20, 1)}
    elif peer == "compiled":
        with use_kernel_mapping(load_kernel_mapping("compiled"), inherit_mapping=False):
            kernelize(built, mode=Mode.INFERENCE, wait=True)
        with torch.inference_mode():
            built(*args, **inputs)
        info = {"compiled": [row.path or "(model)" for row in report(built).rows if _is_compiled(row)]}
    elif peer == "compile":
        built = torch.compile(built)

    def step() -> None:
        with torch.inference_mode():
            built(*args, **inputs)

    return step, info


def _is_compiled(row: Any) -> bool:
    return bool(row.swapped) and row.layer_name == "CompiledModel"


def accuracy(model: str, dtype: str = "float32") -> dict[str, float]:
    """Largest difference between eager and kernelized, and each one's from float64, over the first output."""
    import copy

    import torch

    from kernels_hub import Mode, kernelize

    built, args, inputs = _model(model, dtype)
    exact = copy.deepcopy(built).double()
    with torch.inference_mode():
        eager = built(*args, **inputs)[0]
        ours = kernelize(built, mode=Mode.INFERENCE)(*args, **inputs)[0]
        errors = {
            "max_difference": float((ours - eager).abs().max()),
            "max_magnitude": float(eager.abs().max()),
        }
        precise, named = _cast(args, inputs, torch.float64)
        try:
            reference = exact(*precise, **named)[0]
        except RuntimeError:  # an operator without float64, such as the grouped product of experts
            return errors
    errors["max_error_eager"] = float((eager - reference).abs().max())
    errors["max_error_ours"] = float((ours - reference).abs().max())
    return errors


def memory(model: str, free_weights: bool, dtype: str = "float32") -> dict[str, float]:
    """Resident memory in MiB before and after `kernelize`, in this process."""
    import gc

    import torch

    from kernels_hub import Mode, kernelize, report

    built, args, inputs = _model(model, dtype)
    with torch.inference_mode():
        built(*args, **inputs)
        gc.collect()
        before = _resident_mib()
        kernelize(built, mode=Mode.INFERENCE, free_weights=free_weights)
        gc.collect()
        after = _resident_mib()
    return {
        "weights_mib": round(sum(p.numel() * p.element_size() for p in built.parameters()) / 2**20, 1),
        "packed_mib": round(report(built).packed_nbytes / 2**20, 1),
        "resident_growth_mib": round(after - before, 1),
    }


def roof(model: str, threads: int) -> dict[str, float]:
    """The operations of a model's products, convolutions and attention, the bytes of its weights but for tables that
    it looks rows up in, and how many of both the processor manages in a second."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from kernels_hub.compiler.plan.rates import measured_rates

    torch.set_num_threads(threads)
    built, args, inputs = _model(model)
    with torch.inference_mode(), FlopCounterMode(display=False) as counted:
        built(*args, **inputs)
    tables = {id(one.weight) for one in built.modules() if isinstance(one, torch.nn.Embedding)}
    rates = measured_rates(torch.device("cpu"))
    return {
        "flops": counted.get_total_flops(),
        "flops_per_second": rates.flops,
        "weight_bytes": sum(one.nbytes for one in built.parameters() if id(one) not in tables),
        "bytes_per_second": rates.bandwidth,
    }


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * 4096 / 2**20


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--models", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--dtype", default=DTYPES[0], choices=DTYPES)
    parser.add_argument(
        "--compile", action="store_true", help="torch.compile as a third peer (slow to start)"
    )
    options = parser.parse_args()
    peers = ["eager", "kernels_hub", "compiled", *(["compile"] if options.compile else [])]
    results: dict[str, Any] = {}
    for model in options.models:
        workers = [
            Worker(
                peer,
                "benchmarks.models:run",
                {"model": model, "peer": peer, "dtype": options.dtype},
                options.threads,
            )
            for peer in peers
        ]
        found = compare(workers, rounds=options.rounds)
        results[model] = {
            **found.to_dict(),
            "speedup_over_eager": {peer: round(found.speedup(peer, "eager"), 3) for peer in peers[1:]},
            **(
                {"roof": apart("benchmarks.models:roof", model, options.threads)}
                if options.dtype == DTYPES[0]
                else {}
            ),
            "errors": apart("benchmarks.models:accuracy", model, options.dtype),
            "memory": {
                "both_kept": apart("benchmarks.models:memory", model, False, options.dtype),
                "originals_freed": apart("benchmarks.models:memory", model, True, options.dtype),
            },
        }
        print(model, results[model]["median_ms"], flush=True)
    judge_roofs(results)
    header = ("model", "eager ms", "kernels_hub ms", "ratio", *peers[2:], "at most", "max difference", "of")
    rows = [_row(model, of) for model, of in results.items()]
    print(table((*header, "memory MiB kept / freed"), rows))
    if options.write:
        name = "models" if options.dtype == DTYPES[0] else f"models-{options.dtype}"
        print(write(name, {"threads": options.threads, "dtype": options.dtype, "models": results}))


def judge_roofs(results: dict[str, Any]) -> None:
    """Note the most that each model could gain, by the best rates that were measured beside any of them: a neighbour on
    the machine can only lower one."""
    roofs = [of["roof"] for of in results.values() if "roof" in of]
    if not roofs:
        return
    flops, bandwidth = (max(one[name] for one in roofs) for name in ("flops_per_second", "bytes_per_second"))
    for of in results.values():
        least = max(of["roof"]["flops"] / flops, of["roof"]["weight_bytes"] / bandwidth)
        of["roof"]["speedup_over_eager"] = round(of["median_ms"]["eager"] / 1e3 / least, 3)


def _row(model: str, of: dict[str, Any]) -> tuple[str, ...]:
    grown = (of["memory"][kind]["resident_growth_mib"] for kind in ("both_kept", "originals_freed"))
    return (
        model,
        *(f"{of['median_ms'][peer]:.1f}" for peer in ("eager", "kernels_hub")),
        *(f"{one:.2f}" for one in of["speedup_over_eager"].values()),
        f"{of['roof']['speedup_over_eager']:.2f}" if "roof" in of else "-",
        f"{of['errors']['max_difference']:.1e}",
        f"{of['errors']['max_magnitude']:.2g}",
        " / ".join(f"{one:+.0f}" for one in grown),
    )


if __name__ == "__main__":
    main()
