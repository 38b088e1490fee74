"""Cache of opened ONNX files: plans that were compiled for a file, ready to run in the next process.

    <cache>/opened/<digest of options, compiler, bytes of the file>/<digest of its content>-<of the calls>.khplan

A file is told by the SHA-256 of its content, which is read where there is an entry for a file of its size, and else
once a plan is kept: the first output does not wait for it. An entry is a plan as memory image (`plan.image`) with the
calls it is right for: shapes of the inputs, and values of those that the model was compiled for. It is written once the
compiler is done, appears whole by a rename, and is read by its owner alone: one that another user owns or may write to,
that is damaged, of another version, or whose library is gone from the cache of compiled code, is no entry, and the
model is compiled again. The folder holds at most `MOST_BYTES`, `MOST_PLANS` of a file; what was used longest ago is
removed first.

Not kept: models given as bytes, weights in other files, options that choose engines, and anything while plugins of
engines are installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from kernels_hub.compiler.engines import registry
from kernels_hub.compiler.engines.container import Count, read_header_from
from kernels_hub.compiler.engines.engine import Device, Signature
from kernels_hub.compiler.engines.type_rows import (
    NamedRow,
    SymbolRow,
    symbol_of,
    symbol_row,
    type_of,
    type_row,
)
from kernels_hub.compiler.errors import CompilerError, PlanError
from kernels_hub.compiler.ir.dims import atom, dim_symbols
from kernels_hub.compiler.ir.op import TensorType
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.plan.compiler_stamp import compiler_stamp, digest
from kernels_hub.compiler.plan.file import versions
from kernels_hub.compiler.plan.image import ImageHeader, read_plan, sections_of, write_sections
from kernels_hub.compiler.plan.plan import Plan
from kernels_hub.compiler.plan.selection import Filter
from kernels_hub.compiler.settings import Settings
from kernels_hub.cxx_compiler import find_compiler
from kernels_hub.files import cache_folder, replacing

_LOGGER = logging.getLogger(__name__)

MOST_BYTES = 4 << 30
"""Of all entries together. One that alone takes more than a quarter of it is not kept."""
MOST_PLANS = 16
"""Of one file."""
_CHUNK = 1 << 20
_TICK_NS = 3_000_000_000
"""How far apart two writes may lie that leave a file with the same times, on coarse file systems."""
_EXTERNAL = b"location"
"""The key that every tensor with data in another file has."""


class OpenedFile:
    """A file and the options that it was opened with. key: of its size, and of all else that decides its plans."""

    def __init__(self, path: Path, key: str, state: tuple[int, ...]) -> None:
        """state: of the file when it was opened (`_state`)."""
        self.path, self.key, self._state = path, key, state
        self._content: str | None = None
        self.is_alone = True
        """Whether it names no other file, once its content was read."""
        if time.time_ns() - max(state[-2:]) < _TICK_NS:  # another write may leave it with the same times
            self.content()

    @property
    def folder(self) -> Path:
        """Where its entries are, and those of other files of its size."""
        return cache_folder("opened") / self.key

    def content(self) -> str:
        """The SHA-256 of what was opened. Raises PlanError where that is not there any more, OSError."""
        if self._content is None:
            content, is_alone = _read(self.path)
            if _state(self.path) != self._state:
                raise PlanError(f"{self.path} has changed since it was opened")
            self._content, self.is_alone = content, is_alone
        return self._content

    def entries(self) -> list[Path]:
        """Files of its entries. Raises as `content` does."""
        found = _files(self.folder)
        return [path for path in found if path.name.startswith(self._prefix)] if found else []

    def entry(self, calls: str) -> Path:
        """The file of the entry for calls, by their digest. Raises as `content` does."""
        return self.folder / f"{self._prefix}{calls[:32]}.khplan"

    def is_unchanged(self) -> bool:
        """Whether the file has the content still that it was opened with."""
        with contextlib.suppress(OSError, PlanError):
            if self._content is not None:
                return _read(self.path)[0] == self._content
            self.content()
            return True
        return False

    @property
    def _prefix(self) -> str:
        return f"{self.content()[:32]}-"


@dataclass(frozen=True)
class Calls:
    """The calls that a plan is right for.

    inputs: types of all inputs of the model; values: of those that it was compiled for. takes: which inputs the plan
    takes, in order. results: types of the outputs.
    """

    inputs: Mapping[str, TensorType]
    values: Mapping[str, Array]
    takes: tuple[int, ...]
    results: Mapping[str, TensorType]


@dataclass(frozen=True)
class Entry:
    """The file of a plan, and its calls. declared: types of the model before anything was assumed of its inputs.

    name: of the graph.
    """

    path: Path
    name: str
    calls: Calls
    declared: Signature
    used: float
    """When it was last read, in seconds since 1970."""

    def load(self, device: Device) -> Plan:
        """The plan. Raises PlanError for what is damaged, of another version, or whose library is gone; OSError."""
        with _opened(self.path) as file:
            plan = read_plan(file, str(self.path), device)
        takes, count = self.calls.takes, len(self.calls.inputs)
        if max(takes, default=0) >= max(1, count) or len(takes) != len(plan.signature.inputs):
            raise PlanError(f"{self.path}: the plan takes other inputs than the model has")
        with contextlib.suppress(OSError):
            os.utime(self.path)
        return plan


def opened_file(
    source: object,
    settings: Settings,
    dims: Mapping[str, object] | None,
    shapes: Mapping[str, object] | None,
    values: Mapping[str, object] | None,
    *,
    rewrite: bool,
) -> OpenedFile | None:
    """What a file and options are kept as; None where they are not. Raises nothing: a missing file is `compile`'s."""
    if (
        not isinstance(source, (str, os.PathLike))
        or settings.device.type != "cpu"
        or settings.only != Filter()
        or settings.only.knobs
        or settings.rank != "default"
        or not rewrite
        or not hasattr(os, "geteuid")
        or os.environ.get("TRITON_INTERPRET") == "1"
        or registry.has_plugins()
    ):
        return None
    options = repr((_sorted(dims), _sorted(shapes), _arrays(values), settings.max_shapes))
    if " at 0x" in options:
        return None
    path = Path(source)
    try:
        state = _state(path)
    except OSError:
        return None
    key = digest(
        state[0],
        options,
        compiler_stamp(),
        sorted(versions().items()),
        settings.device.arch,
        str(find_compiler()),
    )
    try:
        opened = OpenedFile(path, key, state)
    except (OSError, PlanError):  # somebody writes it
        return None
    return opened if opened.is_alone else None


def entries(opened: OpenedFile) -> list[Entry]:
    """What is kept of a file, what was used last first. What is no entry is removed, and said in the log."""
    found: list[Entry] = []
    try:
        paths = opened.entries()
    except (PlanError, OSError):
        return found
    for path in paths:
        try:
            found.append(_entry(path))
        except (CompilerError, OSError) as error:
            drop(path, error)
    return sorted(found, key=lambda entry: -entry.used)


def drop(path: Path, why: Exception) -> None:
    """Remove what is no entry."""
    _LOGGER.info("%s is removed, and the model is compiled again: %s", path, why)
    with contextlib.suppress(OSError):
        path.unlink()


def keep(opened: OpenedFile, plan: Plan, calls: Calls, declared: Signature) -> bool:
    """Write an entry, whole or not at all; whether it is there now. Never raises: what fails is said in the log."""
    try:
        return _keep(opened, plan, calls, declared)
    except (CompilerError, OSError) as error:
        _LOGGER.info("the plan of %s is not kept: %s", opened.path, error)
        return False


def _keep(opened: OpenedFile, plan: Plan, calls: Calls, declared: Signature) -> bool:
    made = sections_of(plan)
    if made is None or not opened.is_unchanged() or not opened.is_alone:
        return False
    header, sections = made
    rows = {
        "guard": _rows(calls.inputs),
        "results": _rows(calls.results),
        "declared_inputs": _rows(declared.inputs),
        "declared_outputs": _rows(declared.outputs),
        "takes": calls.takes,
        "values": {
            name: [str(value.dtype), list(value.shape), value.tobytes().hex()]
            for name, value in calls.values.items()
        },
        "facts": _facts(calls.inputs, calls.results, declared.inputs, declared.outputs),
    }
    needed = sum(len(part) for parts in sections.values() for part in parts)
    if needed > MOST_BYTES // 4:
        return False
    path = opened.entry(digest(rows["guard"], rows["values"], rows["facts"]))
    _make_room(needed)
    with replacing(path, mode=0o600) as file:
        write_sections(file, {**header, **rows}, sections)
    for _, _, other in _by_use(opened.entries())[:-MOST_PLANS]:
        with contextlib.suppress(OSError):
            other.unlink()
    return True


class _EntryHeader(ImageHeader, frozen=True, kw_only=True):
    """The header of an entry."""

    guard: tuple[NamedRow, ...]
    results: tuple[NamedRow, ...]
    declared_inputs: tuple[NamedRow, ...]
    declared_outputs: tuple[NamedRow, ...]
    takes: tuple[Count, ...]
    values: dict[str, tuple[str, tuple[Count, ...], str]]
    facts: dict[str, SymbolRow]


def _entry(path: Path) -> Entry:
    """Raises PlanError for what is no entry, CompilerError for types that are none, and OSError."""
    with _opened(path) as file:
        container = read_header_from(file, str(path))
        used = os.fstat(file.fileno()).st_mtime
    header = container.header(_EntryHeader)
    facts = {name: symbol_of(name, *bounds) for name, bounds in header.facts.items()}

    def types(rows: Iterable[NamedRow]) -> dict[str, TensorType]:
        return {name: type_of(rest, facts) for name, *rest in rows}

    try:
        values = {
            name: np.frombuffer(bytes.fromhex(data), np.dtype(kind)).reshape(shape)
            for name, (kind, shape, data) in header.values.items()
        }
    except (TypeError, ValueError) as error:
        raise PlanError(f"{path}: a value makes no sense ({error})") from error
    calls = Calls(types(header.guard), values, header.takes, types(header.results))
    declared = Signature(types(header.declared_inputs), types(header.declared_outputs))
    return Entry(path, header.graph, calls, declared, used)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A file that is this user's alone. Raises PlanError for others."""
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        if about.st_uid != os.geteuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PlanError(f"{path} is another user's, or others may write to it")
        yield file


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob("*.khplan"))
    except OSError:
        return []


def _make_room(needed: int) -> None:
    """Remove what was used longest ago, until so many bytes more are within the limit."""
    known = _by_use(cache_folder("opened").glob("*/*.khplan"))
    total = needed + sum(size for _, size, _ in known)
    for _, size, path in known:
        if total <= MOST_BYTES:
            return
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size


def _by_use(paths: Iterable[Path]) -> list[tuple[float, int, Path]]:
    """(time, bytes, path), what was used longest ago first."""
    known = []
    for path in paths:
        with contextlib.suppress(OSError):
            about = path.stat()
            known.append((about.st_mtime, about.st_size, path))
    return sorted(known)


def _state(path: Path) -> tuple[int, ...]:
    """Size, identity and times of a file: others where it was written to, or another took its place. Raises OSError."""
    about = path.stat()
    return about.st_size, about.st_dev, about.st_ino, about.st_mtime_ns, about.st_ctime_ns


def _read(path: Path) -> tuple[str, bool]:
    """The SHA-256 of a file, and whether it names no other file. Raises OSError."""
    found, is_alone, tail = hashlib.sha256(), True, b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
            if is_alone:
                is_alone = _EXTERNAL not in chunk and _EXTERNAL not in tail + chunk[: len(_EXTERNAL)]
                tail = chunk[-len(_EXTERNAL) :]
    return found.hexdigest(), is_alone


def _rows(types: Mapping[str, TensorType]) -> list[list[object]]:
    return [[name, *type_row(of)] for name, of in types.items()]


def _facts(*of: Mapping[str, TensorType]) -> dict[str, tuple[int, int | None]]:
    symbols = dim_symbols(dim for types in of for one in types.values() for dim in one.shape)
    return {one.name: symbol_row(atom(one)) for one in sorted(symbols)}


def _sorted(options: Mapping[str, object] | None) -> list[tuple[str, str]]:
    return sorted((name, repr(one)) for name, one in (options or {}).items())


def _arrays(values: Mapping[str, object] | None) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for name, value in sorted((values or {}).items()):
        array = np.asarray(value)
        found.append((name, str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest()))
    return found
