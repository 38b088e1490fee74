"""Runs slices: worker processes, started anew when a case ends one or takes too long."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.journal import Entry, Journal
from benchmarks.gpu.slices import Slice
from benchmarks.gpu.worker import ANSWER

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 180.0


@dataclass(frozen=True)
class How:
    """How cases are run: see the options of the command. jobs: processes at a time, of cases that are not timed."""

    rehearsal: bool = False
    retry: bool = False
    once: str = ""
    jobs: int = 1
    only: str = ""


class Worker:
    """A process that runs the cases of slices, started when it is first asked for and after a case that ended it."""

    def __init__(self, numbers: Sequence[int], how: How) -> None:
        self._environment = dict(os.environ)
        if how.rehearsal:  # read when triton is imported
            self._environment |= {
                "TRITON_INTERPRET": "1",
                "OMP_NUM_THREADS": "1",
                "KERNELS_HUB_BACKEND": "cpu",
            }
        if how.jobs > 1:  # the others have the cores
            self._environment |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        self._command = [
            sys.executable,
            "-m",
            "benchmarks.gpu.worker",
            *map(str, numbers),
            *(["--rehearse"] if how.rehearsal else []),
            f"--once={how.once}",
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._names: dict[int, list[str]] = {}

    def names(self, number: int) -> list[str]:
        """Of the cases of a slice. Raises RuntimeError where the process ends instead of saying them."""
        self._started()
        return self._names[number]

    def run(self, number: int, case: str, seconds: float) -> dict[str, Any]:
        """What a case of a slice gave. Raises RuntimeError, with the process ended, where it crashed or took longer."""
        process = self._started()
        assert process.stdin is not None
        process.stdin.write(json.dumps([number, case]).encode() + b"\n")
        process.stdin.flush()
        found: dict[str, Any] = self._answer(process, seconds)
        return found

    def close(self, seconds: float = 0.0) -> None:
        """End the process, which has so many seconds to do it by itself."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=seconds)
            return
        process.kill()
        process.communicate()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            self._unread = b""
            self._said = b""
            self._names = dict(self._answer(self._process, START_SECONDS))
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], seconds: float) -> Any:
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            assert process.stdout is not None and process.stderr is not None
            for stream in (process.stdout, process.stderr):
                selector.register(stream, selectors.EVENT_READ)
            while time.monotonic() < end and selector.get_map():
                for key, _ in selector.select(end - time.monotonic()):
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is process.stderr:
                        self._said = (self._said + data)[-2000:]
                    else:
                        *lines, self._unread = (self._unread + data).split(b"\n")
                        for line in lines:
                            if line.startswith(ANSWER.encode()):
                                return json.loads(line[len(ANSWER) :])
            late = bool(selector.get_map())
        self.close()
        why = f"took over {seconds:.0f} s" if late else f"ended the process (exit {process.returncode})"
        raise RuntimeError(f"{why}: {self._said.decode(errors='replace')[-1000:]}")


def run_slices(wanted: Sequence[Slice], journal: Journal, how: How) -> bool:
    """Run what the journal does not know; whether all of it is known now.

    What is measured runs in a process of its slice. A rehearsal measures nothing, and starting a process takes longer
    than most of its cases: one runs those of all slices.
    """
    together = [tuple(wanted)] if how.rehearsal else [(of,) for of in wanted]
    whole = []
    for slices in together:
        numbers = [of.number for of in slices]
        with contextlib.closing(Worker(numbers, how)) as worker:
            whole += [_run_slice(of, numbers, journal, how, worker) for of in slices]
            worker.close(10.0)
    return all(whole)


def _run_slice(of: Slice, numbers: Sequence[int], journal: Journal, how: How, first: Worker) -> bool:
    """numbers: of the slices that a process runs the cases of."""
    end = time.monotonic() + of.minutes * 60
    done = journal.done(of.number, failed=not how.retry)
    names = first.names(of.number)
    wanted = deque(name for name in names if name not in done and re.search(how.only, name))
    print(f"slice {of.number}, {of.name}: {len(wanted)} of {len(names)} cases to run", flush=True)

    def beside() -> None:
        with contextlib.closing(Worker(numbers, how)) as worker:
            _run_cases(of, journal, wanted, end, worker)
            worker.close(10.0)

    others = [threading.Thread(target=beside) for _ in range(min(how.jobs, len(wanted)) - 1)]
    for one in others:
        one.start()
    _run_cases(of, journal, wanted, end, first)
    for one in others:
        one.join()
    if wanted:
        print(f"  stopped after {of.minutes:g} minutes; run it again to go on", flush=True)
    return not wanted


def _run_cases(of: Slice, journal: Journal, wanted: deque[str], end: float, worker: Worker) -> None:
    """Take cases from those that are wanted, until there are none or the time is over."""
    while time.monotonic() < end:
        try:
            name = wanted.popleft()
        except IndexError:
            return
        began = time.monotonic()
        try:
            found = worker.run(of.number, name, of.case_minutes * 60)
        except RuntimeError as error:
            found = {"result": {}, "error": str(error), "seconds": round(time.monotonic() - began, 3)}
        journal.add(Entry(of.number, name, found["seconds"], found["result"], found["error"]))
        print(f"  {name}: {_brief(found['result'], found['error'])}", flush=True)


def _brief(result: dict[str, Any], error: str) -> str:
    if error:
        return f"FAILED: {error.splitlines()[0]}"
    if ratios := result.get("ratio"):
        return ", ".join(f"{name} {of['median']:.2f}" for name, of in ratios.items())
    return ", ".join(f"{key} {str(value)[:40]}" for key, value in result.items())[:200]
