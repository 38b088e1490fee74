"""Generated C++ to loaded libraries: the system compiler, and a cache of what it built.

A library is the generated unit and some source files of the runtime, which are compiled once for all. It is kept
under a name that is a digest of all that decides its content: source, runtime, flags, the compiler's version.
Each build goes to a private file that is renamed into place, so that concurrent
threads and processes see nothing or the whole; a digest beside the library tells a damaged one, which is built again.
Where the folder cannot be written to, a folder of this process serves, and a warning says so once.

Environment, as for the native code of layers:
    KERNELS_HUB_CACHE   folder of the cache (default: $XDG_CACHE_HOME/kernels_hub or ~/.cache/kernels_hub)
    KERNELS_HUB_CXX     the compiler (default: $CXX, c++, g++ or clang++, the first that exists); "none" turns it off
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
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kernels_hub.compiler.errors import BuildError
from kernels_hub.compiler.private_folder import PrivateFolder

_LOGGER = logging.getLogger("kernels_hub")
_OWN = PrivateFolder("compiled")

RUNTIME = Path(__file__).parent / "runtime"
"""The folder of the headers that generated code includes."""

FLAGS = (
    "-std=c++20", "-O3", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fwrapv", "-fPIC",
)  # fmt: skip

TIMEOUT_S = 600
_MESSAGE_LINES = 12


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
    flags: frozenset[str] = frozenset()
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        text = next((line for line in lines if line.startswith("flags")), "")
        flags = frozenset(text.split())
    return tuple(one for one in ISAS if one.needs <= flags)


def isa(name: str) -> Isa:
    """A level by name. Raises BuildError for one that is unknown, or that this machine does not run."""
    for one in machine_isas():
        if one.name == name:
            return one
    shown = ", ".join(one.name for one in machine_isas())
    raise BuildError(f"this machine does not run instruction set level {name!r}; it runs {shown}")


def find_compiler() -> str | None:
    """Path of the C++ compiler, or None. Not cached: the environment may change."""
    wanted = os.environ.get("KERNELS_HUB_CXX")
    if wanted == "none" or sys.platform != "linux":
        return None
    for name in (wanted, os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (path := shutil.which(name)):
            return path
    return None


def cache_folder() -> Path:
    """Where compiled code is kept."""
    if folder := os.environ.get("KERNELS_HUB_CACHE"):
        return Path(folder) / "compiled"
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "kernels_hub" / "compiled"


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
    yield cache_folder()
    with contextlib.suppress(OSError):
        yield _OWN.get()


def begin(runtime: Sequence[str], level: Isa | None = None) -> None:
    """Compile source files of the runtime that a build is going to want, while the caller goes on.

    The build waits for what is under way. Without a compiler, or where one fails, nothing happens here: the build
    says so.
    """
    compiler = find_compiler()
    if compiler is None or not runtime:
        return
    level = level or machine_isas()[0]
    pool = ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 1) - 1), thread_name_prefix="kernels_hub")
    for one in runtime:
        pool.submit(_begin, one, compiler, level)
    pool.shutdown(wait=False)


def _begin(code: str, compiler: str, level: Isa) -> None:
    with contextlib.suppress(OSError, BuildError):
        folder = cache_folder()
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
        if (place := Path(f"/proc/self/fd/{descriptor}")).exists():
            return place
        os.close(descriptor)
    place = _OWN.get() / f"{hashlib.sha256(data).hexdigest()[:32]}-{name}"
    if not place.exists():
        _replace(place, data)
    return place


def _cached(source: str, stem: str, runtime: Sequence[str], folder: Path, compiler: str, level: Isa) -> Path:
    target = folder / f"{stem}.so"
    if _is_whole(target):
        return target
    code = folder / f"{stem}.cpp"
    _replace(code, source.encode())
    with tempfile.TemporaryDirectory(dir=folder, prefix=f"{stem}-", suffix=".tmp") as private:
        own, linked = Path(private) / "unit.o", Path(private) / "unit.so"
        unit = Path(private) / "unit.cpp"
        unit.write_text(source, encoding="utf-8")
        with ThreadPoolExecutor(max_workers=len(runtime) + 1) as pool:  # some wait for what `begin` began
            shared = [pool.submit(_runtime_object, one, folder, compiler, level) for one in runtime]
            pool.submit(_compile, unit, own, compiler, level, code).result()
            objects = [own, *(one.result() for one in shared)]
        link = [compiler, "-shared", "-fopenmp", *map(str, objects), "-o", str(linked)]
        _run(link, code, f"{compiler} failed to link {code} (kept)")
        _publish(linked, target)
    return target


def _runtime_object(code: str, folder: Path, compiler: str, level: Isa) -> Path:
    """The object of a source file of the runtime, from the cache or compiled now."""
    key = _key("", compiler, level)
    target = folder / f"runtime_{Path(code).stem}-{level.name}-{key}.o"
    with _LOCKS[target.name]:
        if not _is_whole(target):
            with tempfile.TemporaryDirectory(dir=folder, prefix=f"{target.stem}-", suffix=".tmp") as private:
                made = Path(private) / "part.o"
                _compile(_headers().folder() / code, made, compiler, level, RUNTIME / code)
                _publish(made, target)
    return target


def _publish(made: Path, target: Path) -> None:
    """Put a file in its place, and its digest beside it."""
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    made.replace(target)
    _replace(_note(target), digest.encode())


def _note(target: Path) -> Path:
    return target.with_name(f"{target.name}.sha256")


def _is_whole(target: Path) -> bool:
    try:
        return hashlib.sha256(target.read_bytes()).hexdigest() == _note(target).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return False


def _replace(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old or the new content."""
    descriptor, private = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}-", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(private).replace(path)
    finally:
        Path(private).unlink(missing_ok=True)


def _compile(code: Path, target: Path, compiler: str, level: Isa, kept: Path) -> None:
    """Compile a private copy of a file. kept: where people find it."""
    include = _headers().folder()
    command = [compiler, *FLAGS, *level.flags, f"-I{include}", "-c", str(code), "-o", str(target)]
    _run(command, kept, f"{compiler} failed on {kept} (kept)")


def _run(command: list[str], code: Path, what: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} took more than {TIMEOUT_S} s on {code}") from error
    if done.returncode != 0:
        if "No space left" in done.stderr:
            raise OSError(f"no space left in {code.parent}")
        raise BuildError(f"{what}:\n{_shortened(done.stderr, done.returncode)}")


def _shortened(message: str, code: int) -> str:
    """The first errors of a compiler's message, each with the lines that show where it is."""
    lines = [line for line in message.splitlines() if line.strip()]
    starts = [place for place, line in enumerate(lines) if re.search(r"\b(error|fatal)\b", line)]
    if not starts:
        return "\n".join(lines[-_MESSAGE_LINES:]) or f"exit status {code}, no message"
    kept: list[str] = []
    for start in starts[:3]:
        kept += lines[start : start + 4]
    rest = f"\n… and {len(starts) - 3} more errors" if len(starts) > 3 else ""
    return "\n".join(kept[:_MESSAGE_LINES]) + rest


class _Locks(dict[str, threading.Lock]):
    """A lock a key: threads of one process do not build one thing twice."""

    def __missing__(self, key: str) -> threading.Lock:
        return self.setdefault(key, threading.Lock())


_LOCKS = _Locks()


def _key(source: str, compiler: str, level: Isa) -> str:
    digest = hashlib.sha256()
    parts = (
        source,
        _headers().digest,
        _version(compiler),
        " ".join((*FLAGS, *level.flags)),
        platform.machine(),
    )
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:32]


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
                made = Path(tempfile.mkdtemp(dir=None if is_gone else folder.parent))
                for name, data in self.files:
                    (made / name).write_bytes(data)
                if is_gone:
                    return made
                made.rename(folder)
            return folder


def _headers() -> _Headers:
    """What the headers of the runtime are, read again where a file has changed."""
    files = sorted((*RUNTIME.glob("*.h"), *RUNTIME.glob("*.cpp")))
    return _read_headers(tuple((str(one), one.stat().st_mtime_ns, one.stat().st_size) for one in files))


@functools.lru_cache(maxsize=4)
def _read_headers(files: tuple[tuple[str, int, int], ...]) -> _Headers:
    digest, found = hashlib.sha256(), []
    for path, _, _ in files:
        data = _read(Path(path))
        digest.update(f"{Path(path).name}:{len(data)}:".encode())
        digest.update(data)
        found.append((Path(path).name, data))
    return _Headers(tuple(found), digest.hexdigest())


def _read(path: Path) -> bytes:
    """A file beside this one, by the loader that imported this: the library's gives what it verified."""
    get_data = getattr(None if __spec__ is None else __spec__.loader, "get_data", None)
    return path.read_bytes() if get_data is None else bytes(get_data(str(path)))


@functools.cache
def _version(compiler: str) -> str:
    try:
        done = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, errors="replace", check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(
            f"{compiler} --version failed: {error}; set KERNELS_HUB_CXX to a C++ compiler"
        ) from error
    return done.stdout


@functools.cache
def _say_once(folder: str, reason: str) -> None:
    _LOGGER.warning(
        "compiled code cannot be kept in %s (%s): it is built again by every process; set KERNELS_HUB_CACHE",
        folder,
        reason,
    )
