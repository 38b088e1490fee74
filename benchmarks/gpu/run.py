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
    """A process that runs the cases of a slice."""

    def __init__(self, number: int, how: How) -> None:
        environment = dict(os.environ)
        if how.rehearsal:  # read when triton is imported
            environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "KERNELS_HUB_BACKEND": "cpu"}
        if how.jobs > 1:  # the others have the cores
            environment |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        command = [
            sys.executable,
            "-m",
            "benchmarks.gpu.worker",
            str(number),
            *(["--rehearse"] if how.rehearsal else []),
            f"--once={how.once}",
        ]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._unread = b""
        self._said = b""
        self.names: list[str] = self._answer(START_SECONDS)

    def run(self, case: str, seconds: float) -> dict[str, Any]:
        """What a case gave. Raises RuntimeError, with the process ended, where it crashed or took longer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(case).encode() + b"\n")
        self._process.stdin.flush()
        found: dict[str, Any] = self._answer(seconds)
        return found

    def close(self, seconds: float = 0.0) -> None:
        """End the process, which has so many seconds to do it by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=seconds)
            return
        self._process.kill()
        self._process.communicate()

    def _answer(self, seconds: float) -> Any:
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            assert self._process.stdout is not None and self._process.stderr is not None
            for stream in (self._process.stdout, self._process.stderr):
                selector.register(stream, selectors.EVENT_READ)
            while time.monotonic() < end and selector.get_map():
                for key, _ in selector.select(end - time.monotonic()):
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is self._process.stderr:
                        self._said = (self._said + data)[-2000:]
                    else:
                        *lines, self._unread = (self._unread + data).split(b"\n")
                        for line in lines:
                            if line.startswith(ANSWER.encode()):
                                return json.loads(line[len(ANSWER) :])
            late = bool(selector.get_map())
        self.close()
        why = f"took over {seconds:.0f} s" if late else f"ended the process (exit {self._process.returncode})"
        raise RuntimeError(f"{why}: {self._said.decode(errors='replace')[-1000:]}")


def run_slice(of: Slice, journal: Journal, how: How) -> bool:
    """Run what the journal does not know; whether all of it is known now."""
    end = time.monotonic() + of.minutes * 60
    done = journal.done(of.number, failed=not how.retry)
    first = Worker(of.number, how)
    wanted = deque(name for name in first.names if name not in done and re.search(how.only, name))
    print(
        f"slice {of.number}, {of.name}: {len(wanted)} of {len(first.names)} cases to run",
        flush=True,
    )
    others = [
        threading.Thread(target=_run_cases, args=(of, journal, how, wanted, end))
        for _ in range(min(how.jobs, len(wanted)) - 1)
    ]
    for one in others:
        one.start()
    _run_cases(of, journal, how, wanted, end, first)
    for one in others:
        one.join()
    if wanted:
        print(f"  stopped after {of.minutes:g} minutes; run it again to go on", flush=True)
    return not wanted


def _run_cases(
    of: Slice, journal: Journal, how: How, wanted: deque[str], end: float, worker: Worker | None = None
) -> None:
    """Take cases from those that are wanted, until there are none or the time is over."""
    try:
        while time.monotonic() < end:
            try:
                name = wanted.popleft()
            except IndexError:
                return
            began = time.monotonic()
            try:
                if worker is None:
                    worker = Worker(of.number, how)
                found = worker.run(name, of.case_minutes * 60)
            except RuntimeError as error:
                worker = None
                found = {"result": {}, "error": str(error), "seconds": round(time.monotonic() - began, 3)}
            journal.add(Entry(of.number, name, found["seconds"], found["result"], found["error"]))
            print(f"  {name}: {_brief(found['result'], found['error'])}", flush=True)
    finally:
        if worker is not None:
            worker.close(10.0)


def _brief(result: dict[str, Any], error: str) -> str:
    if error:
        return f"FAILED: {error.splitlines()[0]}"
    if ratios := result.get("ratio"):
        return ", ".join(f"{name} {of['median']:.2f}" for name, of in ratios.items())
    return ", ".join(f"{key} {str(value)[:40]}" for key, value in result.items())[:200]
