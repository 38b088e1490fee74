"""Generated C++ to loaded libraries: the system compiler, and a cache of what it built.

A library is the generated unit and some source files of the runtime, which are compiled once for all. It is kept
under a name that is a digest of all that determines its content: source, runtime, flags, the compiler's version
(`cxx_compiler`). Each build goes to a private file that is renamed into place, so that concurrent threads and processes
see nothing or the whole. Where the folder cannot be written to, a folder of this process serves, and a warning says so
once.

Environment: KERNELS_HUB_CACHE, see `files`; KERNELS_HUB_CXX, see `cxx_compiler`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ...cxx_compiler import (
    BESIDE,
    compiler_version,
    cpu_flags,
    digest_of,
    find_compiler,
    is_whole,
    publish,
    run_compiler,
)
from ...cxx_compiler import FLAGS as COMMON_FLAGS
from ...files import (
    PrivateFolder,
    cache_folder,
    move_into_place,
    read_shipped,
    scratch_folder,
    write_atomically,
)
from . import precompiled
from .errors import BuildError

_LOGGER = logging.getLogger("kernels_hub.runtime.toolchain")
_OWN = PrivateFolder("compiled")

RUNTIME = Path(__file__).parents[1] / "native"
"""The folder of the headers that generated code includes."""

FLAGS = (*COMMON_FLAGS, "-ffp-contract=fast", "-fwrapv")

TIMEOUT_S = 600


@dataclass(frozen=True)
class Isa:
    """An instruction set level: flags for the compiler, and the CPU flags (of /proc/cpuinfo) that it needs."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]


_V3 = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

ISAS = (
    Isa("avx512", ("-march=x86-64-v4", "-mprefer-vector-width=512"), _V4),
    Isa("avx2", ("-march=x86-64-v3",), _V3),
    Isa("baseline", (), frozenset()),
)
"""Best first."""


@functools.cache
def machine_isas() -> tuple[Isa, ...]:
    """The levels that this machine runs, best first."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        return ISAS[-1:]
    flags = frozenset(cpu_flags().split())
    return tuple(isa for isa in ISAS if isa.needs <= flags)


def isa(name: str) -> Isa:
    """A level by name. Raises BuildError for one that is unknown, or that this machine does not run."""
    for level in machine_isas():
        if level.name == name:
            return level
    shown = ", ".join(isa.name for isa in machine_isas())
    raise BuildError(f"this machine does not run instruction set level {name!r}; it runs {shown}")


def build(
    source: str,
    name: str,
    level: Isa | None = None,
    *,
    runtime: Sequence[str] = (),
    compiler: str | None = None,
) -> Path:
    """The library of a translation unit, from the cache or built now.

    name: the beginning of the file's name. level: by default the best that this machine runs. runtime: source files
    of the runtime that go with it; each is compiled once for all.
    Raises BuildError where there is no compiler, or it fails.
    """
    level = level or machine_isas()[0]
    compiler = compiler or find_compiler()
    if compiler is None:
        raise BuildError(
            f"graph {name}: no C++ compiler found; set KERNELS_HUB_CXX or install g++, or choose another engine"
        )
    key = _key(f"{' '.join(runtime)}\n{source}", compiler, level)
    stem = f"{re.sub(r'[^A-Za-z0-9_]+', '_', name)[:40] or 'graph'}-{key}"
    with _LOCKS[key]:
        for folder in _folders():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                return _cached(source, stem, runtime, folder, compiler, level)
            except OSError as error:
                _say_once(str(folder), str(error))
        raise BuildError(f"graph {name}: no folder to build in can be written to; set KERNELS_HUB_CACHE")


def _folders() -> Iterator[Path]:
    """Where a library may be kept, the best first."""
    yield cache_folder("compiled")
    with contextlib.suppress(OSError):
        yield _OWN.get()


def whole(path: Path) -> bytes | None:
    """The bytes of a library that was built here; None where they are no longer those."""
    with contextlib.suppress(OSError):
        return path.read_bytes() if is_whole(path) else None
    return None


def identity(source: str, runtime: Sequence[str], level: Isa) -> str:
    """A digest of all that decides what a library computes: source, runtime, flags; not which compiler built it."""
    digest = hashlib.sha256()
    for part in (source, *runtime, _headers().digest, " ".join((*FLAGS, *level.flags)), platform.machine()):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def keep_private_folder() -> None:
    """Make the folder that serves where the cache cannot be written to. Raises OSError where none can be made."""
    _OWN.get()


def begin(runtime: Sequence[str], level: Isa | None = None) -> None:
    """Compile source files of the runtime that a build is going to want, while the caller goes on.

    The build waits for what is under way. Without a compiler, or where one fails, nothing happens here: the build
    says so. On one core nothing is gained, and beside a model it would be one process more.
    """
    compiler = find_compiler()
    if compiler is None or not runtime or (cores := usable_cpus()) == 1:
        return
    level = level or machine_isas()[0]
    pool = _pool(cores - 1)
    for name in runtime:
        pool.submit(_begin, name, compiler, level)
    pool.shutdown(wait=False)


def _pool(workers: int) -> ThreadPoolExecutor:
    """Threads that work beside a model where this one does."""
    return ThreadPoolExecutor(workers, "kernels_hub", initializer=BESIDE.set, initargs=(BESIDE.get(),))


def usable_cpus() -> int:
    """How many CPUs this process may use: no more than its affinity says, which containers and schedulers set."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin(code: str, compiler: str, level: Isa) -> None:
    with contextlib.suppress(OSError, BuildError):
        folder = cache_folder("compiled")
        folder.mkdir(parents=True, exist_ok=True)
        _runtime_object(code, folder, compiler, level)


def load(path: Path, data: bytes | None = None) -> ctypes.CDLL:
    """A library. Raises BuildError where the dynamic linker refuses it.

    data: what the file holds, where it was verified: these bytes are loaded, whatever lies there by now.
    """
    try:
        return ctypes.CDLL(str(path if data is None else _copied(path.name, data)))
    except OSError as error:
        raise BuildError(f"{path} does not load: {error}; delete it, and it is built again") from error


def _copied(name: str, data: bytes) -> Path:
    """A file that nobody else can write, with these bytes."""
    with contextlib.suppress(OSError, AttributeError):  # other systems; no /proc
        descriptor = os.memfd_create(name[:200])
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
        # Left open: the dynamic linker knows a library by its path, which another file must not get.
        if (descriptor_path := Path(f"/proc/self/fd/{descriptor}")).exists():
            return descriptor_path
        os.close(descriptor)
    descriptor_path = _OWN.get() / f"{hashlib.sha256(data).hexdigest()[:32]}-{name}"
    if not descriptor_path.exists():
        write_atomically(descriptor_path, data)
    return descriptor_path


def _cached(source: str, stem: str, runtime: Sequence[str], folder: Path, compiler: str, level: Isa) -> Path:
    target = folder / f"{stem}.so"
    if is_whole(target):
        return target
    code = folder / f"{stem}.cpp"
    write_atomically(code, source.encode())
    with scratch_folder(folder, f"{stem}-") as private:
        own, linked = private / "unit.o", private / "unit.so"
        unit = private / "unit.cpp"
        unit.write_text(source, encoding="utf-8")
        with _pool(len(runtime) + 1) as pool:  # some wait for what `begin` began
            shared = [pool.submit(_runtime_object, name, folder, compiler, level) for name in runtime]
            pool.submit(_compile, unit, own, compiler, level, code).result()
            objects = [own, *(shared_object.result() for shared_object in shared)]
        link = [compiler, "-shared", "-fopenmp", *map(str, objects), "-o", str(linked)]
        _run(link, code, f"{compiler} failed to link {code} (kept)")
        publish(linked, target)
    return target


def _runtime_object(code: str, folder: Path, compiler: str, level: Isa) -> Path:
    """The object of a source file of the runtime, from the cache or compiled now."""
    key = _key("", compiler, level)
    target = folder / f"runtime_{Path(code).stem}-{level.name}-{key}.o"
    with _LOCKS[target.name]:
        if not is_whole(target):
            with scratch_folder(folder, f"{target.stem}-") as private:
                output = private / "part.o"
                _compile(_headers().folder() / code, output, compiler, level, RUNTIME / code)
                publish(output, target)
    return target


def _compile(code: Path, target: Path, compiler: str, level: Isa, kept: Path) -> None:
    """Compile a private copy of a file. kept: where people find it."""
    include = _headers().folder()
    command = [compiler, *FLAGS, *level.flags, f"-I{include}"]
    precompiled.note(command, include, _version(compiler))
    command += ["-c", str(code), "-o", str(target)]
    what = f"{compiler} failed on {kept} (kept)"
    is_beside_precompiled = precompiled.is_there(include)
    try:
        _run(command, kept, what)
    except BuildError as error:
        if "internal compiler error" not in str(error) or not is_beside_precompiled:
            raise
        _LOGGER.info("compiled again without a precompiled header: %s", error)
        precompiled.discard(include)
        _run(command, kept, what)


@functools.cache
def _slots() -> threading.Semaphore:
    """As many as compilers run at once: one for each CPU."""
    return threading.Semaphore(usable_cpus())


def _run(command: list[str], code: Path, what: str) -> None:
    try:
        with _slots():
            errors = run_compiler(command, TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} took more than {TIMEOUT_S} s on {code}") from error
    if errors is not None:
        raise BuildError(f"{what}:\n{errors}")


class _Locks(dict[str, threading.Lock]):
    """A lock a key: threads of one process do not build one thing twice."""

    def __missing__(self, key: str) -> threading.Lock:
        return self.setdefault(key, threading.Lock())


_LOCKS = _Locks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_LOCKS.clear)  # threads that hold them are not in the child
    os.register_at_fork(after_in_child=_slots.cache_clear)


def _key(source: str, compiler: str, level: Isa) -> str:
    flags = " ".join((*FLAGS, *level.flags))
    return digest_of(source, _headers().digest, _version(compiler), flags, platform.machine())


@dataclass(frozen=True)
class _Headers:
    """The headers and sources of the runtime: their bytes as they were read, which are what is compiled."""

    files: tuple[tuple[str, bytes], ...]
    digest: str

    def folder(self) -> Path:
        """A copy that nobody else can write, made when something is compiled."""
        with _LOCKS["headers"]:
            folder = _OWN.get() / f"runtime-{self.digest}"
            if not folder.exists():
                is_gone = not folder.parent.exists()  # with the process that this one was forked off
                private = Path(tempfile.mkdtemp(dir=None if is_gone else folder.parent))
                for name, data in self.files:
                    (private / name).write_bytes(data)
                if is_gone:
                    return private
                move_into_place(private, folder)
            return folder


def _headers() -> _Headers:
    """What the headers of the runtime are, read again where a file has changed."""
    files = sorted((*RUNTIME.glob("*.h"), *RUNTIME.glob("*.cpp")))
    return _read_headers(tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files))


@functools.lru_cache(maxsize=4)
def _read_headers(files: tuple[tuple[str, int, int], ...]) -> _Headers:
    digest, contents = hashlib.sha256(), []
    for path, _, _ in files:
        data = read_shipped(Path(path))
        digest.update(f"{Path(path).name}:{len(data)}:".encode())
        digest.update(data)
        contents.append((Path(path).name, data))
    return _Headers(tuple(contents), digest.hexdigest())


def _version(compiler: str) -> str:
    try:
        return compiler_version(compiler)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(
            f"{compiler} --version failed: {error}; set KERNELS_HUB_CXX to a C++ compiler"
        ) from error


@functools.cache
def _say_once(folder: str, reason: str) -> None:
    _LOGGER.warning(
        "compiled code cannot be kept in %s (%s): it is built again by every process; set KERNELS_HUB_CACHE",
        folder,
        reason,
    )
