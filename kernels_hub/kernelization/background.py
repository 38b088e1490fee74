"""Background work: one thread that takes jobs in turn, and forks a process for heavy ones.

The thread is a daemon. It starts with a job and ends when there is none: a thread that has computed in parallel keeps
OpenMP's threads of its own, and with more of them than processors libgomp lets all threads of the process sleep between
two parallel regions, so that every model in it, kernelized or not, takes up to half as long again. At interpreter exit
its process is ended and the thread waited for; a process that was forked off by the user starts with no jobs.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from kernels_hub.kernelization.forked import Child

logger = logging.getLogger(__name__)

_EXIT_S = 5.0
_POLL_S = 0.1


class Job:
    """Something to do in the background. what: for people, as in "compiling BertModel"."""

    def __init__(self, what: str, run: Callable[[Job], None], *, urgent: bool = False) -> None:
        self.what, self.urgent = what, urgent
        self._run = run
        self._done = threading.Event()
        self.owner = os.getpid()

    @property
    def is_done(self) -> bool:
        """Whether it has run, or never will: it was left behind by a fork."""
        return self._done.is_set() or self.owner != os.getpid()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is done, at most so many seconds; whether it is. At once on the thread that runs jobs."""
        if not self.is_done and not BACKGROUND.is_own_thread():
            deadline = None if timeout is None else time.monotonic() + timeout
            while not self.is_done and BACKGROUND.is_alive():
                left = _POLL_S if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    break
                self._done.wait(min(left, _POLL_S))
        return self.is_done

    def finish(self) -> None:
        """Run it. Raises nothing: a job tells its owner what it came to."""
        try:
            self._run(self)
        except Exception:
            logger.exception("%s failed", self.what)
        finally:
            self._done.set()


class Background:
    """The thread, and the jobs that wait for it."""

    def __init__(self) -> None:
        self.child = Child()
        """The process of the job that runs."""
        self._jobs: list[tuple[bool, int, Job]] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._is_running = False
        """Whether a thread takes jobs, or will."""
        self._threads: list[threading.Thread] = []
        """The last one takes jobs; the others may not have let go of all that they had yet."""
        self.ends = False
        """Whether the interpreter is at its end."""

    def submit(self, job: Job) -> Job:
        """Have a job run; urgent ones before the others.

        What it forks needs threadpoolctl, which is imported in this thread: a process that forks while another thread
        imports leaves a lock behind that its child waits for without end.
        """
        import threadpoolctl  # noqa: F401

        with self._lock:
            if self.ends:
                job.finish = lambda: None  # type: ignore[method-assign]
                return job
            heappush(self._jobs, (not job.urgent, next(self._numbers), job))
            if not self.is_alive():
                thread = threading.Thread(target=self._work, name="kernels_hub-background", daemon=True)
                self._threads = [*(one for one in self._threads if one.is_alive()), thread]
                self._is_running = True
                thread.start()
        return job

    def is_own_thread(self) -> bool:
        """Whether this is the thread that runs jobs."""
        return bool(self._threads) and threading.current_thread() is self._threads[-1]

    def is_alive(self) -> bool:
        """Whether jobs are being run."""
        return self._is_running and self._threads[-1].is_alive() and not self.ends

    def end(self) -> None:
        """Drop all jobs, end the process of the one that runs, and wait for the thread."""
        self.ends = True
        self.child.stop()
        with self._lock:
            self._jobs.clear()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_EXIT_S)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job.finish()
            del job

    def _next(self) -> Job | None:
        with self._lock:
            self._is_running = bool(self._jobs) and not self.ends
            return heappop(self._jobs)[2] if self._is_running else None


BACKGROUND = Background()


def _begin_again() -> None:
    BACKGROUND.__init__()  # type: ignore[misc]  # its locks and its thread are those of the process before


atexit.register(BACKGROUND.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_again)


def wait_for(jobs: Iterable[Job], timeout: float | None = None) -> bool:
    """Wait for jobs, with a line on stderr where that is a terminal. Whether all are done."""
    waiting = [job for job in jobs if not job.is_done]
    started = time.monotonic()
    line = _ProgressLine()
    try:
        while waiting:
            elapsed = time.monotonic() - started
            if timeout is not None and elapsed >= timeout:
                return False
            line.show(f"kernels_hub: {waiting[0].what}, {len(waiting)} to go, {elapsed:.0f} s")
            if not BACKGROUND.is_alive() or BACKGROUND.is_own_thread():
                return all(job.is_done for job in waiting)
            waiting[0].wait(min(_POLL_S, timeout - elapsed) if timeout is not None else _POLL_S)
            waiting = [job for job in waiting if not job.is_done]
    finally:
        line.clear()
    return True


class _ProgressLine:
    """One line that is written over; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self._width = 0
        self._is_on = sys.stderr is not None and sys.stderr.isatty()

    def show(self, text: str) -> None:
        if self._is_on:
            sys.stderr.write(f"\r{text[:100]:<{self._width}}")
            sys.stderr.flush()
            self._width = len(text[:100])

    def clear(self) -> None:
        if self._is_on and self._width:
            sys.stderr.write(f"\r{'':<{self._width}}\r")
            sys.stderr.flush()
