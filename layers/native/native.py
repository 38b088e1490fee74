"""Build a layer's C++ at first use, and keep the result for every later process.

A CPU variant ships C++ *source*: plain C symbols, no torch headers, so one compile takes about a
second and the result does not depend on the torch build. The shared object lives in a
content-addressed cache: its key covers the source, the compiler, the flags and the CPU's
instruction sets, so an upgrade of any of them builds afresh and nothing is ever overwritten.

Where no compiler is found (or the build fails) `load` returns None, says so once on the
`kernels_hub` logger, and the layer runs its PyTorch reference instead: slower, same numbers.

Environment:
    KERNELS_HUB_CACHE   folder of the cache (default: $XDG_CACHE_HOME/kernels_hub or ~/.cache/kernels_hub)
    KERNELS_HUB_CXX     the compiler (default: $CXX, c++, g++ or clang++, the first that exists);
                        the value "none" turns native code off
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

_LOGGER = logging.getLogger("kernels_hub")

# -fopenmp links libgomp.so.1 by soname; torch has loaded its own copy under that name already, so
# the dynamic linker reuses it and both share one thread pool (torch.set_num_threads governs both).
_FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
)

_BUILD_TIMEOUT_S = 300


def load(source: Path, headers: Path | None = None) -> ctypes.CDLL | None:
    """The shared object built from one C++ file, or None where it cannot be built here.

    headers: a folder of headers that the file includes, beside those that lie here; each counts as part of the source.
    Safe under concurrent threads and processes: each builds to a private file and renames it into
    place, so a reader sees either nothing or a whole object.
    """
    compiler = find_compiler()
    if compiler is None:
        _say_once(source.parent.name, "no C++ compiler found (set KERNELS_HUB_CXX or install g++)")
        return None
    try:
        sources = _read_sources(source, headers)
        target = cache_folder() / "native" / f"{source.stem}-{_digest(sources, compiler)}.so"
        if not target.exists():
            _build(source, sources, target, compiler)
        try:
            return ctypes.CDLL(str(target))
        except OSError:  # a truncated or foreign file in the cache: build it again, once
            _build(source, sources, target, compiler)
            return ctypes.CDLL(str(target))
    except (OSError, subprocess.SubprocessError) as error:
        _say_once(source.parent.name, str(error).strip() or type(error).__name__)
        return None


def cache_folder() -> Path:
    """Where built objects are kept."""
    if folder := os.environ.get("KERNELS_HUB_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernels_hub"


@lru_cache(maxsize=1)
def find_compiler() -> str | None:
    """Path of the C++ compiler, or None."""
    wanted = os.environ.get("KERNELS_HUB_CXX")
    if wanted == "none" or sys.platform != "linux":
        return None
    for name in (wanted, os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (path := shutil.which(name)):
            return path
    return None


@lru_cache(maxsize=1)
def _machine(compiler: str) -> str:
    """What decides the meaning of -march=native: compiler version and instruction sets."""
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    flags = ""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as cpuinfo:
            flags = next((line for line in cpuinfo if line.startswith(("flags", "Features"))), "")
    except OSError:
        pass
    return "\n".join((platform.machine(), version, flags))


def _digest(sources: _Sources, compiler: str) -> str:
    digest = hashlib.sha256()
    machine, flags = _machine(compiler).encode(), " ".join(_FLAGS).encode()
    for part in (sources.unit, *(data for _, data in sources.headers), machine, flags):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:32]


class _Sources(NamedTuple):
    """What is compiled: bytes as they were read, once; what lies on the disk may change meanwhile."""

    unit: bytes
    headers: tuple[tuple[str, bytes], ...]


def _read_sources(source: Path, headers: Path | None) -> _Sources:
    paths = [path for folder in _folders(headers) for path in sorted(folder.glob("*.h"))]
    return _Sources(_read(source), tuple((path.name, _read(path)) for path in paths))


def _read(path: Path) -> bytes:
    """A file that came along, by the loader that imported this one: the library's gives what it verified, or raises."""
    get_data = getattr(None if __spec__ is None else __spec__.loader, "get_data", None)
    return path.read_bytes() if get_data is None else bytes(get_data(str(path)))


def _folders(headers: Path | None) -> list[Path]:
    """Where the headers of a source file lie."""
    own = Path(__file__).parent
    return [own] if headers is None or headers == own else [own, headers]


def _build(source: Path, sources: _Sources, target: Path, compiler: str) -> None:
    """Compile a private copy of the sources, in a folder that nobody else can write."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=target.stem, suffix=".tmp") as private:
        unit, partial = Path(private) / source.name, Path(private) / "unit.so"
        unit.write_bytes(sources.unit)
        for name, data in sources.headers:
            (unit.parent / name).write_bytes(data)
        done = subprocess.run(
            [compiler, *_FLAGS, str(unit), "-o", str(partial)],
            capture_output=True,
            text=True,
            check=False,
            timeout=_BUILD_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise OSError(f"{compiler} failed on {source}:\n{done.stderr[-2000:]}")
        partial.replace(target)


@cache
def _say_once(name: str, reason: str) -> None:
    _LOGGER.warning("native CPU code of %s is off, its PyTorch reference runs instead: %s", name, reason)
