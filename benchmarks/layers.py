"""Every bundled layer against the module that it replaces: `python -m benchmarks.layers [--device cuda]`.

The cases are those of each repository's `benchmark.py`. Forward under inference_mode, and forward
with backward where the layer has one. On a GPU, torch.compile and Liger-Kernel run as peers too,
and memory-bound layers are also given as a share of the measured copy bandwidth.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from types import ModuleType
from typing import Any

from benchmarks.harness import Worker, arguments, compare, table, write

DTYPES = ("float32", "bfloat16")


@cache
def cases_module(repository: str) -> ModuleType:
    """`layers/<repository>/benchmark.py`."""
    from kernels_hub.repository.bundled import bundled_folder

    path = bundled_folder() / repository / "benchmark.py"
    spec = importlib.util.spec_from_file_location(f"benchmark_of_{repository}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def labels(repository: str, device: str, dtype: str) -> list[str]:
    """Labels of a repository's cases."""
    import torch

    return [label for label, _, _ in cases_module(repository).cases(device, getattr(torch, dtype))]


def run(repository: str, label: str, device: str, dtype: str, peer: str, backward: bool) -> Any:
    """A step of one case: `peer` is "eager", "kernels_hub" or "compile"."""
    import torch

    from kernels_hub import BundledLayerRepository
    from kernels_hub.kernelization.bind import KernelForward, load_layer, weights_protocol

    kind = getattr(torch, dtype)
    torch.manual_seed(0)
    factory, inputs = next(
        (f, x) for name, f, x in cases_module(repository).cases(device, kind) if name == label
    )
    module = factory().to(device=device, dtype=kind).train(backward)
    info: dict[str, Any] = {}
    if peer == "kernels_hub":
        loaded = load_layer(BundledLayerRepository(repository, layer_name=label.split(maxsplit=1)[0]), device)
        info["has_backward"] = loaded.has_backward
        module.__dict__["forward"] = KernelForward(loaded.forward, module)
        weights = weights_protocol(loaded.forward)
        if weights is not None and not backward:
            weights.prepare(module)
    call: Any = torch.compile(module) if peer == "compile" else module
    synchronize: Any = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    if not backward:

        def step() -> None:
            with torch.inference_mode():
                call(*inputs)
            synchronize()

        return step, info
    arguments_ = tuple(
        x.detach().clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in inputs
    )
    outputs = call(*arguments_)
    gradient = [torch.randn_like(out) for out in (outputs if isinstance(outputs, tuple) else (outputs,))]

    def train_step() -> None:
        out = call(*arguments_)
        torch.autograd.backward(out if isinstance(out, tuple) else (out,), gradient)
        synchronize()

    return train_step, info


def main() -> None:
    from kernels_hub.repository.bundled import bundled_names

    parser = arguments(__doc__ or "")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repositories", nargs="*", default=None)
    parser.add_argument("--dtypes", nargs="*", default=list(DTYPES))
    parser.add_argument("--backward", action="store_true", help="training steps too")
    parser.add_argument("--compile", action="store_true", help="torch.compile as a third peer")
    parser.set_defaults(rounds=5)
    options = parser.parse_args()
    peers = ["eager", "kernels_hub", *(["compile"] if options.compile else [])]
    rows, results = [], {}
    for repository in options.repositories or bundled_names():
        for dtype in options.dtypes:
            for label in labels(repository, options.device, dtype):
                for backward in (False, True) if options.backward else (False,):
                    case = {
                        "repository": repository,
                        "label": label,
                        "device": options.device,
                        "dtype": dtype,
                    }
                    workers = [
                        Worker(
                            peer,
                            "benchmarks.layers:run",
                            {**case, "peer": peer, "backward": backward},
                            options.threads,
                        )
                        for peer in peers
                    ]
                    found = compare(workers, rounds=options.rounds, seconds=0.15)
                    speedups = {peer: round(found.speedup(peer, "eager"), 2) for peer in peers[1:]}
                    key = f"{repository}: {label}, {dtype}{', training' if backward else ''}"
                    results[key] = {**found.to_dict(), "speedup_over_eager": speedups}
                    rows.append(
                        (
                            key,
                            f"{found.median('eager') * 1e6:.0f}",
                            *(f"{speedups[p]:.2f}" for p in peers[1:]),
                        )
                    )
                    print("  ".join(rows[-1]), flush=True)
    print(table(("case", "eager us", *(f"{p} ratio" for p in peers[1:])), rows))
    if options.write:
        print(write("layers", {"threads": options.threads, "cases": results}))


if __name__ == "__main__":
    main()
