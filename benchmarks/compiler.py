"""Compiled models against what a user would pick instead, in one run: `python -m benchmarks.compiler`.

Peers: eager PyTorch, torch.compile (default, and with frozen weights), ONNX Runtime, OpenVINO in float32, and
`kernels_hub.compiler.compile`. Each is a process of its own with the same threads; caches of compiled code begin empty.
Beside the latency: seconds from the built model to its first output (cold, and again with warm caches), peak memory,
and the largest difference from eager; `--write` also draws a plot. ONNX Runtime and OpenVINO read a file that
torch.onnx exported before. With --dtype bfloat16 or float16 the peers are those of PyTorch.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bars import bars
from benchmarks.harness import Worker, apart, arguments, compare, table, write

PEERS = ("eager", "inductor", "inductor_freezing", "onnxruntime", "openvino", "kernels_hub")
CASES = ("bert", "resnet50", "resnet50_8", "llama", "llama_decode", "unet_block", "mlp")
TORCH_PEERS = ("eager", "inductor", "kernels_hub")
KERNELS = ("layer_norm", "softmax", "gelu_add")


def run(model: str, peer: str, folder: str, threads: int, dtype: str = "float32") -> Any:
    """A step that runs a model once, and how far its first output is from the one that eager wrote to the folder."""
    import torch

    module, args = _built(model, dtype)
    with torch.inference_mode():
        began = time.perf_counter()
        step = MAKE[peer](module, args, Path(folder) / f"{model}.onnx", threads)
        made = time.perf_counter() - began
        found = step()
    first = found[0] if isinstance(found, (tuple, list)) else found
    expected = torch.load(Path(folder) / f"{model}.pt")
    difference = (torch.as_tensor(first) - expected).abs().max()
    info = {
        "max_difference": float(difference),
        "max_magnitude": float(expected.abs().max()),
        "made_s": round(made, 3),
    }
    return step, info


def _built(model: str, dtype: str) -> tuple[Any, Any]:
    """A model of compiler_models.py, and its arguments, with floats of a dtype."""
    import torch
    from torch.utils._pytree import tree_map

    from benchmarks.compiler_models import model as built

    module, args = built(model)
    row = getattr(torch, dtype)
    return module.to(row), tree_map(
        lambda one: one.to(row) if isinstance(one, torch.Tensor) and one.is_floating_point() else one, args
    )


def compile_graph(model: str) -> float:
    """Seconds of `compile` of a model's graph alone, which was imported before."""
    from benchmarks.compiler_models import model as built
    from kernels_hub import compiler

    graph = compiler.import_torch(*built(model))
    began = time.perf_counter()
    compiler.compile(graph, "cpu")
    return time.perf_counter() - began


def _eager(module: Any, args: Any, _: Path, __: int) -> Callable[[], Any]:
    import torch

    def step() -> Any:
        with torch.inference_mode():
            return module(*args)

    return step


def _inductor(module: Any, args: Any, path: Path, threads: int) -> Callable[[], Any]:
    import torch

    return _eager(torch.compile(module), args, path, threads)


def _freezing(module: Any, args: Any, path: Path, threads: int) -> Callable[[], Any]:
    import torch._inductor.config

    torch._inductor.config.freezing = True
    return _inductor(module, args, path, threads)


def _onnxruntime(_: Any, args: Any, path: Path, threads: int) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feeds = {one.name: arg.numpy() for one, arg in zip(session.get_inputs(), args, strict=True)}
    return lambda: session.run(None, feeds)


def _openvino(_: Any, args: Any, path: Path, threads: int) -> Callable[[], Any]:
    import openvino

    core = openvino.Core()
    properties = {
        "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1,
    }  # fmt: skip
    request = core.compile_model(str(path), "CPU", properties).create_infer_request()
    inputs = [arg.numpy() for arg in args]

    def step() -> Any:
        found = request.infer(inputs, share_inputs=True, share_outputs=True)
        return [found[0]]

    return step


def _ours(module: Any, args: Any, _: Path, __: int) -> Callable[[], Any]:
    from kernels_hub.compiler import compile as compile_

    compiled = compile_((module, args), "cpu")
    return lambda: compiled(*args)


MAKE: dict[str, Callable[[Any, Any, Path, int], Callable[[], Any]]] = {
    "eager": _eager,
    "inductor": _inductor,
    "inductor_freezing": _freezing,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "kernels_hub": _ours,
}


def export(model: str, folder: str, dtype: str) -> None:
    """Write eager's first output into the folder, and the ONNX file of a model in float32."""
    import torch

    module, args = _built(model, dtype)
    with torch.inference_mode():
        found = module(*args)
        torch.save(found[0] if isinstance(found, tuple) else found, Path(folder) / f"{model}.pt")
        path = str(Path(folder) / f"{model}.onnx")
        if dtype == "float32":
            torch.onnx.export(module, args, path, dynamo=True, external_data=False, verbose=False)


def _environment(caches: Path) -> dict[str, str]:
    return {
        "KERNELS_HUB_CACHE": str(caches / "kernels_hub"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "PYTHONWARNINGS": "ignore",
    }


def _workers(case: str, peers: list[str], folder: Path, threads: int, dtype: str) -> list[Worker]:
    given = {"model": case, "folder": str(folder), "threads": threads, "dtype": dtype}
    return [
        Worker(
            peer, "benchmarks.compiler:run", {**given, "peer": peer}, threads,
            _environment(folder / "caches" / case / peer),
        )
        for peer in peers
    ]  # fmt: skip


def measure(
    case: str, peers: list[str], folder: Path, threads: int, rounds: int, dtype: str
) -> dict[str, Any]:
    """One case: times, ratios, first outputs with cold and with warm caches, memory, differences.

    compile_graph_s: of `compile` of the imported graph, with empty caches and with full ones.
    """
    apart("benchmarks.compiler:export", case, str(folder), dtype)
    warm: dict[str, float] = {}
    found = compare(_workers(case, peers, folder, threads, dtype), rounds=rounds)
    for worker in _workers(case, peers, folder, threads, dtype):
        worker.start()
        warm[worker.name] = worker.info["first_result_s"]
        worker.stop()
    others = [peer for peer in peers if peer != "kernels_hub"]
    result = found.to_dict()
    result["cold_s"] = {peer: found.info[peer]["first_result_s"] for peer in peers}
    result["warm_s"] = warm
    if "kernels_hub" in peers and dtype == "float32":
        environment = _environment(folder / "caches" / case / "graph")
        result["compile_graph_s"] = [
            round(apart("benchmarks.compiler:compile_graph", case, environment=environment), 3)
            for _ in ("cold", "warm")
        ]
    if "kernels_hub" in peers:
        result["speedup_over"] = {peer: round(found.speedup("kernels_hub", peer), 3) for peer in others}
        result["speedup_over_best"] = min(result["speedup_over"].values())
    return result


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--models", nargs="*", default=[*CASES, *KERNELS], choices=[*CASES, *KERNELS])
    parser.add_argument("--peers", nargs="*", choices=PEERS, help="all by default")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    options = parser.parse_args()
    options.peers = options.peers or list(PEERS if options.dtype == "float32" else TORCH_PEERS)
    results: dict[str, Any] = {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in options.models:
            found = measure(case, options.peers, Path(folder), options.threads, options.rounds, options.dtype)
            results[case] = found
            row = [case, *(f"{found['median_ms'][peer]:.3f}" for peer in options.peers)]
            row.append(f"{found.get('speedup_over_best', math.nan):.2f}")
            row.append(
                " ".join(f"{found['cold_s'][peer]:.1f}/{found['warm_s'][peer]:.1f}" for peer in options.peers)
            )
            row.append(f"{max(one['max_difference'] for one in found['info'].values()):.1e}")
            rows.append(row)
            print("  ".join(row), flush=True)
    header = [
        "model",
        *(f"{peer} ms" for peer in options.peers),
        "over best",
        "first output s (cold/warm)",
        "difference",
    ]
    print(table(header, rows))
    models = [case for case in options.models if case in CASES and "speedup_over_best" in results[case]]
    summary = {}
    if models:
        over = [results[case]["speedup_over_best"] for case in models]
        eager = [results[case]["speedup_over"].get("eager", math.nan) for case in models]
        summary = {"over_best": _mean(over), "least_over_best": min(over), "over_eager": _mean(eager)}
        print(json.dumps(summary))
    if options.write:
        name = "compiler" if options.dtype == "float32" else f"compiler-{options.dtype}"
        path = write(name, {"threads": options.threads, "summary": summary, "models": results})
        faster: dict[str, dict[str, float]] = {}
        for case, found in results.items():
            if "eager" in (row_ms := found["median_ms"]):
                faster[case] = {peer: row_ms["eager"] / row_ms[peer] for peer in options.peers}
        title = f"Times faster than eager PyTorch, {options.threads} threads, {options.dtype}"
        path.with_suffix(".svg").write_text(bars(title, faster, options.peers), encoding="utf-8")
        print(os.fspath(path))


def _mean(values: list[float]) -> float:
    """The geometric mean."""
    return round(math.exp(sum(map(math.log, values)) / len(values)), 3)


if __name__ == "__main__":
    main()
