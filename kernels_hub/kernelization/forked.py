"""Run a function in a forked process: it sees this one's objects as they are now, and changes none of them.

In the background the process has a low priority and half of the cores. It ends with its parent, at a deadline, or when
it is told to; what it wrote to stdout and stderr comes back with its end, and with a deadline where its threads were.
POSIX only.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import pickle
import select
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

from kernels_hub.cxx_compiler import NICENESS

T = TypeVar("T")

_WATCH_S = 0.25
"""How often a process looks whether its parent is still there."""
_LOOK_S = 0.5
"""How often its processor time is looked at."""
_PATIENCE = 4
_LOG_CHARACTERS = 16_000
_TELL_S = 1.0
"""How long it may take to write where its threads are."""


class ForkedError(RuntimeError):
    """A process that ended without a result. log: the end of what it wrote."""

    def __init__(self, reason: str, log: str = "") -> None:
        super().__init__(reason)
        self.log = log


class DeadlineError(ForkedError):
    """A process that was ended at its deadline. worked: whether it had its processor time; else it hung, or starved."""

    def __init__(self, reason: str, log: str = "", *, worked: bool = True) -> None:
        super().__init__(reason, log)
        self.worked = worked


@dataclass
class Child:
    """A forked process that runs. `stop` ends it, and all that it started."""

    pid: int = 0
    stopped: bool = False

    def stop(self) -> None:
        """End it now, if it is running, and let none begin."""
        self.stopped = True
        self.kill()

    def kill(self) -> None:
        """End it now, if it is running."""
        if self.pid:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(OSError):  # not yet a group of its own
                os.kill(self.pid, signal.SIGKILL)


def run_forked(work: Callable[[], T], *, seconds: float, background: bool, child: Child) -> T:
    """What `work` returns, which must pickle. It must not raise.

    seconds: of processor time; the clock's may be `_PATIENCE` as many, where others keep the processor busy.
    background: with a low priority and on half of the cores, else like this process.
    Raises DeadlineError where it takes longer, ForkedError where the process ends in another way, OSError where there
    is none.
    """
    import threadpoolctl  # noqa: F401 - for the child: nothing is imported between a fork and its work

    with _log_file() as log:
        reading, writing = os.pipe()
        try:
            child.pid = _fork()
            if child.pid == 0:
                _run_child(work, writing, log, background)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        data, worked = None, False
        try:
            if not child.stopped:
                data = _read(reading, child.pid, seconds)
                if data is None:
                    worked = _processor_time(child.pid) >= seconds
                    _have_it_tell(child.pid, log)
        finally:
            os.close(reading)
            if data is None:
                child.kill()
            pid, child.pid = child.pid, 0
            status = _status(pid)
        if data is None:
            raise DeadlineError(f"it took more than {seconds:g} s", _tail(log), worked=worked)
        try:
            result: T = pickle.loads(data)  # noqa: S301 - of our own process
            return result
        except (EOFError, pickle.UnpicklingError, ValueError):  # nothing, or half of it
            raise ForkedError(f"its process ended {_ending(status)}", _tail(log)) from None


def _fork() -> int:
    with warnings.catch_warnings():  # of Python 3.12, where there are threads: see `_run_child`
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _run_child(work: Callable[[], object], writing: int, log: int, background: bool) -> NoReturn:
    """The child's whole life. A thread of its own does the work: OpenMP's team of the forked one is gone.

    What was garbage at the fork is the parent's to collect: its finalizers may wait for threads that are not here.
    """
    try:
        gc.freeze()
        parent = os.getppid()
        os.setpgid(0, 0)  # a session of its own would be scheduled as if its priority were not low
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        faulthandler.register(signal.SIGUSR1, file=log, all_threads=True)
        _leave_files((writing, log))
        sys.stdout = sys.stderr = open(log, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        logging.disable(logging.CRITICAL)
        warnings.simplefilter("ignore")
        if background:
            _yield_the_machine()
        results: list[bytes] = []

        def run() -> None:
            _limit_threads(blas=background)
            results.append(pickle.dumps(work()))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_WATCH_S)
            if os.getppid() != parent:
                os.killpg(0, signal.SIGKILL)
        sys.stdout.flush()
        _write(writing, results[0])
    finally:
        os._exit(0)


def _leave_files(kept: tuple[int, int]) -> None:
    """Let go of the parent's files, sockets and pipes: whoever waits for their end does not wait for this process.

    kept: where to write the result, and the log, which stdout and stderr become. The others'
    numbers stay taken: objects of the parent still close them.
    """
    null, log = os.open(os.devnull, os.O_RDWR), kept[1]
    os.dup2(log, 1)
    os.dup2(log, 2)
    opened = Path("/proc/self/fd")
    for number in [int(path.name) for path in opened.iterdir()] if opened.is_dir() else range(256):
        if number not in kept and number not in (1, 2, null):
            with contextlib.suppress(OSError):
                os.fstat(number)
                os.dup2(null, number, inheritable=number == 0)


def _yield_the_machine() -> None:
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores[len(cores) // 2 :])


def _limit_threads(*, blas: bool) -> None:
    """Threads of PyTorch and, of a process with fewer cores, NumPy's products: too many wait for a core by spinning."""
    if not hasattr(os, "sched_getaffinity"):
        return
    cores = len(os.sched_getaffinity(0))
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(min(torch.get_num_threads(), cores))
    if blas:
        from threadpoolctl import threadpool_limits

        threadpool_limits(cores, user_api="blas")


def _read(descriptor: int, pid: int, seconds: float) -> bytes | None:
    """All until the end; None where that comes too late. Time in which this process is stopped does not count."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    data = bytearray()
    waited, last = 0.0, time.monotonic()
    while (left := _PATIENCE * seconds - waited) > 0:
        ready = poll.poll(min(left, _LOOK_S) * 1000)
        now = time.monotonic()
        # Longer than it waits for, this process was stopped, and most likely the other one, too.
        waited, last = waited + min(now - last, 2 * _LOOK_S), now
        if ready:
            if not (more := os.read(descriptor, 1 << 16)):
                return bytes(data)
            data += more
        elif _processor_time(pid) > seconds:
            break
    return None


def _have_it_tell(pid: int, log: int) -> None:
    """Have it write where its threads are: one that hangs is understood from that alone."""
    before = os.fstat(log).st_size
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGUSR1)
        end = time.monotonic() + _TELL_S
        while os.fstat(log).st_size == before and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.05)  # the rest of it


def _processor_time(pid: int) -> float:
    """Seconds that a process, and the processes that it has waited for, have had; 0 where that cannot be read."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return sum(map(int, text.rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _status(pid: int) -> int | None:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except (OSError, ValueError):  # somebody else has waited for it
        return None


def _ending(status: int | None) -> str:
    if status is None or status >= 0:
        return f"without a result{f' (exit status {status})' if status else ''}"
    with contextlib.suppress(ValueError):
        return f"by {signal.Signals(-status).name}"
    return f"by signal {-status}"


@contextlib.contextmanager
def _log_file() -> Iterator[int]:
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.TemporaryFile())
        except OSError:  # a full disk
            file = stack.enter_context(Path(os.devnull).open("r+b"))
        yield file.fileno()


def _tail(log: int) -> str:
    try:
        size = os.fstat(log).st_size
        return os.pread(log, _LOG_CHARACTERS, max(0, size - _LOG_CHARACTERS)).decode("utf-8", "replace")
    except OSError:
        return ""
