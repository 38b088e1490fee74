"""A layer repository in source form: `kernel.toml` and the folders that make up each variant.

    layers/activation/
        kernel.toml
        package/        device-independent: __init__.py, layers.py, operators
        cpu/            kernels.py and C++ for the `cpu` backend
        triton/         kernels.py for `cuda` and `rocm`

`kernel.toml` says which folders are laid over one another for a backend. They are one Python
package: loaded in place, the package's `__path__` lists the folders; built, their files are
copied into `build/torch-<backend>/`. No file name may occur in two folders of one backend.
Files and folders whose names begin with "." are left out: editors and notebooks leave those behind.

Compiled code may come along, in variants for one CPU and OS beside the noarch one: the folders that
`variants` lists by a variant's name are laid over those of the backend.

    [backends.cpu]
    sources = ["package", "cpu"]
    variants = { torch-stable-abi211-cpu-x86_64-linux = ["prebuilt"] }

Code that this library shares with layers, which must run without it, is named by `shared`: each file is a module of
kernels_hub that imports nothing of it, and goes along byte for byte.

    shared = ["files.py", "cxx_compiler.py"]
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from kernels_hub.errors import MetadataError, NoVariantError, RepositoryNotFoundError
from kernels_hub.repository.backends import BACKENDS, UNIVERSAL, backend_named
from kernels_hub.repository.digest import list_files
from kernels_hub.repository.load import KernelFiles
from kernels_hub.repository.metadata import KernelDependency, Metadata
from kernels_hub.repository.variants import Variant

MANIFEST_FILE = "kernel.toml"

_KERNEL_KEYS = {"name", "version", "license", "summary", "layers", "functions", "dtypes", "kernel-depends"}
_BACKEND_KEYS = {"sources", "python-depends", "archs", "variants", "shared"}

_LIBRARY = Path(__file__).parents[1]
_SHARED = {
    "files.py": _LIBRARY / "files.py",
    "cxx_compiler.py": _LIBRARY / "cxx_compiler.py",
    "triton_launches.py": _LIBRARY / "triton_launches.py",
}
SHARED = tuple(_SHARED)
"""Modules of this library that `shared` may name."""


@dataclass(frozen=True)
class SourceBackend:
    """One `[backends.<name>]` table: what a variant consists of."""

    name: str
    folders: tuple[Path, ...]
    python_depends: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    variant: str = ""
    """The name of what is built of it; "" for the noarch variant."""
    arch_variants: tuple[SourceBackend, ...] = ()
    """The variants with compiled code, each with all of its folders."""
    shared: tuple[str, ...] = ()
    """Modules of this library that go along."""

    @property
    def variant_name(self) -> str:
        """The name of what is built of it."""
        return self.variant or f"torch-{self.name}"

    @property
    def roots(self) -> tuple[Path, ...]:
        """The folders and files that it consists of."""
        return (*self.folders, *(_SHARED[name] for name in self.shared))

    def files(self) -> dict[str, Path]:
        """Path inside the package -> source file, in sorted order."""
        sources = {name: _SHARED[name] for name in self.shared}
        for folder in self.folders:
            for inside, path in list_files(folder).items():
                if inside.startswith(".") or "/." in inside:
                    continue
                if inside in sources:
                    raise MetadataError(
                        f"backend {self.name!r} lays {path} over {sources[inside]}: "
                        "a file name may occur in one of its source folders only; rename one"
                    )
                sources[inside] = path
        return dict(sorted(sources.items()))


@dataclass(frozen=True)
class SourceRepository:
    """A parsed `kernel.toml`."""

    path: Path
    name: str
    version: str
    license: str
    summary: str
    layers: tuple[str, ...]
    functions: tuple[str, ...]
    backends: dict[str, SourceBackend]
    kernel_depends: tuple[KernelDependency, ...] = ()
    """Other kernels that its code gets by `get_kernel_dep`."""
    dtypes: tuple[str, ...] = ()
    """What its layers take without falling back to plain PyTorch, for the card."""

    def backend(self, name: str) -> SourceBackend:
        """The backend of that name or alias ("mps"), else "universal".

        Raises NoVariantError naming those that exist, DeviceError for an unknown name.
        """
        backend_name = name if name == UNIVERSAL else backend_named(name).name
        source = self.backends.get(backend_name) or self.backends.get(UNIVERSAL)
        if source is None:
            raise NoVariantError(
                f"layer repository {self.name!r} ({self.path}) has no backend {backend_name!r}; "
                f"it has {', '.join(sorted(self.backends))}"
            )
        return source

    def variant(self, backend: str) -> KernelFiles:
        """The noarch variant of a backend, to be imported in place; raises as `backend` does."""
        return self.files_of(self.backend(backend))

    def files_of(self, source: SourceBackend) -> KernelFiles:
        """A variant in source form."""
        return KernelFiles(
            name=self.name,
            variant=source.variant_name,
            folders=source.folders,
            files=source.files(),
            metadata=self.metadata(source),
        )

    def metadata(self, source: SourceBackend) -> Metadata:
        """What kernel.toml says of a variant; id and digest are added when it is built."""
        return Metadata(
            name=self.name,
            version=Version(self.version).major,
            license=self.license,
            python_depends=source.python_depends,
            kernel_depends=self.kernel_depends,
            backend=None if source.name == UNIVERSAL else source.name,
            archs=source.archs,
            release=self.version,
            summary=self.summary,
            layers=self.layers,
            functions=self.functions,
        )


def is_source_repository(path: Path) -> bool:
    """Whether a folder holds a layer repository in source form."""
    return (path / MANIFEST_FILE).is_file()


def read_source_repository(path: Path) -> SourceRepository:
    """Parse and check `path/kernel.toml`.

    Raises RepositoryNotFoundError without one, MetadataError when it is not TOML, lacks a key,
    has an unknown one, or names a folder that does not exist.
    """
    manifest = path / MANIFEST_FILE
    try:
        document = tomllib.loads(manifest.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RepositoryNotFoundError(
            f"no {MANIFEST_FILE} in {path}: not a layer repository in source form; kernels-hub init NAME writes one"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise MetadataError(f"{manifest} is not TOML: {error}; correct it, and try again") from error
    kernel = _table(document, "kernel", manifest)
    _only(kernel, _KERNEL_KEYS, f"{manifest} [kernel]")
    _only(document, {"kernel", "backends"}, str(manifest))
    backends = {
        name: _read_backend(name, table, manifest)
        for name, table in _table(document, "backends", manifest).items()
    }
    return SourceRepository(
        path=path,
        name=_string(kernel, "name", manifest),
        version=_version(kernel, manifest),
        license=_string(kernel, "license", manifest),
        summary=_string(kernel, "summary", manifest),
        layers=_strings(kernel, "layers", f"{manifest} [kernel]"),
        functions=_strings(kernel, "functions", f"{manifest} [kernel]"),
        backends=backends,
        kernel_depends=_kernel_depends(kernel, f"{manifest} [kernel]"),
        dtypes=_strings(kernel, "dtypes", f"{manifest} [kernel]"),
    )


def _read_backend(name: str, table: object, manifest: Path) -> SourceBackend:
    where = f"{manifest} [backends.{name}]"
    if name not in BACKENDS and name != UNIVERSAL:
        raise MetadataError(f"{where}: unknown backend; known: {', '.join([*BACKENDS, UNIVERSAL])}")
    if not isinstance(table, dict):
        raise MetadataError(f"{where}: expected a table with the key 'sources'")
    _only(table, _BACKEND_KEYS, where)
    backend = SourceBackend(
        name,
        _folders(table, "sources", manifest, where),
        _strings(table, "python-depends", where),
        _strings(table, "archs", where),
        shared=_shared(table, where),
    )
    variants = table.get("variants", {})
    if not isinstance(variants, dict):
        raise MetadataError(f"{where}: 'variants' must be a table of folders by the names of variants")
    arch = tuple(_arch_variant(backend, variant, variants, manifest, where) for variant in variants)
    return replace(backend, arch_variants=arch)


def _arch_variant(
    source: SourceBackend, name: str, table: dict[str, Any], manifest: Path, where: str
) -> SourceBackend:
    parsed = Variant.parse(name)
    if parsed.noarch or parsed.backend != source.name:
        raise MetadataError(
            f"{where}: 'variants' names {name}; expected one for a CPU and an OS, of the backend {source.name}, "
            f"such as torch-stable-abi211-cpu-x86_64-linux for the CPU"
        )
    more = _folders(table, name, manifest, f"{where} variants")
    return replace(source, folders=(*source.folders, *more), variant=name)


def _shared(table: dict[str, Any], where: str) -> tuple[str, ...]:
    names = _strings(table, "shared", where)
    if unknown := [name for name in names if name not in SHARED]:
        raise MetadataError(
            f"{where}: 'shared' names {unknown[0]!r}; expected modules of kernels_hub that layers may carry: "
            f"{', '.join(SHARED)}"
        )
    return names


def _folders(table: dict[str, Any], key: str, manifest: Path, where: str) -> tuple[Path, ...]:
    folders = tuple((manifest.parent / folder).resolve() for folder in _strings(table, key, where))
    if not folders:
        raise MetadataError(f"{where}: {key!r} must name at least one folder")
    for folder in folders:
        if not folder.is_dir():
            raise MetadataError(f"{where}: source folder {folder} does not exist")
    return folders


def _table(document: dict[str, Any], key: str, manifest: Path) -> dict[str, Any]:
    table = document.get(key)
    if not isinstance(table, dict):
        raise MetadataError(f"{manifest}: the table [{key}] is missing")
    return table


def _string(table: dict[str, Any], key: str, manifest: Path) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise MetadataError(f"{manifest} [kernel]: {key!r} must be a string, got {value!r}")
    return value


def _strings(table: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise MetadataError(f"{where}: {key!r} must be an array of strings, got {value!r}")
    return tuple(value)


def _kernel_depends(table: dict[str, Any], where: str) -> tuple[KernelDependency, ...]:
    expected = "an array of tables such as { repo-id = 'org/name', version = 1 }"
    value = table.get("kernel-depends", [])
    if not isinstance(value, list):
        raise MetadataError(f"{where}: 'kernel-depends' must be {expected}, got {value!r}")
    dependencies = []
    for item in value:
        match item:
            case {"repo-id": str(repo), "version": int(version), **rest} if not rest and version >= 0:
                dependencies.append(KernelDependency(repo, version=version))
            case {"repo-id": str(repo), "revision": str(revision), **rest} if not rest:
                dependencies.append(KernelDependency(repo, revision=revision))
            case _:
                raise MetadataError(f"{where}: 'kernel-depends' must be {expected}, got {item!r} in it")
    return tuple(dependencies)


def _version(table: dict[str, Any], manifest: Path) -> str:
    text = _string(table, "version", manifest)
    try:
        if len(Version(text).release) == 3:
            return text
    except InvalidVersion:
        pass
    raise MetadataError(
        f"{manifest} [kernel]: 'version' must read major.minor.patch, as in '0.1.0', got {text!r}"
    )


def _only(table: dict[str, Any], known: set[str], where: str) -> None:
    if unknown := sorted(set(table) - known):
        raise MetadataError(f"{where}: unknown key {unknown[0]!r}; known keys: {', '.join(sorted(known))}")
