"""compile(), or a mapping, where there is no C++ compiler, against the same with one: "bytecode" against "cpp".

Run as `python -m benchmarks.without_compiler`.

Models of `benchmarks.torch_compile` whose results hold no cache, in inference, float32, one shape. Every model by the
peers

    eager      PyTorch as it is
    cpp        compile() with the system's compiler
    control    the same once more, in a process of its own: its spread is what a ratio of 1 looks like here
    bytecode   compile() with KERNELS_HUB_CXX=none, and the native code of a wheel: --prebuilt FOLDER, else built now by
               what builds wheels, which takes minutes

each in a process of its own, in turn: see `benchmarks.harness`. With `--mapping compiled`, that mapping takes the place
of compile(): the whole model is one layer, which its first call waits for, and which runs whatever it gains. With
`--mapping default`, layers of the default mapping do, whose C++ the wheel has built already: what gains is known from
the tables that ship, and nothing is measured beside. A ratio is the median over the rounds. Errors are the largest
difference from eager's results, over the largest of these.

On a machine with other work, --processor-time counts what a peer's threads use instead of what passes.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import CLOCK, Worker, arguments, compare, table, write
from benchmarks.torch_compile import built, difference_of

PEERS = ("eager", "cpp", "control", "bytecode")
BARS = {None: 0.8, "compiled": 0.8, "default": 0.95}
"""By mapping (None for compile()): what is to be reached of the speed with a compiler, as a geometric mean."""
NAMES = (
    "bert", "modernbert", "deberta_v2", "llama", "wav2vec2", "vit", "swin", "convnext", "resnet50", "mobilenet_v2",
    "unet_block", "mlp",
)  # fmt: skip


def run(model: str, peer: str, mapping: str | None) -> tuple[Callable[[], Any], dict[str, Any]]:
    """A step that runs a model once, by a peer; for `benchmarks.worker`."""
    import warnings

    import torch

    from kernels_hub import compiler

    warnings.simplefilter("ignore")
    module, call = built(model)
    own = call(module)
    if peer == "eager":
        return lambda: call(module), {}
    if mapping:
        told = _kernelized(module, mapping)
        result = call(module)
        return lambda: call(module), {"engines": told(), "error": difference_of(result, own)}
    found: dict[str, Any] = {}

    def recorded(*args: Any, **kwargs: Any) -> Any:
        found["args"], found["kwargs"] = args, kwargs
        return module(*args, **kwargs)

    call(recorded)
    with torch.no_grad():
        compiled = compiler.compile((module, found["args"], found["kwargs"]), "cpu")
    result = call(compiled)
    engines = sorted(set(compiled.plan.engines))
    return lambda: call(compiled), {"engines": engines, "error": difference_of(result, own)}


def _kernelized(module: Any, mapping: str) -> Callable[[], list[str]]:
    """Swap the layers of a model by a mapping. Gives what tells, after a call, how they run."""
    from kernels_hub import Mode, kernelize, load_kernel_mapping, report, use_kernel_mapping

    with use_kernel_mapping(load_kernel_mapping(mapping), inherit_mapping=False):
        kernelize(module, mode=Mode.INFERENCE)

    def engines() -> list[str]:
        if mapping == "default":
            variants = {row.variant for row in report(module).rows if row.swapped}
            return sorted(filter(None, variants)) or ["PyTorch"]
        (row,) = (one for one in report(module).rows if one.path == "")
        if not row.swapped:
            return [f"PyTorch: {row.reason}"]
        return ["bytecode" if row.variant == "bytecode" else "cpp"]

    return engines


def measured(model: str, prebuilt: Path, options: Any) -> dict[str, Any]:
    """The row of a model."""
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            Worker(peer, "benchmarks.without_compiler:run", {"model": model, "peer": peer, "mapping": options.mapping},
                   options.threads,
                   _environment(Path(folder), peer, prebuilt, processor_time=options.processor_time))
            for peer in PEERS
        ]  # fmt: skip
        found = compare(workers, rounds=options.rounds, seconds=options.seconds)
    return {
        "ms": {peer: round(found.median(peer) * 1e3, 4) for peer in PEERS},
        "of_cpp": {peer: round(found.speedup(peer, "cpp"), 3) for peer in PEERS if peer != "cpp"},
        "engines": found.info["bytecode"]["engines"],
        "error": found.info["bytecode"]["error"],
        "load": round(os.getloadavg()[0], 2),
    }


def _environment(folder: Path, peer: str, prebuilt: Path, *, processor_time: bool) -> dict[str, str]:
    found = {
        "KERNELS_HUB_CACHE": str(folder / peer), "KERNELS_HUB_JIT": "wait", "KERNELS_HUB_JIT_TRIAL": "off",
        "KERNELS_HUB_CALIBRATION": "off",
    }  # fmt: skip
    if peer == "bytecode":
        found |= {"KERNELS_HUB_CXX": "none", "KERNELS_HUB_PREBUILT": str(prebuilt)}
    return {**found, **({CLOCK: "processor", "OMP_WAIT_POLICY": "passive"} if processor_time else {})}


def summary(rows: Mapping[str, Mapping[str, Any]], mapping: str | None) -> dict[str, Any]:
    """Without a compiler: the part of the speed with one, over the models, and what it is of eager's."""
    of_cpp = {model: row["of_cpp"]["bytecode"] for model, row in rows.items()}
    eager = [row["of_cpp"]["bytecode"] / row["of_cpp"]["eager"] for row in rows.values()]
    mean = round(statistics.geometric_mean(of_cpp.values()), 3)
    return {
        "of cpp": mean, "met": mean >= BARS[mapping], "bar": BARS[mapping],
        "least": min(of_cpp.items(), key=lambda one: one[1]),
        "control": round(statistics.geometric_mean(row["of_cpp"]["control"] for row in rows.values()), 3),
        "of eager": round(statistics.geometric_mean(eager), 3),
        "largest error": max(row["error"] for row in rows.values()),
    }  # fmt: skip


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", nargs="*", metavar="MODEL", choices=list(NAMES), default=list(NAMES))
    parser.add_argument("--prebuilt", type=Path, help="the native code of a wheel")
    parser.add_argument("--mapping", choices=("compiled", "default"), help="instead of compile()")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a turn")
    parser.add_argument("--processor-time", action="store_true", help="of all threads; see above")
    parser.set_defaults(rounds=7)
    options = parser.parse_args(given)
    from kernels_hub.calibration.processor import processor_name

    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        prebuilt = options.prebuilt or _built(Path(folder))
        for model in options.only:
            rows[model] = measured(model, prebuilt.resolve(), options)
            print(_told(model, rows[model]), flush=True)
    print(table(_HEADER, [_cells(model, row) for model, row in rows.items()]))
    for what, said in summary(rows, options.mapping).items():
        print(what, said)
    if options.write:
        about = {key: vars(options)[key] for key in ("threads", "rounds", "seconds", "processor_time")}
        name = f"without-compiler-{options.mapping}" if options.mapping else "without-compiler"
        write(name, {**about, "summary": summary(rows, options.mapping), "models": rows}, processor_name())


def _built(folder: Path) -> Path:
    import platform

    from tools.wheels import native

    native.build(native.units_of(native.ROOT), native.PLATFORMS[platform.machine()], folder)
    return folder


_HEADER = ("model", "eager ms", "cpp ms", "bytecode ms", "of cpp", "control", "engines", "error")


def _cells(model: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    ms, ratio = row["ms"], row["of_cpp"]
    return (
        model, f"{ms['eager']:.2f}", f"{ms['cpp']:.2f}", f"{ms['bytecode']:.2f}", f"{ratio['bytecode']:.2f}",
        f"{ratio['control']:.2f}", " ".join(row["engines"]), f"{row['error']:.0e}",
    )  # fmt: skip


def _told(model: str, row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {cell}" for name, cell in zip(_HEADER, _cells(model, row), strict=True))


if __name__ == "__main__":
    main()
