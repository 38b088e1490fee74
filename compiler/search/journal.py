"""Journal of a search: an append-only file of what is known of its candidates.

A question is all that decides the answers: graph, device, versions, seed. A line is a stage ("built", "timed") and a
`Measured`, or several that were timed together, behind a digest of itself. Processes that write at a time wait for
each other; a line that was cut short (the disk was full, the machine was turned off) loses itself and no other. Who
reads sees what others wrote since. A folder that cannot be written to loses the memory and nothing else, which is told
by one warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.plan.tuning_database import FOLDER, former_folder
from kernels_hub.compiler.search.candidate import Measured, SearchError
from kernels_hub.files import cache_folder

_LOGGER = logging.getLogger(__name__)
_FORMAT = 1
_DIGITS = 16

Stage = Literal["built", "timed"]


class Journal:
    """See the module. key: the question, of what JSON has.

    folder: by default `tuning/journals` in the cache (KERNELS_HUB_CACHE). A journal that an earlier version began in
    `compiled/tuning/journals` is continued there.
    """

    def __init__(self, key: Mapping[str, object], folder: str | os.PathLike[str] | None = None) -> None:
        self.key: Mapping[str, Any] = {"format": _FORMAT, **key}
        name = f"{hashlib.sha256(_text(self.key).encode()).hexdigest()[:40]}.jsonl"
        if folder is not None:
            self.path = Path(folder) / name
        else:
            path, former = (home / "journals" / name for home in (cache_folder(FOLDER), former_folder()))
            self.path = former if former.exists() and not path.exists() else path
        self.damaged = 0
        """Lines that could not be read."""
        self._offset = 0
        self._warned = False
        self._clear()

    def _clear(self) -> None:
        self._known: dict[Stage, dict[str, Measured]] = {"built": {}, "timed": {}}
        self._together: dict[str, list[dict[str, Measured]]] = {}
        self._asked: Counter[str] = Counter()

    @classmethod
    def of(
        cls,
        graph: str,
        device: Device,
        seed: int,
        more: Mapping[str, object] | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> Journal:
        """The journal of a search. graph: as printed. more: what else decides the answers, as sizes do."""
        from kernels_hub.compiler.export.checked import machine
        from kernels_hub.compiler.plan.file import versions

        key = {
            "graph": hashlib.sha256(graph.encode()).hexdigest(),
            "device": [device.type, device.arch],
            "machine": _gpu(device) if device.type != "cpu" else machine(),
            "versions": versions(),
            "seed": seed,
            "more": dict(more or {}),
        }
        return cls(key, folder)

    def known(self, stage: Stage) -> Mapping[str, Measured]:
        """Digest of a candidate -> what became of it; what other processes wrote since is among it."""
        self._read()
        return self._known[stage]

    def add(self, stage: Stage, one: Measured) -> None:
        """Keep it. Never raises."""
        self._known[stage][one.digest] = one
        self._write({"stage": stage, "measured": one.to_dict()})

    def next_together(self, digests: Iterable[str]) -> Mapping[str, Measured] | None:
        """What was measured when these were timed in turn: the first time, then the second, …; None for the next."""
        self._read()
        key = _key(digests)
        self._asked[key] += 1
        rounds = self._together.get(key, [])
        return rounds[self._asked[key] - 1] if self._asked[key] <= len(rounds) else None

    def add_together(self, rows: Sequence[Measured]) -> None:
        """Keep what was timed in turn. Never raises."""
        if not self._write({"together": [row.to_dict() for row in rows]}):
            self._take_together({row.digest: row for row in rows})

    def _read(self) -> None:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            self._warn(f"{self.path} cannot be read ({error})")
            return
        whole = data[: data.rfind(b"\n") + 1]  # what is behind it is being written, or was cut short
        self._offset += len(whole)
        for line in whole.splitlines():
            if line:
                self._take(line)

    def _write(self, row: Mapping[str, object]) -> bool:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b", buffering=0) as file, _alone(file.fileno()):
                size = file.seek(0, os.SEEK_END)
                if size:
                    file.seek(size - 1)
                    start = b"" if file.read(1) == b"\n" else b"\n"
                else:
                    start = _line({"key": self.key})
                _append(file.fileno(), start + _line(row))
        except OSError as error:
            self._warn(f"{self.path} cannot be written to ({error})")
            return False
        return True

    def begin_anew(self) -> None:
        """What was found until now counts no more; it stays in the file."""
        self._clear()
        with contextlib.suppress(OSError):
            self._offset = self.path.stat().st_size

    def _take(self, line: bytes) -> None:
        digest, _, text = line.partition(b" ")
        try:
            if digest != _digest(text):
                raise SearchError("the digest differs")
            row = json.loads(text)
            if "measured" in row:
                one = Measured.from_dict(row["measured"])
                self._known[row["stage"]][one.digest] = one
            elif "together" in row:
                rows = map(Measured.from_dict, row["together"])
                self._take_together({row.digest: row for row in rows})
        except (SearchError, ValueError, KeyError, TypeError, RecursionError) as error:
            self.damaged += 1
            _LOGGER.debug("%s: a line is left out: %s", self.path, error)

    def _take_together(self, rows: dict[str, Measured]) -> None:
        self._together.setdefault(_key(rows), []).append(rows)

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            _LOGGER.warning("what is found is not kept: %s; KERNELS_HUB_CACHE names another folder", what)


def _gpu(device: Device) -> str:
    """Its name; empty where it is not on this machine, and candidates are only built."""
    import torch

    return torch.cuda.get_device_name(device.index) if torch.cuda.is_available() else ""


def _key(digests: Iterable[str]) -> str:
    return ",".join(sorted(set(digests)))


def _append(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
    os.fsync(descriptor)


def _line(row: Mapping[str, object]) -> bytes:
    text = _text(row).encode()
    return _digest(text) + b" " + text + b"\n"


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:_DIGITS].encode()


def _text(row: Mapping[str, object]) -> str:
    return json.dumps(row, sort_keys=True, separators=(",", ":"))


@contextmanager
def _alone(descriptor: int) -> Iterator[None]:
    """While it is open, no other process is here. A file system without locks has none."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)  # until the file is closed
    yield
