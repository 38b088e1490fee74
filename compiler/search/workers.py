"""An executor with a process for each task: a crash loses that task alone.

    with Workers(2) as workers:            # a concurrent.futures.Executor
        future = workers.submit(f, x)
        future.result()                    # WorkerLostError where its process died
        workers.abandon(future)            # ends the process that runs it

A worker that is lost is replaced when there is more to do. `WorkerExecutor` is what any kind of worker needs: a thread
for each, which hands it one task after the other. Workers of this module end with the process that started them,
however that ends, and take along what they started (a C++ compiler).

It is the only pool of processes; Ray's workers are another kind of `WorkerExecutor`. What needs no process of its own
is no task for it: downloads, and C++ compilers that are waited for, run in threads of the standard library's pool.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import platform
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Protocol, TypeVar

from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.runtime.toolchain import usable_cpus

T = TypeVar("T")

_JOIN_S = 5.0


class WorkerLostError(EngineError):
    """A worker that died, or was ended, before it gave a result."""


class Worker(Protocol):
    """What works: one task at a time."""

    where: str
    """Its machine and process id, as "host:1234"."""

    def run(self, task: bytes) -> bytes:
        """What `work` gives for the task. Raises WorkerLostError."""

    def kill(self) -> None:
        """End it now, from any thread; `run` raises then. Never raises."""

    def close(self) -> None:
        """Let go of it, when it has nothing to do. Never raises."""


class WorkerExecutor(Executor):
    """Tasks in order of arrival, each for the first worker that is free. See the module.

    start: makes a worker, and raises where it cannot: then the others do its work, and where there are none, tasks
    fail with what it raised. What is submitted, and what it gives, is pickled.
    """

    def __init__(self, start: Callable[[], Worker], max_workers: int) -> None:
        if max_workers < 1:
            raise ValueError(f"there is to be at least one worker, not {max_workers}")
        self.max_workers = max_workers
        self.closed = False
        self._start = start
        self._tasks: deque[tuple[Future[Any], bytes]] = deque()
        self._running: dict[Future[Any], Worker] = {}
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []

    def submit(self, fn: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        """See `concurrent.futures`. Raises where the function or an argument cannot be pickled."""
        task = pickle.dumps((fn, args, kwargs))
        future: Future[T] = Future()
        with self._changed:
            if self.closed:
                raise RuntimeError("the executor is shut down")
            self._tasks.append((future, task))
            self._changed.notify()
            if len(self._threads) < min(self.max_workers, len(self._tasks) + len(self._running)):
                thread = threading.Thread(target=self._serve, name="worker", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def abandon(self, future: Future[Any]) -> None:
        """Cancel a task that waits; end the worker of one that runs, whose future raises WorkerLostError then."""
        future.cancel()
        with self._changed:
            if (worker := self._running.get(future)) is not None:
                worker.kill()

    def where(self, future: Future[Any]) -> str:
        """The machine and process that runs a task; empty where none does."""
        with self._changed:
            worker = self._running.get(future)
        return worker.where if worker is not None else ""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `concurrent.futures`. cancel_futures: of tasks that wait."""
        with self._changed:
            self.closed = True
            waiting = [future for future, _ in self._tasks] if cancel_futures else []
            threads = list(self._threads)
            self._changed.notify_all()
        for one in waiting:
            one.cancel()
        if wait:
            for thread in threads:
                thread.join()

    def _serve(self) -> None:
        worker: Worker | None = None
        while self._is_work():
            if worker is None:
                try:
                    worker = self._start()  # before a task is taken, which others may do meanwhile
                except Exception as error:  # noqa: BLE001  (whatever it is, a future says it)
                    if self._leaves(error):
                        return
                    continue
            if (taken := self._take(worker)) is not None:
                worker = self._settle(*taken, worker)
        if worker is not None:
            worker.close()

    def _is_work(self) -> bool:
        """Wait for it; False once there can be no more."""
        with self._changed:
            while not self._tasks and not self.closed:
                self._changed.wait()
            return bool(self._tasks)

    def _take(self, worker: Worker) -> tuple[Future[Any], bytes] | None:
        with self._changed:
            while self._tasks:
                future, task = self._tasks.popleft()
                if future.set_running_or_notify_cancel():
                    self._running[future] = worker
                    return future, task
        return None

    def _leaves(self, error: Exception) -> bool:
        """Whether a thread that gets no worker leaves the work to others. The last one says why, and tries again."""
        with self._changed:
            if len(self._threads) > 1:
                self._threads.remove(threading.current_thread())
                self._changed.notify_all()
                return True
            future = self._tasks.popleft()[0] if self._tasks else None
        if future is not None and future.set_running_or_notify_cancel():
            future.set_exception(error)
        return False

    def _settle(self, future: Future[Any], task: bytes, worker: Worker) -> Worker | None:
        """Run a task; returns the worker for the next one."""
        try:
            good, result = pickle.loads(worker.run(task))  # noqa: S301  (of our own worker)
        except BaseException as error:  # noqa: BLE001
            good, result = False, error
        with self._changed:
            del self._running[future]
        lost = not good and isinstance(result, WorkerLostError)
        if lost:
            worker.kill()
        if good:
            future.set_result(result)
        else:
            future.set_exception(result)
        return None if lost else worker


class Workers(WorkerExecutor):
    """Processes on this machine. max_workers: by default, one for each CPU that this process may use."""

    def __init__(self, max_workers: int | None = None) -> None:
        super().__init__(_Process, max_workers or usable_cpus())


def work(task: bytes) -> bytes:
    """Run a task of `WorkerExecutor.submit`, in a worker: (whether it went well, result or exception), pickled."""
    try:
        fn, args, kwargs = pickle.loads(task)  # noqa: S301  (of the executor)
        return pickle.dumps((True, fn(*args, **kwargs)))
    except Exception as error:  # noqa: BLE001  (it goes to whoever waits for the result)
        error.add_note(f"in {place()}:\n{''.join(traceback.format_exception(error))}")
        try:
            packed = pickle.dumps((False, error))
            pickle.loads(packed)  # noqa: S301  (some exceptions are pickled, and cannot be read)
        except Exception:  # noqa: BLE001
            text = str(error)
            packed = pickle.dumps((False, EngineError(f"{type(error).__name__}: {text}")))
        return packed


def place() -> str:
    """This process, as `Worker.where` says it."""
    return f"{platform.node()}:{os.getpid()}"


class _Process:
    """A process of this machine, in a session of its own: Ctrl-C is for whoever started it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        try:
            self._process.start()
            theirs.close()
            self.where = self._ours.recv_bytes().decode()
        except (OSError, EOFError) as error:
            self.kill()
            raise WorkerLostError(f"a worker could not be started: {self._end() or error}") from error

    def run(self, task: bytes) -> bytes:
        """See `Worker`."""
        try:
            self._ours.send_bytes(task)
            return self._ours.recv_bytes()
        except (OSError, EOFError) as error:
            self.kill()  # before it is waited for: until then its number is no other's
            raise WorkerLostError(f"its worker {self._end() or 'closed the connection'}") from error

    def kill(self) -> None:
        """See `Worker`."""
        with contextlib.suppress(Exception):
            os.killpg(self._process.pid or 0, signal.SIGKILL) if self._alone() else self._process.kill()

    def close(self) -> None:
        """See `Worker`."""
        self._ours.close()
        self._process.join(_JOIN_S)
        self.kill()

    def _alone(self) -> bool:
        """Whether it leads a group of its own."""
        pid = self._process.pid
        return pid is not None and pid > 0 and os.getpgid(pid) == pid

    def _end(self) -> str:
        self._process.join(_JOIN_S)
        return ended(self._process.exitcode)


def ended(code: int | None) -> str:
    """What an exit code means, as the end of a sentence; empty where there is none yet."""
    if code is None:
        return ""
    if code >= 0:
        return f"ended with status {code}"
    names = {one.value: one.name for one in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"


def _serve(connection: multiprocessing.connection.Connection) -> None:
    """The main function of a process."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # stdout is the command's
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        connection.send_bytes(place().encode())
        while True:
            connection.send_bytes(work(connection.recv_bytes()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os.killpg(0, signal.SIGKILL)
