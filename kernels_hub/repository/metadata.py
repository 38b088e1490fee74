"""metadata.json: what a built variant says of itself.

The keys are those of Hugging Face's `kernels`; unknown ones are ignored. What that format has no
key for (the full version, layers, dependencies that its client refuses) is under "kernels-hub".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from kernels_hub.contained_paths import relative_path_problem
from kernels_hub.errors import KernelImportError, MetadataError, RepositoryNotFoundError
from kernels_hub.repository.backends import BACKENDS
from kernels_hub.repository.python_depends import is_standard, missing_packages

METADATA_FILE = "metadata.json"
DIGEST_ALGORITHMS = ("sha256", "sha512")

_EXTENSION = "kernels-hub"
_BY_METADATA_TYPE = {backend.metadata_type: backend.name for backend in BACKENDS.values()}
_MOST_BYTES = 32 << 20
_REPOSITORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?", re.ASCII)
_MINVER = re.compile(r"\d+(\.\d+)*", re.ASCII)
_T = TypeVar("_T")


@dataclass(frozen=True)
class KernelDependency:
    """Another kernel that a kernel uses: by version (branch vN) or by revision."""

    repo_id: str
    version: int | None = None
    revision: str | None = None


@dataclass(frozen=True)
class Digest:
    """Digests of every file of a variant except metadata.json."""

    algorithm: str
    """One of `DIGEST_ALGORITHMS`."""
    files: Mapping[str, str] = field(hash=False)
    """Path inside the variant, with "/" -> digest in base64."""


@dataclass(frozen=True)
class Metadata:
    """A parsed metadata.json. Only the name is certain: old and local kernels say less."""

    name: str
    id: str | None = None
    """Unique for name, version, backend and content."""
    version: int | None = None
    license: str | None = None
    upstream: str | None = None
    source: str | None = None
    python_depends: tuple[str, ...] = ()
    kernel_depends: tuple[KernelDependency, ...] = ()
    kernels_minver: str | None = None
    """Oldest release of Hugging Face's `kernels` that may load it; not applied here."""
    backend: str | None = None
    """A key of `BACKENDS`, or what the file says where this library does not know it."""
    archs: tuple[str, ...] = ()
    digest: Digest | None = None
    provenance: Mapping[str, Any] | None = field(default=None, hash=False)
    release: str | None = None
    """The full version, such as "0.1.0"."""
    summary: str | None = None
    layers: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()

    @property
    def python_name(self) -> str:
        """The name as Python spells a package: dashes become underscores."""
        return python_name(self.name)

    def to_json(self) -> str:
        """The file's text: keys sorted, a key for everything that is known."""
        standard: list[str] = []
        rest: list[str] = []
        for name in self.python_depends:
            (standard if self.backend is None or is_standard(name, self.backend) else rest).append(name)
        document: dict[str, Any] = {
            "name": self.name,
            "id": self.id,
            "version": self.version,
            "license": self.license,
            "upstream": self.upstream,
            "source": self.source,
            "kernel-depends": [
                _known({"repo-id": kernel.repo_id, "version": kernel.version, "revision": kernel.revision})
                for kernel in self.kernel_depends
            ],
            "kernels-minver": self.kernels_minver,
            "provenance": self.provenance,
            _EXTENSION: _known(
                {
                    "release": self.release,
                    "summary": self.summary,
                    "layers": list(self.layers),
                    "functions": list(self.functions),
                    "python-depends": rest,
                }
            ),
        }
        if self.backend is not None:
            row = BACKENDS.get(self.backend)
            backend_type = self.backend if row is None else row.metadata_type
            document["backend"] = _known({"type": backend_type, "archs": list(self.archs)})
        if self.digest is not None:
            document["digest"] = {"algorithm": self.digest.algorithm, "files": dict(self.digest.files)}
        document = {
            **_known(document),
            "python-depends": standard,
        }  # required by HF's client, even when empty
        return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def python_name(name: str) -> str:
    """A kernel's name as Python spells a package: dashes become underscores."""
    return name.replace("-", "_")


def read_metadata(folder: Path, default_name: str | None = None) -> Metadata:
    """Parse `folder/metadata.json`.

    default_name: the kernel's name where the file, or its name, is missing. Kernels built by old
        tools have none, and a kernel in development needs none; without a default both are errors.

    Raises RepositoryNotFoundError for a missing file, MetadataError (a ValueError) naming file and
    key for one that is not JSON, not an object, or has a value of the wrong type.
    """
    path = folder / METADATA_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        if default_name is not None:
            return Metadata(default_name)
        raise RepositoryNotFoundError(f"no {METADATA_FILE} in {folder}: not a built variant") from error
    except OSError as error:
        raise MetadataError(f"{path} cannot be read: {error}") from error
    return parse_metadata(content, path, default_name)


def parse_metadata(content: bytes, path: Path, default_name: str | None = None) -> Metadata:
    """A metadata.json from its bytes. Raises MetadataError as `read_metadata` does.

    By hand: on the way of every load, where importing msgspec would take longer.
    """
    if len(content) > _MOST_BYTES:
        raise MetadataError(f"{path} has {len(content):,} bytes; at most {_MOST_BYTES:,} are read")
    try:
        document = json.loads(content.decode("utf-8-sig"))
        if b"\\u" in content:  # half of a surrogate pair is no text: it could be neither written nor shown
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise MetadataError(f"{path} is not JSON: {error}; fetch or build the variant again") from error
    if not isinstance(document, dict):
        raise MetadataError(f"{path}: expected an object, got {_shown(document)}")
    return _parse(_JsonObject(document, path), default_name)


def check_name(metadata: Metadata, expected: str, where: Path) -> None:
    """Raise MetadataError unless the metadata is of the expected package; "-" and "_" are alike."""
    if metadata.python_name != python_name(expected):
        raise MetadataError(
            f"{where / METADATA_FILE}: names the kernel {metadata.name!r}, expected {expected!r}; "
            "is this the right folder?"
        )


def check_python_depends(metadata: Metadata) -> None:
    """Raise KernelImportError (an ImportError) unless every Python dependency is installed."""
    if missing := missing_packages(metadata.python_depends):
        raise KernelImportError(
            f"kernel {metadata.name!r} needs Python packages that are not installed: {', '.join(missing)}; "
            f"install them with: pip install {' '.join(missing)}"
        )


@dataclass(frozen=True)
class _JsonObject:
    """An object of the file, with the path of keys that leads to it."""

    values: Mapping[str, Any]
    file: Path
    inside: str = ""

    def get(self, key: str, kind: type[_T]) -> _T | None:
        """The value of a key, None where it is missing or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, kind) or isinstance(value, bool):
            self.refuse(key, f"expected {_KINDS[kind]}, got {_shown(value)}")
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        values: list[Any] = self.get(key, list) or []
        for index, value in enumerate(values):
            if not isinstance(value, str):
                self.refuse(f"{key}[{index}]", f"expected a string, got {_shown(value)}")
        return tuple(values)

    def packages(self, key: str) -> tuple[str, ...]:
        """Names as pip takes them, which messages tell people to install."""
        names = self.strings(key)
        for index, name in enumerate(names):
            if _PACKAGE.fullmatch(name) is None:
                self.refuse(f"{key}[{index}]", f"expected the name of a package, got {_shown(name)}")
        return names

    def table(self, key: str) -> _JsonObject | None:
        values = self.get(key, dict)
        return None if values is None else _JsonObject(values, self.file, f"{self.inside}{key}.")

    def refuse(self, key: str, problem: str) -> NoReturn:
        raise MetadataError(f"{self.file}: key {self.inside + key!r}: {problem}")


_KINDS: dict[type, str] = {str: "a string", int: "an integer", list: "an array", dict: "an object"}


def _parse(document: _JsonObject, default_name: str | None) -> Metadata:
    name = document.get("name", str) or default_name
    if not name:
        document.refuse("name", "expected the kernel's name, got none")
    version = document.get("version", int)
    if version is not None and version < 0:
        document.refuse("version", f"expected an integer of at least 0, got {version}")
    minver = document.get("kernels-minver", str)
    if minver is not None and _MINVER.fullmatch(minver) is None:
        document.refuse("kernels-minver", f"expected a version such as '0.10.0', got {_shown(minver)}")
    backend = document.table("backend")
    backend_type = None if backend is None else backend.get("type", str)
    extension = document.table(_EXTENSION) or _JsonObject({}, document.file)
    return Metadata(
        name=name,
        id=document.get("id", str),
        version=version,
        license=document.get("license", str),
        upstream=document.get("upstream", str),
        source=document.get("source", str),
        python_depends=(*document.packages("python-depends"), *extension.packages("python-depends")),
        kernel_depends=_parse_kernel_depends(document),
        kernels_minver=minver,
        backend=None if backend_type is None else _BY_METADATA_TYPE.get(backend_type, backend_type),
        archs=() if backend is None else backend.strings("archs"),
        digest=_parse_digest(document.table("digest")),
        provenance=document.get("provenance", dict),
        release=extension.get("release", str),
        summary=extension.get("summary", str),
        layers=extension.strings("layers"),
        functions=extension.strings("functions"),
    )


def _parse_kernel_depends(document: _JsonObject) -> tuple[KernelDependency, ...]:
    dependencies = []
    for index, value in enumerate(document.get("kernel-depends", list) or []):
        key = f"kernel-depends[{index}]"
        if not isinstance(value, dict):
            document.refuse(key, f"expected an object, got {_shown(value)}")
        table = _JsonObject(value, document.file, f"{key}.")
        dependency = KernelDependency(
            _repository(table),
            table.get("version", int),
            table.get("revision", str),
        )
        if (dependency.version is None) == (dependency.revision is None):
            document.refuse(key, "expected one of 'version' and 'revision'")
        dependencies.append(dependency)
    return tuple(dependencies)


def _repository(table: _JsonObject) -> str:
    repo_id = table.get("repo-id", str)
    if repo_id is None or _REPOSITORY.fullmatch(repo_id) is None or "--" in repo_id or ".." in repo_id:
        table.refuse("repo-id", f"expected 'org/name', got {'none' if repo_id is None else _shown(repo_id)}")
    return repo_id


def _parse_digest(table: _JsonObject | None) -> Digest | None:
    if table is None:
        return None
    algorithm = table.get("algorithm", str)
    if algorithm not in DIGEST_ALGORITHMS:
        table.refuse("algorithm", f"expected one of {', '.join(DIGEST_ALGORITHMS)}, got {_shown(algorithm)}")
    files = table.table("files") or table.refuse("files", "expected an object, got none")
    for path in files.values:
        if (problem := relative_path_problem(path)) is not None:
            table.refuse("files", f"{path[:100]!r} is no path inside a variant: {problem}")
    return Digest(algorithm, {path: files.get(path, str) or "" for path in files.values})


def _known(document: Mapping[str, object]) -> dict[str, Any]:
    """Without keys that hold nothing."""
    return {key: value for key, value in document.items() if value is not None and value not in ([], {})}


def _shown(value: object) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:
        text = f"a {type(value).__name__} that is nested too deeply"
    return text if len(text) <= 60 else text[:57] + "..."
