"""Build a layer repository: from its source form to the folders that clients load.

    layers/activation/kernel.toml, package/, cpu/ …   ->   out/build/torch-cpu/, out/build/torch-cuda/ …

The variants are noarch: native code travels as source and is compiled where it runs. Where kernel.toml lists folders
with compiled code for some CPU and OS, a variant with these is built beside.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernels_hub.errors import MetadataError
from kernels_hub.files import move_into_place, scratch_folder
from kernels_hub.repository.check import check_repository
from kernels_hub.repository.digest import compute_digest
from kernels_hub.repository.git_state import GitState, git_state
from kernels_hub.repository.metadata import METADATA_FILE, Metadata
from kernels_hub.repository.provenance import provenance_of, read_compiled_from
from kernels_hub.repository.shared_objects import MANYLINUX
from kernels_hub.repository.source import (
    MANIFEST_FILE,
    SourceBackend,
    SourceRepository,
    read_source_repository,
)

KERNEL_NAME = re.compile(r"[a-z][-a-z0-9]*[a-z0-9]", re.ASCII)
NAME_RULE = "expected two or more of a-z, 0-9 and '-', beginning with a letter and not ending with '-'"


def build_repository(
    source: Path,
    out: Path,
    backends: Iterable[str] | None = None,
    *,
    version: str | None = None,
    check: bool = False,
    manylinux: tuple[int, int] = MANYLINUX,
) -> list[Path]:
    """Build variants of a repository in source form into `out/build/<variant>/`: noarch, and those with compiled code.

    source: a folder with `kernel.toml`.
    backends: names of those to build; None for all of them.
    version: the release to build, instead of the one in `kernel.toml`.
    check: also hold the code to the layer contract, to what it declares to import, and to what the
        variants' names promise of native files (`check_repository`), before anything is written.
    manylinux: the glibc that native files may need, where that is checked.

    Returns the variants' folders. Equal sources, of equal commits where they lie in a git work tree, give equal bytes.
    Each folder appears whole, and none is touched unless every one could be built; one that is there already is
    replaced.

    Raises RepositoryNotFoundError, NoVariantError for a backend that the repository lacks, and
    MetadataError for a manifest or sources that no client could load; BuildError with every problem
    that a check finds.
    """
    repository = read_source_repository(source)
    _check_name(repository)
    if version is not None:
        repository = replace(repository, version=version)
    backend_names = [repository.backend(name).name for name in (backends or repository.backends)]
    if check:
        check_repository(repository, backend_names, manylinux=manylinux)
    provenance = provenance_of(_git_state(repository), read_compiled_from(source))
    builds = out / "build"
    builds.mkdir(parents=True, exist_ok=True)
    with scratch_folder(builds, ".building-") as scratch:
        fresh = [
            _build(repository, variant, provenance, scratch)
            for name in dict.fromkeys(backend_names)
            for variant in (repository.backends[name], *repository.backends[name].arch_variants)
        ]
        return [move_into_place(folder, builds / folder.name) for folder in fresh]


def _git_state(repository: SourceRepository) -> GitState | None:
    """Of kernel.toml, and of all that goes into variants but for this library's own modules."""
    variants = [
        variant for source in repository.backends.values() for variant in (source, *source.arch_variants)
    ]
    roots = dict.fromkeys(folder for variant in variants for folder in variant.folders)
    files = {
        path
        for variant in variants
        for inside, path in variant.files().items()
        if inside not in variant.shared
    }
    manifest = repository.path / MANIFEST_FILE
    return git_state([manifest, *roots], [manifest, *sorted(files)])


def _build(
    repository: SourceRepository, source: SourceBackend, provenance: Mapping[str, Any], scratch: Path
) -> Path:
    files = source.files()
    where = f"{repository.path / MANIFEST_FILE} [backends.{source.name}]"
    if "__init__.py" not in files:
        raise MetadataError(f"{where}: no __init__.py in any source folder, so it is not a Python package")
    if METADATA_FILE in files:
        raise MetadataError(f"{where}: {files[METADATA_FILE]} is written by the build; remove it")
    folder = scratch / source.variant_name
    for inside, path in files.items():
        target = folder / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    # Of the copies: an editor may write to the sources meanwhile.
    digest = compute_digest({inside: folder / inside for inside in files})
    metadata = replace(repository.metadata(source), digest=digest)
    if metadata.backend is None:
        metadata = replace(metadata, backend="cpu")  # Hugging Face's client knows no "universal" here
    identity = _identity(metadata, source.variant or source.name)
    text = replace(metadata, id=identity, provenance=provenance).to_json()
    (folder / METADATA_FILE).write_text(text, encoding="utf-8", newline="\n")
    return folder


def _identity(metadata: Metadata, backend: str) -> str:
    """Unique for name, version, backend and content, wherever that comes from; other clients import the package under
    it."""
    digest = hashlib.sha256(f"{backend}\0{metadata.to_json()}".encode()).hexdigest()
    return f"{metadata.python_name}_{backend}_{digest[:12]}"


def _check_name(repository: SourceRepository) -> None:
    if KERNEL_NAME.fullmatch(repository.name) is None:
        raise MetadataError(
            f"{repository.path / MANIFEST_FILE} [kernel]: name {repository.name!r} cannot be published: {NAME_RULE}"
        )
