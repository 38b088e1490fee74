"""Python packages that kernels may depend on, and the check that they are here."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class PythonDependency:
    """One row of the table."""

    name: str
    """As in metadata.json and kernel.toml."""
    package: str
    """What pip installs."""
    module: str | None
    """What code imports; None for packages that hold no Python code, which cannot be checked."""
    backends: frozenset[str] | None = None
    """Backends for which Hugging Face's `kernels` allows it; None for all of them."""
    standard: bool = True
    """Whether that client knows it at all: it refuses to load a kernel that lists another one."""


PYTHON_DEPENDENCIES: dict[str, PythonDependency] = {
    row.name: row
    for row in (
        PythonDependency("einops", "einops", "einops"),
        PythonDependency("helion", "helion", "helion"),
        PythonDependency("tvm-ffi", "apache-tvm-ffi", "tvm_ffi"),
        PythonDependency("nvidia-cutlass-dsl", "nvidia-cutlass-dsl", "cutlass", frozenset({"cuda"})),
        PythonDependency("nki", "nki", "nki", frozenset({"neuron"})),
        PythonDependency("onednn", "onednn-devel", None, frozenset({"xpu"})),
        PythonDependency("triton", "triton", "triton", standard=False),
    )
}


def is_standard(name: str, backend: str) -> bool:
    """Whether Hugging Face's `kernels` loads a kernel of that backend which depends on `name`."""
    row = PYTHON_DEPENDENCIES.get(name)
    return row is not None and row.standard and (row.backends is None or backend in row.backends)


def missing_packages(names: Iterable[str]) -> list[str]:
    """Names, for pip, of the dependencies that are not installed here; nothing is imported.

    A name that is not in the table is taken for the package's own.
    """
    return [package for name in names if (package := _missing(name)) is not None]


def _missing(name: str) -> str | None:
    row = PYTHON_DEPENDENCIES.get(name)
    if row is not None:
        return None if row.module is None or _has_module(row.module) else row.package
    from importlib import metadata  # slow to import, and seldom needed

    try:
        metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        return None if _has_module(name.replace("-", "_")) else name
    return None


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a parent that is missing, or a module without a spec
        return False
