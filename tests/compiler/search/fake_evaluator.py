"""An evaluator that does what a candidate's choices say, and notes each of its calls in a folder."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels_hub.compiler.search.candidate import Measured, SearchCandidate


@dataclass(frozen=True)
class Fake:
    """folder: gets a file for each candidate, with a line for each call: the process, and what was asked of it."""

    folder: str

    def __call__(self, candidate: SearchCandidate, *, build_only: bool = False) -> Measured:
        calls = self._note(candidate, "build" if build_only else "time")
        return self._do(candidate, calls, build_only)

    def measure_many(self, candidates: Sequence[SearchCandidate]) -> list[Measured]:
        return [self._do(one, self._note(one, "together"), False) for one in candidates]

    def calls(self, candidate: SearchCandidate) -> list[str]:
        """What was asked of a candidate, in order."""
        return [line.partition(" ")[2] for line in self._lines(candidate)]

    def processes(self, candidate: SearchCandidate) -> list[int]:
        return [int(line.partition(" ")[0]) for line in self._lines(candidate)]

    def _lines(self, candidate: SearchCandidate) -> list[str]:
        path = Path(self.folder, candidate.digest)
        return path.read_text().splitlines() if path.exists() else []

    def _note(self, candidate: SearchCandidate, what: str) -> int:
        with Path(self.folder, candidate.digest).open("a") as file:
            file.write(f"{os.getpid()} {what}\n")
        return len(self._lines(candidate))

    def _do(self, candidate: SearchCandidate, calls: int, build_only: bool) -> Measured:
        what = candidate.choices.get("do", "run")
        if what == "exit" or (what == "exit once" and calls == 1):
            os._exit(3)
        if what == "exit where timed together" and self.calls(candidate)[-1] == "together":
            os._exit(3)
        if what == "segfault":
            ctypes.string_at(0)
        if what == "hang" or (what == "hang once" and calls == 1):
            time.sleep(3600)
        if what == "wait":
            deadline = time.monotonic() + 60
            while not Path(self.folder, "go").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        if what == "raise":
            raise ValueError("no such loop")
        if what == "raise what cannot be pickled":
            raise Odd("odd", 1)
        if what == "lie":
            return Measured("0" * 32, "slower", 1.0)
        if what == "wrong":
            return Measured(candidate.digest, "wrong", reason="output 'y' differs from the oracle's by 1")
        seconds = None if build_only else candidate.choices.get("ms", 1) * 1e-3
        return Measured(candidate.digest, "slower", seconds, "ran")


class Heavy:
    """Notes when it is unpickled, and does some work once."""

    def __init__(self, weights: str, folder: str) -> None:
        self.weights, self.folder = weights, folder
        self.worked = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._note("loaded", self.weights[:1])

    def __call__(self, candidate: SearchCandidate, *, build_only: bool = False) -> Measured:
        if not self.worked:
            self._note("worked", "once")
            self.worked = True
        return Measured(candidate.digest, "slower", None if build_only else 1.0)

    def measure_many(self, candidates: Sequence[SearchCandidate]) -> list[Measured]:
        return [self(one) for one in candidates]

    def _note(self, name: str, text: str) -> None:
        with Path(self.folder, name).open("a") as file:
            file.write(f"{text}\n")


class Odd(Exception):
    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)


def candidate(name: str, do: str = "run", ms: int = 1) -> SearchCandidate:
    return SearchCandidate(f"graph {name}", {"do": do, "ms": ms}, origin=f"made up: {name}")
