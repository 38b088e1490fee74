"""Scripts in processes of their own, forked from one that has imported torch.

A Python that imports torch spends 2 s on it before a test's script begins; dozens of tests have such a script. What is
forked is otherwise as new: no thread runs, nothing of this library is imported, and the interpreter ends as any does,
with what was registered for its exit. Not for tests of what an import loads, of variables that torch reads as it is
imported (OMP_NUM_THREADS, which libgomp reads, is followed), or of what a process without torch does.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
HOST = "from tests.warm_process import forked_script; exec(forked_script())"
"""Runs in the process that forks, and in each that it forks: there, it goes on as the script."""
ENVIRONMENT = dict(os.environ)
"""As it is while tests are collected: what one of them changes is not there for the scripts of others."""


class StartedScript:
    """A script in a process of its own, as `subprocess.Popen([sys.executable, "-c", script, ...])` starts one."""

    def __init__(
        self,
        script: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> None:
        self.command = [sys.executable, "-c", script, *arguments]
        self._files = tuple(tempfile.TemporaryFile("w+") for _ in "oe")  # noqa: SIM115 (closed as they are read)
        self.pid = _ask(
            script=script,
            arguments=arguments,
            environment=dict(os.environ if env is None else env),
            cwd=str(cwd or Path.cwd()),
            files=[f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in self._files],
        )

    def communicate(self, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Wait for its end. Raises subprocess.TimeoutExpired, and ends it, where that takes longer."""
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            os.kill(self.pid, signal.SIGKILL)

        timer = threading.Timer(timeout, end)
        timer.daemon = True
        timer.start()
        try:
            status = _ask(wait=self.pid)
        finally:
            timer.cancel()
        out, err = (_read(file) for file in self._files)
        if is_late.is_set():
            raise subprocess.TimeoutExpired(self.command, timeout, out, err)
        return subprocess.CompletedProcess(self.command, status, out, err)


def run_script(
    script: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run([sys.executable, "-c", script, ...], capture_output=True, text=True)` gives, sooner."""
    return StartedScript(script, *arguments, env=env, cwd=cwd).communicate(timeout)


def _read(file: IO[str]) -> str:
    with file:
        file.seek(0)
        return file.read()


@functools.cache
def _host() -> subprocess.Popen[str]:
    """The process that forks; one for each process of a session of tests."""
    host = subprocess.Popen(
        [sys.executable, "-c", HOST],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=ENVIRONMENT,
    )
    atexit.register(host.communicate)
    return host


def _ask(**request: object) -> int:
    host = _host()
    assert host.stdin is not None and host.stdout is not None
    host.stdin.write(json.dumps(request) + "\n")
    host.stdin.flush()
    return int(host.stdout.readline())


def forked_script() -> str:
    """Answer requests: fork a process, and say its id; or wait for one, and say its status.

    Returns the script in each process that was forked, "" in this one, when nobody asks any more.
    """
    import torch

    gc.collect()
    gc.freeze()  # else what a process looks at as it ends is copied for it: half a second

    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            print(os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _become(request["arguments"], request["environment"], request["cwd"], request["files"])
            if threads := request["environment"].get("OMP_NUM_THREADS"):
                torch.set_num_threads(int(threads))
            return str(request["script"])
        print(pid, flush=True)
    return ""


def _become(arguments: Sequence[str], environment: Mapping[str, str], cwd: str, files: Sequence[str]) -> None:
    """Be as a process is that is started so."""
    for target, path in enumerate((os.devnull, *files)):
        opened = os.open(path, os.O_RDWR)
        os.dup2(opened, target)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv[1:] = arguments
    sys.path[1:1] = [one for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one]
