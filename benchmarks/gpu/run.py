"""Runs slices: a worker process for each, started anew when a case ends it or takes too long."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.journal import Entry, Journal
from benchmarks.gpu.slices import Slice
from benchmarks.gpu.worker import ANSWER

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 180.0


class Worker:
    """A process that runs the cases of a slice."""

    def __init__(self, number: int, rehearsal: bool) -> None:
        environment = dict(os.environ)
        if rehearsal:  # read when triton is imported
            environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "KERNELS_HUB_BACKEND": "cpu"}
        command = [
            sys.executable,
            "-m",
            "benchmarks.gpu.worker",
            str(number),
            *(["--rehearse"] if rehearsal else []),
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


def run_slice(of: Slice, journal: Journal, *, rehearsal: bool, retry: bool = False) -> bool:
    """Run what the journal does not know; whether all of it is known now. retry: what failed runs again."""
    end = time.monotonic() + of.minutes * 60
    done = journal.done(of.number, failed=not retry)
    worker: Worker | None = None
    try:
        worker = Worker(of.number, rehearsal)
        wanted = [name for name in worker.names if name not in done]
        print(f"slice {of.number}, {of.name}: {len(wanted)} of {len(worker.names)} cases to run", flush=True)
        for name in wanted:
            if time.monotonic() > end:
                print(f"  stopped after {of.minutes:g} minutes; run it again to go on", flush=True)
                return False
            began = time.monotonic()
            try:
                if worker is None:
                    worker = Worker(of.number, rehearsal)
                found = worker.run(name, of.case_minutes * 60)
            except RuntimeError as error:
                worker = None
                found = {"result": {}, "error": str(error), "seconds": round(time.monotonic() - began, 3)}
            journal.add(Entry(of.number, name, found["seconds"], found["result"], found["error"]))
            print(f"  {name}: {_brief(found['result'], found['error'])}", flush=True)
        return True
    finally:
        if worker is not None:
            worker.close(10.0)


def _brief(result: dict[str, Any], error: str) -> str:
    if error:
        return f"FAILED: {error.splitlines()[0]}"
    ratios = result.get("ratio")
    if isinstance(ratios, dict):
        return ", ".join(f"{name} {of['median']:.2f}" for name, of in ratios.items())
    return ", ".join(f"{key} {str(value)[:40]}" for key, value in result.items())[:200]
