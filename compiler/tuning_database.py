"""What was found to be fastest, kept between processes: one small JSON file for each graph, device and versions.

The folder is `tuning` in the cache (KERNELS_HUB_CACHE). A file is written beside its place and moved there, so that
others read the old or the new one, never a half. A folder that cannot be written to, or a file that makes no sense,
loses the memory and nothing else; the first is told by one warning.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels_hub.compiler.codegen.toolchain import cache_folder
from kernels_hub.compiler.errors import PlanError
from kernels_hub.parsing import Struct, Text, parse_json

_LOGGER = logging.getLogger("kernels_hub")
_FORMAT = 1
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Winner:
    """The fastest way to run a graph: the engine that is preferred, its knobs, and the seconds of a call."""

    engine: str
    knobs: Mapping[str, Any]
    seconds: float


class _Row(Struct, frozen=True):
    format: int
    key: dict[str, Any]
    engine: Text
    knobs: dict[str, Any]
    seconds: float


class TuningDatabase:
    """See the module. folder: by default, in the cache."""

    _warned = False

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(folder) if folder is not None else cache_folder() / "tuning"

    def get(self, key: Mapping[str, Any]) -> Winner | None:
        """What was kept for a key; None where nothing was, or what was cannot be read."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"{path} cannot be read ({error})")
            return None
        try:
            row = parse_json(data, _Row, where=str(path), error=PlanError, most_bytes=_MOST_BYTES)
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
        path = self._path(key)
        name = ""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self.folder, prefix=path.stem, suffix=".tmp")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(row, file)
            Path(name).replace(path)
        except OSError as error:
            if name:
                Path(name).unlink(missing_ok=True)
            self._warn(f"{self.folder} cannot be written to ({error})")

    def _path(self, key: Mapping[str, Any]) -> Path:
        return self.folder / f"{hashlib.sha256(_text(key).encode()).hexdigest()[:40]}.json"

    def _warn(self, what: str) -> None:
        if not TuningDatabase._warned:
            TuningDatabase._warned = True
            _LOGGER.warning(
                "what was tuned is not remembered: %s; KERNELS_HUB_CACHE names another folder", what
            )


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)
