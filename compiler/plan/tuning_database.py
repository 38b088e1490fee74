"""Tuning database: the fastest engine and knobs of each graph, device and version, in small JSON files.

The folder is `tuning` in the cache (KERNELS_HUB_CACHE); what earlier versions kept in `compiled/tuning` is still
found. Files are replaced whole. A folder that cannot be written to, or a file that makes no sense, loses the memory
and nothing else; the first is told by one warning.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels_hub.compiler.errors import PlanError
from kernels_hub.files import cache_folder, write_atomically
from kernels_hub.parsing import Struct, Text, parse_json

_LOGGER = logging.getLogger(__name__)
_FORMAT = 1
_MOST_BYTES = 1 << 20

FOLDER = "tuning"
"""In the cache."""


@dataclass(frozen=True)
class Winner:
    """The fastest way to run a graph: the engine that is preferred, its knobs, and the seconds of a call."""

    engine: str
    knobs: Mapping[str, Any]
    seconds: float


class _TuningRow(Struct, frozen=True):
    format: int
    key: dict[str, Any]
    engine: Text
    knobs: dict[str, Any]
    seconds: float


class TuningDatabase:
    """See the module. folder: by default, in the cache."""

    _warned = False

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(folder) if folder is not None else cache_folder(FOLDER)
        former = () if folder is not None else (former_folder(),)
        self._readable = (self.folder, *former)

    def get(self, key: Mapping[str, Any]) -> Winner | None:
        """What was kept for a key; None where nothing was, or what was cannot be read."""
        for folder in self._readable:
            try:
                path = folder / _file_name(key)
                return self._parsed(path.read_bytes(), path, key)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._warn(f"{path} cannot be read ({error})")
        return None

    def _parsed(self, data: bytes, path: Path, key: Mapping[str, Any]) -> Winner | None:
        try:
            row = parse_json(data, _TuningRow, where=str(path), error=PlanError, most_bytes=_MOST_BYTES)
            same = row.format == _FORMAT and row.key == json.loads(_text(key))
            return Winner(row.engine, row.knobs, row.seconds) if same else None
        except PlanError as error:
            self._warn(f"{error}: it is damaged, and is written anew")
            return None

    def put(self, key: Mapping[str, Any], winner: Winner) -> None:
        """Keep it. Never raises."""
        row = {
            "format": _FORMAT,
            "key": key,
            "engine": winner.engine,
            "knobs": dict(winner.knobs),
            "seconds": winner.seconds,
        }
        try:
            write_atomically(self.folder / _file_name(key), json.dumps(row))
        except OSError as error:
            self._warn(f"{self.folder} cannot be written to ({error})")

    def _warn(self, what: str) -> None:
        if not TuningDatabase._warned:
            TuningDatabase._warned = True
            _LOGGER.warning(
                "what was tuned is not remembered: %s; KERNELS_HUB_CACHE names another folder", what
            )


def former_folder() -> Path:
    """Where earlier versions kept what they had tuned."""
    return cache_folder("compiled") / "tuning"


def _file_name(key: Mapping[str, Any]) -> str:
    return f"{hashlib.sha256(_text(key).encode()).hexdigest()[:40]}.json"


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)
