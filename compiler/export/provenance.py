"""provenance.json of an exported layer: what it was compiled from and by, and how it compared."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

import numpy as np
from torch import nn

from kernels_hub import cxx_compiler
from kernels_hub.compiler.export.checked import Checked
from kernels_hub.compiler.export.gradient_check import CheckedGradients
from kernels_hub.compiler.export.source import Source
from kernels_hub.compiler.ir.types import Array
from kernels_hub.repository.digest import file_sha256
from kernels_hub.repository.git_state import git_state
from kernels_hub.repository.provenance import Comparison, CompiledFrom, InputDigest, SourceState
from kernels_hub.version import __version__

_LONGEST = 200
"""Characters of a name."""


def provenance_of_layer(
    source: Source, path: Path | None, checked: Checked, gradients: CheckedGradients, original: str
) -> CompiledFrom:
    """What is known of a compiled layer, without times and names of machines.

    source: the first that was compiled, with its weights. path: of an ONNX file. original: what the layer was made of,
    in words.
    """
    module = None if source.example is None else source.example.module
    files = _source_files(module) if module is not None else {path.name: path} if path is not None else {}
    first = next(iter(files.values()), None)
    state = git_state([first], [first]) if first is not None else None
    inputs = [InputDigest(name[:_LONGEST], file_sha256(file)) for name, file in files.items()]
    if source.arrays:
        inputs.append(InputDigest("weights", weights_sha256(source.arrays)))
    return CompiledFrom(
        builder=builder_versions(),
        source=None if state is None else SourceState(commit=state.commit, dirty=state.dirty),
        inputs=tuple(inputs),
        verified=tuple(_comparisons(source, checked, gradients, original[:_LONGEST])),
    )


def builder_versions() -> dict[str, str]:
    """Name -> version of what compiles layers here: this library, torch, Triton and the C++ compiler."""
    versions = {"kernels-hub": __version__}
    for package in ("torch", "triton"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    compiler = cxx_compiler.find_compiler()
    lines = cxx_compiler.compiler_version(compiler).splitlines() if compiler else []
    return versions | ({"compiler": lines[0][:_LONGEST]} if lines else {})


def weights_sha256(arrays: Mapping[str, object]) -> str:
    """A digest of weights: of the name, dtype, shape and bytes of each, by name."""
    digest = hashlib.sha256()
    for name, held in sorted(arrays.items()):
        array: Array = np.ascontiguousarray(held() if callable(held) else held)
        digest.update(f"{name}\0{array.dtype}\0{list(array.shape)}\0".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _source_files(module: nn.Module) -> dict[str, Path]:
    """Name of a Python module -> the file that defines classes of a model, in the order of use; without PyTorch's,
    which its version tells."""
    files: dict[str, Path] = {}
    for kind in dict.fromkeys(type(part) for part in module.modules()):
        if kind.__module__.partition(".")[0] == "torch" or kind.__module__ in files:
            continue
        try:
            file = inspect.getsourcefile(sys.modules.get(kind.__module__, kind))
        except TypeError:  # of a notebook
            continue
        if file is not None and Path(file).is_file():
            files[kind.__module__] = Path(file)
    return files


def _comparisons(
    source: Source, checked: Checked, gradients: CheckedGradients, original: str
) -> Iterable[Comparison]:
    judged_by_original = source.peer is None
    for case in checked.cases:
        pairs = [("the reference evaluator", case.oracle)]
        if judged_by_original:
            pairs.insert(0, (original, case.original))
        for against, error in pairs:
            if error is not None:
                passed = error <= case.tolerance
                yield Comparison(
                    against=against,
                    tolerance=case.tolerance,
                    error=_rounded(error),
                    result="passed" if passed else "passed, the original errs as much from float32",
                    seed=case.seed,
                    sizes=dict(case.sizes),
                    dtype=case.dtype,
                )
    for gradient in gradients.cases:
        yield Comparison(
            against=f"gradients of {original}",
            tolerance=gradient.tolerance,
            error=_rounded(gradient.error),
            result="passed",
            sizes=dict(gradient.sizes),
        )


def _rounded(error: float) -> float:
    """To the two digits that are shown."""
    return float(f"{error:.1e}")
