"""Kernels in local folders: which variants there are, which one to use, and whether it is intact."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernels_hub.errors import MetadataError, NoVariantError, RepositoryNotFoundError
from kernels_hub.repository.backends import BACKENDS, UNIVERSAL
from kernels_hub.repository.digest import Fingerprint, fingerprint, list_files, verify_digest
from kernels_hub.repository.load import KernelFiles
from kernels_hub.repository.metadata import METADATA_FILE, Metadata, check_name, python_name, read_metadata
from kernels_hub.repository.source import MANIFEST_FILE, is_source_repository, read_source_repository
from kernels_hub.repository.system import System
from kernels_hub.repository.variants import (
    Ranking,
    UnknownVariant,
    Variant,
    VariantAccepted,
    VariantRejected,
    rank,
)


def local_variant(path: Path, system: System, package_name: str | None = None) -> KernelFiles:
    """The variant of a local folder that runs on a system, ready to import.

    path: what it is decides, in this order:
        1. one variant, `…/torch-cpu`, with a name that says so;
        2. a repository with built variants, `<path>/build/<variant>`;
        3. the `build/` of one, `<path>/<variant>`;
        4. a repository in source form, `<path>/kernel.toml`, imported in place;
        5. one variant in a folder of any other name, which is taken as it is.
        In a variant the package is the folder itself, or one folder inside it.
    package_name: the kernel's name, checked against metadata.json; it names the package where
        that file is missing.

    The same folder gives the same object as long as no file in it changes.

    Raises RepositoryNotFoundError when nothing of the kind is there; NoVariantError with the reason
    for each variant when none fits; MetadataError for a metadata.json or kernel.toml that is wrong,
    of another package, or lists other digests than the files have.
    """
    repository = _open(path)
    if repository.folder is None:
        return read_variant(repository.path, package_name)
    ranking = rank(repository.variants, system)
    if ranking.best is None:
        raise NoVariantError(_no_variant(repository, ranking, system))
    if repository.source:
        return _source_variant(repository.path, ranking.best.backend, package_name)
    return read_variant(repository.folder / str(ranking.best), package_name)


def local_variants(path: Path, system: System) -> list[VariantAccepted | VariantRejected]:
    """Every variant of a local folder (as in `local_variant`): accepted ones best first, then the
    rejected with their reasons; a metadata.json that is wrong is one. Empty for a folder that is a
    package without a variant's name."""
    repository = _open(path)
    ranking = rank(repository.variants, system)
    if repository.source or repository.folder is None:
        return ranking.decisions
    judged = [_readable(repository.folder, accepted) for accepted in ranking.accepted]
    return [*sorted(judged, key=lambda decision: isinstance(decision, VariantRejected)), *ranking.rejected]


def _readable(folder: Path, accepted: VariantAccepted) -> VariantAccepted | VariantRejected:
    name = str(accepted.variant)
    try:
        read_metadata(folder / name, name)
    except MetadataError as error:
        return VariantRejected(accepted.variant, str(error))
    return accepted


def read_variant(folder: Path, package_name: str | None = None) -> KernelFiles:
    """One built variant, whatever the system, with its digests verified where metadata.json has any.

    Raises RepositoryNotFoundError without a package in it, MetadataError as `local_variant` does.
    """
    return _cached((folder, package_name), lambda: (folder,), lambda: _read_variant(folder, package_name))


# -- what a folder is -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FoundVariants:
    path: Path
    folder: Path | None
    """Holds the variants; None where the path is a variant itself and is not to be judged."""
    variants: tuple[str, ...]
    source: bool = False


def _open(path: Path) -> _FoundVariants:
    path = Path(os.path.abspath(path))  # noqa: PTH100 (resolve() would leave a Hub cache's symlinks)
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        raise RepositoryNotFoundError(
            f"no kernel repository at {path}: it {what}; check the path (kernels-hub init NAME writes a new one)"
        )
    is_package = (path / "__init__.py").is_file() or (path / METADATA_FILE).is_file()
    if _is_variant(path.name) and (is_package or _packages(path)):
        return _FoundVariants(path, path.parent, (path.name,))
    in_build, here = _folders(path / "build"), _folders(path)
    if any(map(_is_variant, in_build)):
        return _FoundVariants(path, path / "build", in_build)
    if any(map(_is_variant, here)):
        return _FoundVariants(path, path, here)
    if is_source_repository(path):
        backends = read_source_repository(path).backends
        return _FoundVariants(path, path, tuple(f"torch-{backend}" for backend in backends), source=True)
    if is_package:
        return _FoundVariants(path, None, ())
    if in_build:
        return _FoundVariants(path, path / "build", in_build)
    raise RepositoryNotFoundError(
        f"no kernel repository at {path}: expected build/<variant>/, {MANIFEST_FILE}, "
        f"or a variant's own __init__.py and {METADATA_FILE}; it holds {', '.join(here) or 'no folders'}"
    )


def _is_variant(name: str) -> bool:
    """Whether a folder's name says that it is a variant. A repository may well be called "torch-tools"."""
    try:
        variant = Variant.parse(name)
    except MetadataError:
        return False
    return variant.backend == UNIVERSAL or variant.backend in BACKENDS


def _folders(path: Path) -> tuple[str, ...]:
    if not path.is_dir():
        return ()
    with os.scandir(path) as entries:
        return tuple(
            sorted(e.name for e in entries if e.is_dir() and e.name != "__pycache__" and e.name[0] != ".")
        )


def _packages(folder: Path) -> list[str]:
    return [name for name in _folders(folder) if (folder / name / "__init__.py").is_file()]


def _no_variant(found: _FoundVariants, ranking: Ranking, system: System) -> str:
    torch = "" if system.torch_version is None else f", torch {'.'.join(map(str, system.torch_version))}"
    reasons = "".join(f"\n  {decision}" for decision in ranking.rejected)
    unknown_only = all(isinstance(decision.variant, UnknownVariant) for decision in ranking.rejected)
    step = "name the folders as builds do" if unknown_only else "build one for it, or choose another device"
    return (
        f"no variant of the kernel repository {found.path} runs here ({system.backend} on "
        f"{system.cpu}-{system.os}{torch}); {step}. Its variants:{reasons or ' none'}"
    )


# -- reading a variant ------------------------------------------------------------------------------


def _read_variant(folder: Path, package_name: str | None) -> KernelFiles:
    packages = [] if (folder / "__init__.py").is_file() else _packages(folder)
    default = package_name or (packages[0] if len(packages) == 1 else _repository_name(folder))
    metadata = read_metadata(folder, default)
    if package_name is not None:
        check_name(metadata, package_name, folder)
    files = list_files(folder)
    if metadata.digest is not None:
        verify_digest(metadata.digest, files, folder)
    if "__init__.py" in files:
        return KernelFiles(metadata.name, folder.name, (folder,), files, metadata)
    package = _nested_package(folder, packages, metadata)
    inside = {
        path.removeprefix(f"{package}/"): file
        for path, file in files.items()
        if path.startswith(f"{package}/")
    }
    return KernelFiles(metadata.name, folder.name, (folder / package,), inside, metadata)


def _repository_name(folder: Path) -> str:
    """Of `<repository>/build/<variant>` the repository; of any other folder its own name."""
    if _is_variant(folder.name):
        return folder.parent.parent.name if folder.parent.name == "build" else folder.parent.name
    return folder.name


def _nested_package(folder: Path, packages: list[str], metadata: Metadata) -> str:
    if metadata.python_name in packages:
        return metadata.python_name
    if len(packages) == 1:
        check_name(metadata, packages[0], folder)
    raise RepositoryNotFoundError(
        f"no kernel in the variant {folder}: expected __init__.py, or {metadata.python_name}/__init__.py; "
        f"it holds {', '.join(packages) or 'no package'}"
    )


def _source_variant(path: Path, backend: str, package_name: str | None) -> KernelFiles:
    def roots() -> tuple[Path, ...]:
        repository = read_source_repository(path)
        return (path / MANIFEST_FILE, *repository.backend(backend).roots)

    def read() -> KernelFiles:
        kernel = read_source_repository(path).variant(backend)
        if package_name is not None and python_name(package_name) != python_name(kernel.name):
            raise MetadataError(
                f"{path / MANIFEST_FILE}: names the kernel {kernel.name!r}, expected {package_name!r}"
            )
        return kernel

    return _cached((path, backend, package_name), roots, read)


_SNAPSHOTS: dict[tuple[object, ...], tuple[Fingerprint, KernelFiles]] = {}


def _cached(
    key: tuple[object, ...], roots: Callable[[], tuple[Path, ...]], read: Callable[[], KernelFiles]
) -> KernelFiles:
    """What `read` returned last, unless a file changed since: digests are computed once."""
    now = fingerprint(roots())
    known = _SNAPSHOTS.get(key)
    if known is not None and known[0] == now:
        return known[1]
    kernel = read()
    _SNAPSHOTS[key] = (now, kernel)
    return kernel
