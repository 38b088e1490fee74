"""Child processes that plugins run in, from the host's side: `PluginProcess` is one plugin in a process of its own.

A request that takes too long kills the worker; a worker that ended says how. Either is a `Died`, in one line. Workers
are forked off one process that has imported torch and no plugin, so that the second one takes milliseconds.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from kernels_hub.compiler.engines.plugins.sources import Source
from kernels_hub.compiler.engines.plugins.wire import Closed, Json, Pipes, TooLate
from kernels_hub.compiler.errors import EngineError, EvaluateError, PlanError, ShapeError
from kernels_hub.fork_safe import renewed_lock

SECONDS_VARIABLE = "KERNELS_HUB_PLUGIN_SECONDS"
SECONDS = {"load": 30.0, "probe": 15.0, "check": 15.0, "compile": 300.0, "try": 300.0, "run": 60.0}
"""What a request may take."""
_OTHERWISE = 60.0
_START = 120.0

STAGES = {"load": "import", "probe": "check", "try": "compile or execute", "run": "execute"}
"""Request -> what a plugin does then; the request's own name where it is not here."""

_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from kernels_hub.compiler.engines.plugins.child import main; main()"
)
_PASS = {one.__name__: one for one in (PlanError, EvaluateError, ShapeError)}


class Died(EngineError):
    """A plugin's process ended, or was ended for taking too long."""


class _Nursery:
    """The process that workers are forked off. One a host process, started at the first use."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.folder = Path(tempfile.mkdtemp(prefix="kernels_hub-plugins-"))
        self._lock = renewed_lock(self, "_lock", threading.Lock)
        self._numbers = itertools.count()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, json.dumps([one for one in sys.path if isinstance(one, str)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        atexit.register(self.end)

    def alive(self) -> bool:
        """Whether it is this process's, and runs."""
        return self.owner == os.getpid() and self.process.poll() is None

    def fork(self) -> tuple[int, Pipes]:
        """A worker. Raises EngineError where the process does not answer."""
        with self._lock:
            number = next(self._numbers)
            requests, answers = self.folder / f"{number}.requests", self.folder / f"{number}.answers"
            os.mkfifo(requests, 0o600)
            os.mkfifo(answers, 0o600)
            write = os.open(requests, os.O_RDWR | os.O_NONBLOCK)  # to both: opening waits for nobody
            read = os.open(answers, os.O_RDONLY | os.O_NONBLOCK)
            try:
                worker = int(self._ask(f"fork\t{requests}\t{answers}", _START))
                only_write = os.open(requests, os.O_WRONLY | os.O_NONBLOCK)
            except BaseException:
                os.close(read)
                raise
            finally:
                os.close(write)
                requests.unlink()
                answers.unlink()
            return worker, Pipes(read, only_write)

    def wait(self, worker: int) -> str:
        """How a worker ended, in words."""
        with self._lock:
            try:
                code = int(self._ask(f"wait\t{worker}", _OTHERWISE))
            except EngineError:
                return "it ended"
        if code >= 0:
            return f"it ended its process (exit status {code})"
        with contextlib.suppress(ValueError):
            return f"it crashed ({signal.Signals(-code).name})"
        return f"it crashed (signal {-code})"

    def _ask(self, line: str, seconds: float) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        timer = threading.Timer(seconds, self.process.kill)
        timer.daemon = True
        timer.start()
        try:
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except OSError:
            answer = b""
        finally:
            timer.cancel()
        if not answer:
            self.process.kill()
            raise EngineError(
                f"the process that plugins are tried in ended (exit status {self.process.wait()}): run "
                f"`{sys.executable} -c 'import kernels_hub.compiler.engines.plugins.child'` to see why"
            )
        return answer.decode().strip()

    def end(self) -> None:
        """End it; its workers end with their parent."""
        if self.owner != os.getpid():
            return
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        for one in (self.process.stdin, self.process.stdout):
            if one is not None:
                with contextlib.suppress(OSError):
                    one.close()
        shutil.rmtree(self.folder, ignore_errors=True)


_LOCK = renewed_lock(sys.modules[__name__], "_LOCK", threading.Lock)
_nursery: _Nursery | None = None


def _nursery_of_process() -> _Nursery:
    global _nursery  # noqa: PLW0603  (one a process)
    with _LOCK:
        if _nursery is None or not _nursery.alive():
            try:
                _nursery = _Nursery()
            except OSError as error:
                raise EngineError(f"no process can be started to try plugins in: {error}") from error
        return _nursery


class PluginProcess:
    """A plugin, loaded in a process of its own; started at the first request, and again after it died.

    Requests of several threads wait for each other.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.generation = 0
        """How often it was started: what lay in an earlier process is gone."""
        self._owner = os.getpid()
        self._lock = renewed_lock(self, "_lock", threading.RLock)
        self._dropped: deque[tuple[int, int]] = deque()
        self._running: tuple[_Nursery, int, Pipes] | None = None

    def ask(self, request: Json, blocks: Sequence[bytes | memoryview] = ()) -> tuple[Json, list[bytearray]]:
        """The answer to a request. Raises Died, and what the plugin raised as an EngineError or as what it was."""
        with self._lock:
            self.load()
            while self._dropped:
                generation, number = self._dropped.popleft()
                if generation == self.generation:
                    self._exchange({"do": "drop", "plan": number}, ())
            return self._exchange(request, blocks)

    def forget(self, generation: int, number: int) -> None:
        """Have the process forget a plan, at the next request. Takes no lock: it may happen at any moment."""
        self._dropped.append((generation, number))

    def load(self) -> list[str]:
        """Have the plugin loaded, if it is not; names of its engines when that was done now."""
        with self._lock:
            if self._running is None or self._owner != os.getpid() or not self._running[0].alive():
                return self._start()
            return []

    def end(self) -> None:
        """End the process."""
        with self._lock:
            self._kill()

    def _start(self) -> list[str]:
        nursery = _nursery_of_process()
        self._running = (nursery, *nursery.fork())
        self._owner = os.getpid()
        self.generation += 1
        try:
            paths = [one for one in sys.path if isinstance(one, str)]
            request = {"do": "load", "kind": self.source.kind, "place": self.source.place, "path": paths}
            answer, _ = self._exchange(request, ())
        except Died:
            raise
        except EngineError:
            self._kill()
            raise
        names = answer.get("engines")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise EngineError("its process gave no list of engines")
        return names

    def _exchange(self, request: Json, blocks: Sequence[bytes | memoryview]) -> tuple[Json, list[bytearray]]:
        assert self._running is not None
        pipes, verb = self._running[2], str(request["do"])
        seconds = limit(verb)
        deadline = time.monotonic() + seconds
        stage = STAGES.get(verb, verb)
        try:
            pipes.send(request, blocks, deadline)
            answer, found = pipes.receive(deadline)
        except TooLate:
            self._kill()
            raise Died(
                f"it took more than {seconds:g} s at {stage} and was ended ({SECONDS_VARIABLE} sets the limit)"
            ) from None
        except (Closed, PlanError):
            raise Died(f"{self._kill()} at {stage}") from None
        if "error" in answer:
            raise _PASS.get(str(answer.get("kind")), EngineError)(str(answer["error"])[:4000])
        return answer, found

    def _kill(self) -> str:
        """How it ended."""
        if self._running is None:
            return ""
        nursery, worker, pipes = self._running
        self._running = None
        if self._owner != os.getpid():
            return ""
        pipes.close()  # one that is well ends by itself; one that hangs does not
        if not _gone(worker, 0.2):
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        return nursery.wait(worker) if nursery.alive() else "it ended"


def limit(verb: str) -> float:
    """Seconds that a request may take."""
    given = os.environ.get(SECONDS_VARIABLE)
    if given:
        with contextlib.suppress(ValueError):
            if (seconds := float(given)) > 0:
                return seconds
    return SECONDS.get(verb, _OTHERWISE)


def _gone(worker: int, seconds: float) -> bool:
    """Whether a process ends by itself: then it is a zombie until it is waited for."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{worker}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return True
        if state.rpartition(")")[2].split()[:1] == ["Z"]:
            return True
        time.sleep(0.005)
    return False
