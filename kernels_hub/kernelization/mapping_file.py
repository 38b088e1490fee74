"""Mapping files: kernel mappings, and tags for classes that others own, as TOML.

    schema = 1
    include = ["default"]                          # laid under this file's own tables

    [[tag]]                                        # which classes are an RMSNorm
    layer = "RMSNorm"
    classes = ["my_package.*:*RMSNorm"]
    forward = ["rms_norm"]                         # they must compute this

    [contract.rms_norm]
    source = '''def forward(self, x): ...'''

    [[map]]                                        # which kernel an RMSNorm gets, and where
    layer = "RMSNorm"
    device = "cpu"
    modes = ["inference"]
    repository = "bundled:normalization"

docs/mappings.md explains every key; mappings/schema.json is the same for editors. Files go one way:
text -> tables, checked (mapping_table.py) -> contracts, tags, entries -> KernelMapping.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernels_hub.errors import MappingError, MappingNotFoundError
from kernels_hub.kernelization.contract import Contract
from kernels_hub.kernelization.mapping_entries import read_alternatives, read_entries
from kernels_hub.kernelization.mapping_records import KernelMapping
from kernels_hub.kernelization.mapping_table import SourceText, Table
from kernels_hub.kernelization.mapping_tags import classes_that_fulfil, read_contracts, read_tags
from kernels_hub.kernelization.tag_rule import TagEntry, TagRules

SCHEMA = 1
"""The version of the file format that this library reads."""

Stamp = tuple[str, int, int]
"""A file as it was read: path, modification time in ns, size."""


@dataclass(frozen=True)
class MappingFile:
    """A file and everything it includes, read and checked."""

    mapping: KernelMapping
    """Entries only: the rules are made once, of all tags together."""
    tags: tuple[TagEntry, ...]
    contracts: dict[str, Contract]
    alternatives: dict[str, list[Any]]
    stamps: tuple[Stamp, ...]


_LOADED: dict[str, tuple[tuple[Stamp, ...], KernelMapping]] = {}


def load_kernel_mapping(name_or_path: str | os.PathLike[str]) -> KernelMapping:
    """A kernel mapping from a file, for `register_kernel_mapping` or `use_kernel_mapping`.

    name_or_path: the name of a shipped mapping ("default", "torch", "transformers"), or a path; a
        string with neither a separator nor a suffix is a name.

    Read once: later calls return the same object until one of the files changes.

    Raises MappingNotFoundError (a FileNotFoundError) when it does not exist, and MappingError (a
    ValueError) naming file, line and key when it is not well formed.

    >>> with use_kernel_mapping(load_kernel_mapping("fused_loss")):
    ...     found = explain(nn.Sequential(nn.SiLU()), mode=Mode.TRAINING, device="cpu")
    """
    path = _locate(name_or_path)
    known = _LOADED.get(path)
    if known is not None and all(_stamp(stamp[0]) == stamp for stamp in known[0]):
        return known[1]
    file = _read(Path(path), ())
    mapping = KernelMapping(file.mapping.entries, (TagRules(file.tags),) if file.tags else ())
    _LOADED[path] = file.stamps, mapping
    return mapping


def shipped_mappings() -> list[str]:
    """Names that `load_kernel_mapping` knows without a path."""
    return sorted(path.stem for path in _shipped_folder().glob("*.toml"))


@lru_cache(maxsize=1)
def _shipped_folder() -> Path:
    import kernels_hub.mappings

    return Path(next(iter(kernels_hub.mappings.__path__))).resolve()


def _locate(name_or_path: str | os.PathLike[str], beside: Path | None = None) -> str:
    text = os.fspath(name_or_path)
    if isinstance(name_or_path, str) and (shipped := _shipped_path(text)) is not None:
        return shipped
    return str(((beside or Path()) / Path(text).expanduser()).resolve())


@lru_cache(maxsize=64)
def _shipped_path(text: str) -> str | None:
    """Where a shipped mapping of that name lies, or would; None for a path."""
    if not text or any(character in text for character in "/\\."):
        return None
    return str(_shipped_folder() / f"{text}.toml")


def _stamp(path: str) -> Stamp:
    try:
        status = os.stat(path)  # noqa: PTH116 - asked at every call: a Path would double its price
    except OSError:
        return path, -1, -1
    return path, status.st_mtime_ns, status.st_size


def _read(path: Path, includers: tuple[Path, ...]) -> MappingFile:
    stamp = _stamp(str(path))
    text = _read_text(path)
    document = Table(SourceText(path, text), (), _parse(path, text))
    _check_schema(document)
    base = _read_includes(document, (*includers, path))
    alternatives = {**base.alternatives, **read_alternatives(document)}
    own = read_contracts(document, base.contracts, trusted=path.parent == _shipped_folder())
    contracts = {**base.contracts, **own}
    fulfilled = classes_that_fulfil(contracts)
    tags = read_tags(document, contracts, alternatives, fulfilled)
    entries = read_entries(document, alternatives, fulfilled)
    document.done()
    return MappingFile(
        base.mapping.extended(KernelMapping(entries)),
        (*tags, *base.tags),
        contracts,
        alternatives,
        (stamp, *base.stamps),
    )


def _read_includes(document: Table, includers: tuple[Path, ...]) -> MappingFile:
    """Everything that a file includes as one, later ones over earlier ones."""
    base = MappingFile(KernelMapping(), (), {}, {}, ())
    for index, name in enumerate(document.strings("include", "a list of shipped names or paths")):
        path = Path(_locate(name, beside=includers[-1].parent))
        if path in includers:
            chain = " -> ".join(map(str, (*includers, path)))
            raise document.error(("include", index), f"files may not include themselves: {chain}")
        try:
            included = _read(path, includers)
        except MappingNotFoundError as error:
            raise MappingNotFoundError(str(document.error(("include", index), str(error)))) from error
        base = MappingFile(
            base.mapping.extended(included.mapping),
            (*included.tags, *base.tags),
            {**base.contracts, **included.contracts},
            {**base.alternatives, **included.alternatives},
            (*base.stamps, *included.stamps),
        )
    return base


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise MappingError(f"{path}: expected a TOML file in UTF-8: {error}") from error
    except OSError as error:
        shipped = ", ".join(shipped_mappings())
        what = "it is a folder" if path.is_dir() else error.strerror or "it cannot be read"
        raise MappingNotFoundError(
            f"no mapping at {path}: {what}. Shipped mappings are {shipped}; a file needs its path"
        ) from error


def _parse(path: Path, text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MappingError(f"{path} is not TOML: {error}") from error


def _check_schema(document: Table) -> None:
    schema = document.required("schema", int, f"the version of the format, {SCHEMA}")
    if schema != SCHEMA:
        raise document.error("schema", f"this version of kernels_hub reads schema {SCHEMA}, got {schema}")
