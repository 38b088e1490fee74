"""Build a layer's C++ beside the model at first use, and keep the result for every later process.

A CPU variant ships C++ *source*: plain C symbols, no torch headers, so one compile takes about a
second and the result does not depend on the torch build. The shared object lies in the cache (`cxx_compiler`): its name
covers the source, the compiler, the flags and the CPU's instruction sets, so that an upgrade of any of them builds it
again and nothing is ever overwritten. Where the library came with code that was built from just this text (`prebuilt`),
that serves, and nothing is built.

No call waits for the compiler: it runs in the background with a low priority, one build at a time on a machine, and
the layer runs its PyTorch reference until the library is there. Where no compiler is found (or the build fails) `load`
returns None, says so once on the `kernels_hub` logger, and the reference runs for good: slower, same numbers.

Environment: KERNELS_HUB_CACHE, see `files`; KERNELS_HUB_CXX, see `cxx_compiler`, where "none" means that there is none;
KERNELS_HUB_JIT=wait has calls wait for the libraries that they need.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import platform
import subprocess
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import NamedTuple, TypeVar

from .cxx_compiler import (
    BESIDE,
    FLAGS,
    NICENESS,
    compiler_version,
    cpu_flags,
    digest_of,
    find_compiler,
    is_whole,
    kill_compilers,
    one_at_a_time,
    publish,
    run_compiler,
)
from .files import cache_folder, read_shipped, scratch_folder
from .prebuilt import find

_LOGGER = logging.getLogger("kernels_hub.layers.native")

_FLAGS = (*FLAGS, "-march=native", "-shared")
_BUILD_TIMEOUT_S = 300


class BeingBuiltError(Exception):
    """The library is not there yet. build: what it is being built by, None where nothing was begun."""

    def __init__(self, build: threading.Thread | None = None) -> None:
        super().__init__()
        self.build = build


T = TypeVar("T")


def when_built(make: Callable[[], T | None]) -> Callable[[], T | None]:
    """A function that loads a library, asked at every call: None until it is built, then what it returned once."""
    found: list[T | None] = []
    pending: list[threading.Thread] = []

    @wraps(make)
    def get() -> T | None:
        if not found:
            # To look for a library is to read its sources, a millisecond: not at every call while it is being built.
            if any(build.is_alive() for build in pending) and not _waits():
                return None
            try:
                found.append(make())
            except BeingBuiltError as error:
                pending[:] = [error.build] if error.build is not None else []
                return None
        return found[0]

    _LOADERS.append(get)
    return get


_LOADERS: list[Callable[[], object]] = []
_OFF: dict[str, str] = {}
"""Source file -> why there is no library of it."""
_EXTRAS: set[str] = set()
"""Source files of kernels beside others of their layers."""


class Lacking(NamedTuple):
    """Native code that a layer has to do without. all: the layer has no other kernels, and PyTorch's code runs."""

    reasons: dict[str, str]
    all: bool


def lacking() -> Lacking:
    """What native code of this package is not here, and never will be; nothing is built to find out."""
    if find_compiler() is None:
        for get in _LOADERS:
            get()
    return Lacking(dict(_OFF), any(one not in _EXTRAS for one in _OFF))


def is_built(*, begins: bool = True) -> bool | None:
    """Whether the libraries of this package are here: None while they are not, False where one cannot be built that
    there is no other kernel for.

    begins: have what is missing built in the background.
    """
    if _waits():
        return True
    if any(build.is_alive() for build in _BUILDS.values()):
        return None
    _LOOKING.is_all = not begins
    try:
        found = [get() for get in _LOADERS]
    finally:
        _LOOKING.is_all = False
    if all(library is not None for library in found):
        return True
    return None if not begins or any(build.is_alive() for build in _BUILDS.values()) else not lacking().all


def load(
    source: Path, headers: Path | None = None, *, at_once: bool = False, is_extra: bool = False
) -> ctypes.CDLL | None:
    """The functions of one C++ file: prebuilt, or built from it; None where it cannot be built here.

    headers: a folder of headers that the file includes, beside those that lie here and beside it; each counts as part
    of the source. at_once: wait for the build. is_extra: the layer has other kernels that need no C++.
    Raises BeingBuiltError while it is being built in the background: for `when_built`.
    Safe under concurrent threads and processes: each builds to a private file and renames it into
    place, so a reader sees either nothing or a whole object.
    """
    if is_extra:
        _EXTRAS.add(source.name)
    try:
        sources = _read_sources(source, headers)
        if (found := find(source.name, sources.unit, dict(sources.headers))) is not None:
            return found
        compiler = find_compiler()
        if compiler is None:
            _say_once(source, "no C++ compiler found (set KERNELS_HUB_CXX or install g++)")
            return None
        target = cache_folder("native") / f"{source.stem}-{_key(sources, compiler)}.so"
        if not is_whole(target):
            if at_once or _waits():
                _build(source, sources, target, compiler)
            else:
                _build_beside(source, sources, target, compiler)
        try:
            return ctypes.CDLL(str(target))
        except OSError:  # removed meanwhile, or built by another system: build it again, once
            _build(source, sources, target, compiler)
            return ctypes.CDLL(str(target))
    except (OSError, subprocess.SubprocessError) as error:
        _say_once(source, str(error).strip() or type(error).__name__)
        return None


class _Build(threading.Thread):
    """A build in the background. error: why there is no library."""

    def __init__(self, source: Path, sources: _Sources, target: Path, compiler: str) -> None:
        super().__init__(name=f"kernels_hub-build-{source.stem}", daemon=True)
        self._what = (source, sources, target, compiler)
        self.error: Exception | None = None

    def run(self) -> None:
        BESIDE.set(NICENESS)
        try:
            with one_at_a_time(self._what[2].parent):
                _build(*self._what)
        except Exception as error:  # noqa: BLE001 - told by the call that asks next
            self.error = error


_BUILDS: dict[Path, _Build] = {}
_WAITING = threading.Event()
_LOOKING = threading.local()
"""is_all: this thread looks what is there, and has nothing built."""


def _build_beside(source: Path, sources: _Sources, target: Path, compiler: str) -> None:
    """Have a library built in the background. Raises BeingBuiltError until it is there, or why it cannot be."""
    build = _BUILDS.get(target)
    if build is not None and build.error is not None:
        raise build.error
    if getattr(_LOOKING, "is_all", False):
        raise BeingBuiltError
    if build is None or not build.is_alive():  # of before a fork
        build = _BUILDS[target] = _Build(source, sources, target, compiler)
        build.start()
    raise BeingBuiltError(build)


def _waits() -> bool:
    return _WAITING.is_set() or os.environ.get("KERNELS_HUB_JIT", "").strip().lower() == "wait"


def begin_to_wait() -> None:
    """Have calls wait for what they need from now on."""
    _WAITING.set()


def wait_for_builds(timeout: float | None = None) -> bool:
    """Wait for what is being built, at most so many seconds for each; whether nothing is left."""
    builds = [build for build in _BUILDS.values() if build.is_alive()]
    for build in builds:
        build.join(timeout)
    return not any(build.is_alive() for build in builds)


@atexit.register
def _end_builds() -> None:
    kill_compilers()
    wait_for_builds(2.0)


def _key(sources: _Sources, compiler: str) -> str:
    """What determines a library: its sources, the compiler, and what -march=native means on this machine."""
    headers = [data for _, data in sources.headers]
    machine = "\n".join((platform.machine(), compiler_version(compiler), cpu_flags()))
    return digest_of(sources.unit, *headers, machine, " ".join(_FLAGS))


class _Sources(NamedTuple):
    """What is compiled: bytes as they were read, once; what lies on the disk may change meanwhile."""

    unit: bytes
    headers: tuple[tuple[str, bytes], ...]


def _read_sources(source: Path, headers: Path | None) -> _Sources:
    paths = [path for folder in _folders(source, headers) for path in sorted(folder.glob("*.h"))]
    return _Sources(read_shipped(source), tuple((path.name, read_shipped(path)) for path in paths))


def _folders(source: Path, headers: Path | None) -> list[Path]:
    """Where the headers of a source file lie: in one folder once a variant is built, in several in place."""
    folders = (Path(__file__).parent, source.parent, headers)
    return list(dict.fromkeys(folder for folder in folders if folder is not None))


def _build(source: Path, sources: _Sources, target: Path, compiler: str) -> None:
    """Compile a private copy of the sources, in a folder that nobody else can write."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(target.parent, target.stem) as private:
        unit, partial = private / source.name, private / "unit.so"
        unit.write_bytes(sources.unit)
        for name, data in sources.headers:
            (unit.parent / name).write_bytes(data)
        errors = run_compiler([compiler, *_FLAGS, str(unit), "-o", str(partial)], _BUILD_TIMEOUT_S)
        if errors is not None:
            raise OSError(f"{compiler} failed on {source}:\n{errors}")
        publish(partial, target)


def _say_once(source: Path, reason: str) -> None:
    if _OFF.get(source.name) != reason:
        _OFF[source.name] = reason
        name = source.parent.name
        _LOGGER.warning("native CPU code of %s is off, its PyTorch reference runs instead: %s", name, reason)
