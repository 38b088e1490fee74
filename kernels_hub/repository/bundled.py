"""The layer repositories that ship with the library, in source form under `kernels_hub.layers`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path

from kernels_hub.errors import RepositoryNotFoundError
from kernels_hub.repository.load import KernelFiles
from kernels_hub.repository.source import MANIFEST_FILE, SourceRepository, read_source_repository


@cache
def bundled_folder() -> Path:
    """The folder of the shipped layer repositories."""
    return Path(str(resources.files("kernels_hub.layers"))).resolve()


def bundled_names() -> tuple[str, ...]:
    """Names of the shipped repositories, sorted."""
    return tuple(sorted(path.parent.name for path in bundled_folder().glob(f"*/{MANIFEST_FILE}")))


@cache
def bundled_repository(name: str) -> SourceRepository:
    """The shipped repository `name`; RepositoryNotFoundError lists those that exist."""
    if name not in bundled_names():
        raise RepositoryNotFoundError(
            f"no bundled layer repository {name!r}; there are {', '.join(bundled_names())}"
        )
    return read_source_repository(bundled_folder() / name)


@cache
def source_variant(repository_path: Path, backend: str) -> KernelFiles:
    """The variant of a shipped repository for a backend ("cpu"), to be imported in place.

    Read once: what ships does not change while a process runs. For a repository in development use
    `local.local_variant`, which notices edits. Raises NoVariantError.
    """
    return replace(read_source_repository(repository_path).variant(backend), bytecode=True)
