"""The system's C++ compiler: finds it, runs it, and names and publishes what it builds.

Native code is kept in the cache under a name that is a digest of everything that determines it: sources, flags, and the
compiler's version. A library appears whole, by a rename; a digest beside it tells a damaged one, which is built again.

Imports the standard library and `files` alone: a copy of this file is shipped wherever native code is built without the
library.

Environment:
    KERNELS_HUB_CXX   the compiler (default: $CXX, c++, g++ or clang++, the first that exists); "none" turns it off
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Literal

from .files import move_into_place, write_atomically

_WITHOUT_MMX = ("-mno-mmx",) if platform.machine() in {"x86_64", "AMD64"} else ()
"""GCC 12 moves pairs of 32-bit integers through an MMX register, and does not free it: the next long double that the
process computes, of another library as well, is NaN."""
FLAGS = ("-std=c++20", "-O3", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fPIC", *_WITHOUT_MMX)
"""Flags of all native code. -fopenmp links libgomp.so.1 by soname; torch has loaded its own copy under that name
already, so the dynamic linker reuses it and both share one thread pool, which torch.set_num_threads governs."""

NICENESS = 8
"""Of what works beside a model. Measured on two cores with models that keep both busy without a pause, whose threads
wait for each other: calls take 1.0 to 1.5 times as long at 10, and what takes 12 s alone is not done after 110; 1.2 to
1.6 times at 8; 1.3 to 2.5 times at 7, with stalls of 0.2 s, and it is done after 32 to 48 s."""
BESIDE: ContextVar[int] = ContextVar("beside", default=0)
"""The niceness of compilers that this thread runs; not 0 where it works beside a model."""

_MESSAGE_LINES = 12
_VERSION_TIMEOUT_S = 60
_RUNNING: set[subprocess.Popen[bytes]] = set()
_ENGLISH = {"LC_ALL": "C.UTF-8", "LANGUAGE": ""}
"""What is looked for in a compiler's errors is not there in other languages."""
_STARTING = threading.RLock()
"""Held while a compiler is started, and by a fork: a child made meanwhile would keep a pipe open that the start reads
to its end."""
_ENDING = threading.Event()
"""Set as this process ends: what other threads than the main one still build ends, too."""


def find_compiler() -> str | None:
    """Path of the C++ compiler, or None. Not cached: the environment may change."""
    configured = os.environ.get("KERNELS_HUB_CXX")
    if configured == "none" or sys.platform != "linux":
        return None
    for name in (configured, os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (path := shutil.which(name)):
            return path
    return None


@functools.cache
def compiler_version(compiler: str) -> str:
    """What a compiler says of itself. Raises OSError or subprocess.SubprocessError where it does not run."""
    status, text = _run([compiler, "--version"], _VERSION_TIMEOUT_S, "stdout")
    if status != 0:
        raise subprocess.CalledProcessError(status, compiler)
    return text


def cpu_flags() -> str:
    """The line of /proc/cpuinfo that lists the instruction sets of this machine; "" without one."""
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return ""


def lowered(niceness: int) -> list[str]:
    """What to put before a command, so that it has a lower priority from its first instruction on.

    In the session of this process: Linux groups tasks by session, and a priority counts within its group alone.
    """
    return ["nice", "-n", str(niceness)] if niceness and shutil.which("nice") else []


def run_compiler(command: Sequence[str], timeout: float) -> str | None:
    """Run a compiler; returns its first errors where it fails, None where it does not. It ends with this process.

    Raises subprocess.TimeoutExpired, OSError where the disk is full or the command cannot be started, and SystemExit in
    other threads than the main one once the interpreter exits: they end, clear up, and nothing is logged.
    """
    status, message = _run(command, timeout, "stderr")
    if status == 0:
        return None
    if "No space left" in message:
        raise OSError(errno.ENOSPC, f"no space left for the output of {command[0]}")
    return _first_errors(message, status)


def _run(command: Sequence[str], timeout: float, stream: Literal["stdout", "stderr"]) -> tuple[int, str]:
    """The status of a command, and what it wrote to one stream.

    Written to a file: a pipe ends only when each child that this process forked meanwhile has ended.
    """
    with _written() as file:
        with _STARTING:
            _end_with_the_process()
            process = subprocess.Popen(
                [*lowered(BESIDE.get()), *command],
                stdout=file if stream == "stdout" else subprocess.DEVNULL,
                stderr=file if stream == "stderr" else subprocess.DEVNULL,
                env={**os.environ, **_ENGLISH},
            )
            _RUNNING.add(process)
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(timeout, end)
        timer.daemon = True
        timer.start()  # `wait(timeout)` looks every 50 ms
        try:
            status = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            timer.cancel()
            _RUNNING.discard(process)
        if is_late.is_set():
            raise subprocess.TimeoutExpired(command, timeout)
        if status != 0:
            _end_with_the_process()
        file.seek(0)
        return status, file.read().decode(errors="replace")


def _written() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("compiler"), "w+b")
    return tempfile.TemporaryFile()


def _end_with_the_process() -> None:
    if _ENDING.is_set() and threading.current_thread() is not threading.main_thread():
        raise SystemExit


def _after_fork() -> None:
    """The compilers that run are the parent's, and the thread that has its turn is not here."""
    vars(sys)[_TURNS] = threading.Lock()
    _RUNNING.clear()
    _STARTING.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_STARTING.acquire, after_in_parent=_STARTING.release, after_in_child=_after_fork
    )


@atexit.register
def kill_compilers() -> None:
    """End the compilers that this process runs, as it ends; its threads start no more."""
    with _STARTING:
        _ENDING.set()
        for process in list(_RUNNING):
            process.kill()


@contextlib.contextmanager
def one_at_a_time(folder: Path, ends: Callable[[], bool] | None = None) -> Iterator[None]:
    """Hold the lock of a cache of native code: one works beside models at a time, over all threads and processes.

    ends: whether to wait no longer, and to go on without it; by default whether the interpreter exits. A POSIX lock
    belongs to its process, so that a fork, whenever it comes, takes none along: a child that held its parent's would
    wait for itself. Raises OSError where the folder cannot be written to.
    """
    import fcntl  # where there is a compiler, there is this

    folder.mkdir(parents=True, exist_ok=True)
    turns: threading.Lock = vars(sys).setdefault(_TURNS, threading.Lock())
    ends = ends or process_ends
    with contextlib.ExitStack() as held, (folder / ".building").open("w") as file:
        while not turns.acquire(timeout=_LOOK_S):
            if ends():
                break
        else:
            held.callback(turns.release)
        while not ends():
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, PermissionError):  # another process has it
                time.sleep(_LOOK_S)
        yield


_LOOK_S = 0.05
_TURNS = "_kernels_hub_turns"
"""Where the threads of this process find the lock that they hold with the file's: each layer has its own copy of this
module, and the copies share `sys`."""


def process_ends() -> bool:
    """Whether the interpreter exits: what works in a thread is to clear up and to end, and nothing is logged."""
    return _ENDING.is_set()


def _first_errors(message: str, status: int) -> str:
    """The first errors of a compiler's message, each with the lines that show its place."""
    lines = [line for line in message.splitlines() if line.strip()]
    starts = [number for number, line in enumerate(lines) if re.search(r"\b(error|fatal)\b", line)]
    if not starts:
        return "\n".join(lines[-_MESSAGE_LINES:]) or f"exit status {status}, no message"
    shown: list[str] = []
    for start in starts[:3]:
        shown += lines[start : start + 4]
    rest = f"\n… and {len(starts) - 3} more errors" if len(starts) > 3 else ""
    return "\n".join(shown[:_MESSAGE_LINES]) + rest


def digest_of(*parts: str | bytes) -> str:
    """32 hexadecimal digits for a sequence of parts, which no other sequence has."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:32]


def publish(built: Path, target: Path) -> None:
    """Move a finished file into the cache, and write its digest beside it."""
    digest = hashlib.sha256(built.read_bytes()).hexdigest()
    move_into_place(built, target)
    write_atomically(_digest_file(target), digest)


def is_whole(target: Path) -> bool:
    """Whether a file is in the cache, with the content that was published."""
    try:
        digest = _digest_file(target).read_text(encoding="ascii")
        return hashlib.sha256(target.read_bytes()).hexdigest() == digest
    except (OSError, UnicodeDecodeError):
        return False


def _digest_file(target: Path) -> Path:
    return target.with_name(f"{target.name}.sha256")
