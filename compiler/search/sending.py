"""Sends an evaluator to workers: weights travel once, and results computed by a worker stay cached there.

A worker that gets tasks of one evaluator keeps it, with what the oracle gave and what it has built. Large ones are
laid into a file for workers of this machine, which is gone when the sender is.
"""

from __future__ import annotations

import hashlib
import inspect
import pickle
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kernels_hub.compiler.runtime.newest import Newest

LARGE = 1 << 20
"""Bytes from which a file is shorter than a pipe."""
MOST_KEPT = 4
"""Evaluators that a process keeps."""


@dataclass(frozen=True)
class Sent:
    """A callable that calls a method of a pickled object, or the object, the same one each time in a process."""

    digest: str
    data: bytes
    path: str
    method: str
    more: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, what: object) -> Any:
        """Its result, of one argument."""
        target = _unpacked(self.digest, self.data, self.path)
        return (getattr(target, self.method) if self.method else target)(what, **self.more)


class Sender:
    """Makes what is sent of evaluators. local: workers are on this machine. close: when no task is left."""

    def __init__(self, *, local: bool) -> None:
        self._local = local
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._known: dict[int, tuple[Any, str, bytes, str]] = {}

    def sent(self, evaluate: Callable[[Any], Any]) -> Sent:
        """Of an object, a bound method of one, or a partial of these with keywords. Raises where it is not pickled."""
        plain: Any = evaluate
        more: Mapping[str, Any] = {}
        if isinstance(evaluate, partial) and not evaluate.args:
            plain, more = evaluate.func, evaluate.keywords
        bound = inspect.ismethod(plain)
        target, method = (plain.__self__, plain.__name__) if bound else (plain, "")
        _, digest, data, path = self._packed(target)
        return Sent(digest, data, path, method, dict(more))

    def close(self) -> None:
        """Delete files."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
        self._known.clear()

    def _packed(self, target: object) -> tuple[Any, str, bytes, str]:
        if (found := self._known.get(id(target))) is not None:
            return found  # holds the object, so that its id is no other's
        data, path = pickle.dumps(target), ""
        digest = hashlib.sha256(data).hexdigest()
        if self._local and len(data) >= LARGE:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="kernels_hub-sent-")
            file = Path(self._folder.name, digest)
            file.write_bytes(data)
            data, path = b"", str(file)
        self._known[id(target)] = found = (target, digest, data, path)
        return found


_KEPT: Newest[str, Any] = Newest(MOST_KEPT)
_LOCK = threading.Lock()


def _unpacked(digest: str, data: bytes, path: str) -> Any:
    with _LOCK:
        if digest not in _KEPT:
            _KEPT[digest] = pickle.loads(data or Path(path).read_bytes())  # noqa: S301  (of whoever sent the task)
        _KEPT.move_to_end(digest)
        return _KEPT[digest]
