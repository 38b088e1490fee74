"""What `kernelize` costs, against HF `kernels` in the same run: `python -m benchmarks.kernelize`.

Models of empty layers, so that nothing but the walk, the selection and the swap is measured: flat
and nested, one name and a hundred, all layers tagged and one in ten, up to 100,000 modules.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness import Worker, arguments, compare, now, table, write

CASES: dict[str, dict[str, Any]] = {
    "flat, 10,000 tagged": {"modules": 10_000},
    "nested, 10,000 tagged": {"modules": 10_000, "depth": 4},
    "100 names, 10,000 tagged": {"modules": 10_000, "names": 100},
    "10% tagged of 10,000": {"modules": 10_000, "tagged": 0.1},
    "flat, 1,000 tagged": {"modules": 1_000},
    "flat, 100,000 tagged": {"modules": 100_000},
}


class Source:
    """A repository that is loaded already: the kernel's layer itself."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.layer_name = layer.__name__

    def load(self) -> Any:
        return self.layer


def _model(library: Any, modules: int, depth: int, names: int, tagged: float) -> tuple[Any, dict[str, Any]]:
    from torch import nn

    class Kernel(nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    def make_class(name: str | None) -> type[nn.Module]:
        class Layer(nn.Module):
            def forward(self, x: Any) -> Any:
                return x

        if name is not None:
            library.replace_kernel_forward_from_hub(Layer, name)
        return Layer

    classes = [make_class(f"Layer{index}") for index in range(names)]
    plain = make_class(None)
    every = round(1 / tagged)
    leaves = [(classes[i % names] if i % every == 0 else plain)() for i in range(modules)]
    for _ in range(depth - 1):
        size = max(2, round(len(leaves) ** (1 / depth)))
        leaves = [nn.Sequential(*leaves[i : i + size]) for i in range(0, len(leaves), size)]
    mapping = {f"Layer{index}": {"cpu": Source(Kernel)} for index in range(names)}
    return nn.Sequential(*leaves), mapping


def swap(library: str, modules: int, depth: int = 1, names: int = 1, tagged: float = 1.0) -> Any:
    """A step that kernelizes a model that is not kernelized: `library` is "kernels_hub" or "kernels"."""
    import importlib

    lib = importlib.import_module(library)
    model, mapping = _model(lib, modules, depth, names, tagged)
    count = sum(1 for _ in model.modules())

    def step() -> float:
        if library == "kernels_hub":
            lib.restore(model)
        for module in model.modules():  # as new: both libraries put their forward there
            module.__dict__.pop("forward", None)
        start = now()
        with lib.use_kernel_mapping(mapping, inherit_mapping=False):
            lib.kernelize(model, mode=lib.Mode.INFERENCE, device="cpu")
        return now() - start

    return step, {"modules": count}


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    rows, results = [], {}
    for label, case in CASES.items():
        workers = [
            Worker(name, "benchmarks.kernelize:swap", {"library": name, **case}, options.threads)
            for name in ("kernels_hub", "kernels")
        ]
        found = compare(workers, rounds=options.rounds, seconds=0.5)
        modules = found.info["kernels_hub"]["modules"]
        ours, theirs = found.median("kernels_hub"), found.median("kernels")
        ratio = found.speedup("kernels_hub", "kernels")
        results[label] = {
            **found.to_dict(),
            "speedup": round(ratio, 2),
            "ns_per_module": round(ours / modules * 1e9),
        }
        rows.append(
            (label, f"{ours * 1e3:.1f}", f"{theirs * 1e3:.1f}", f"{ratio:.1f}", f"{ours / modules * 1e9:.0f}")
        )
        print(f"{label}: {ratio:.1f} times faster than kernels", flush=True)
    print(table(("model", "kernels_hub ms", "kernels ms", "ratio", "ns a module"), rows))
    if options.write:
        print(write("kernelize", {"cases": results}))


if __name__ == "__main__":
    main()
