"""A Hub with something on every page: releases, variants for several devices, long lines, private repositories."""

from __future__ import annotations

import json

from tests.running_hub import RunningHub
from tests.server.test_web import LAYERS, Author

CARD = """---
license: apache-2.0
---
# Norms

Rows are **normalized** in one pass, in the dtype of the input, accumulated in `float32`: see [the source](build/torch-cpu/layers.py).

```python
from kernels_hub import kernelize, Mode, use_kernel_mapping, LayerRepository, CUDAProperties, Device, LockedLayerRepository
model = kernelize(model, mode=Mode.INFERENCE)
```

    indented code, which scrolls to the side where it is longer than the column of the page is wide, as this line is

| processor | shape | dtype | times faster than eager | largest error | largest difference from float64 |
|---|---|---|---:|---:|---:|
| some processor with a long name | (4096, 4096) | float32 | 1.50 | 1e-6 | 1e-6 |

1. one
2. two

> A quotation.
"""
SOURCE = LAYERS + "".join(
    f"\n\ndef rms_norm_{n}(x, weight, eps=1e-6, *, accumulate_in='float32', out=None, workspace=None, stream=None, block={n}):\n"
    f'    """Formula {n}."""\n    return x * weight / (x * x).mean(-1, keepdim=True).add(eps).sqrt()  # a comment of some length\n'
    for n in range(12)
)
PAGES = {
    "list": "/",
    "filtered": "/?device=cuda&sort=downloads",
    "nothing": "/?q=nothing+of+this+name",
    "card": "/kernels/ada/norms",
    "yanked": "/kernels/ada/norms?revision=v1.0.0",
    "versions": "/kernels/ada/norms/versions",
    "files": "/kernels/ada/norms/tree/main",
    "source": "/kernels/ada/norms/blob/v1.1.0/build/torch-cpu/layers.py",
    "large": "/kernels/ada/norms/blob/v1.1.0/weights.bin",
    "commits": "/kernels/ada/norms/commits/main",
    "diff": "/kernels/ada/norms/compare?from=v1.0.0&to=v1.1.0",
    "split": "/kernels/ada/norms/compare?from=v1.0.0&to=v1.1.0&view=split",
    "login": "/login",
    "missing": "/kernels/ada/none",
}
"""Name -> address of a page that everybody may see."""


def _metadata(backend: str) -> str:
    extension = {
        "summary": "Norms over rows, for CPUs and GPUs",
        "layers": ["RMSNorm"],
        "functions": ["rms_norm_1"],
    }
    return json.dumps(
        {"name": "norms", "license": "Apache-2.0", "backend": {"type": backend}, "kernels-hub": extension}
    )  # fmt: skip


def fill(hub: RunningHub) -> None:
    """Publish: ada/norms, a kernel of two releases and three variants; a model; a private kernel."""
    author = Author(hub)
    author.repository("kernel", "norms")
    variants = {"torch-cpu": "cpu", "torch-cuda": "cuda", "torch213-rocm71-x86_64-linux": "rocm"}
    files = {"README.md": CARD, "weights.bin": "x" * (1 << 20)}
    for name, backend in variants.items():
        files |= {f"build/{name}/{file}": text for file, text in (("__init__.py", ""), ("layers.py", SOURCE))}
        files[f"build/{name}/metadata.json"] = _metadata(backend)
    author.commit("kernel", "norms", files)
    author.tag("kernel", "norms", "v1.0.0")
    changed = SOURCE.replace("1e-6", "1e-5").replace("Formula 7", "The formula of the paper, number 7")
    author.commit("kernel", "norms", {"build/torch-cpu/layers.py": changed, "notes.txt": "new\n"})
    author.tag("kernel", "norms", "v1.1.0")
    author.commit("kernel", "norms", {"yanked.json": json.dumps({"1.0.0": "wrong in float16"})})
    author.repository("model", "notes")
    author.commit("model", "notes", {"README.md": "# Notes\n", "kernel.toml": '[kernel]\nlicense = "mit"\n'})
    author.repository("kernel", "secret", private=True)
    author.commit("kernel", "secret", {"README.md": "# The secret one\n"})
