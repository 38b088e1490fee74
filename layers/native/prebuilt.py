"""Finds native code that came along with the library: one shared object for each level of instruction sets.

`kernels_hub/prebuilt/index.json` says which source files the objects were built from, each by a digest of its text and
of all that it includes. A layer whose sources have the same digest takes its functions from the best object that runs
on this processor, which each object answers itself (by CPUID); any other layer is built as always. The objects have a
plain C interface and link neither PyTorch, nor Python, nor an OpenMP runtime, so that they serve any release.

Environment:
    KERNELS_HUB_PREBUILT   a folder that takes the place of that in the library; "ignore": none is used
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import platform
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_LOGGER = logging.getLogger("kernels_hub.layers.prebuilt")

INDEX = "index.json"
_INCLUDED = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


def digest_of(unit: bytes, headers: Mapping[str, bytes]) -> str:
    """The digest of a source file and of those headers that it includes, by whatever way, in the order of names."""
    reached: dict[str, bytes] = {}
    left = [unit]
    while left:
        for found in _INCLUDED.findall(left.pop()):
            name = found.decode()
            if name not in reached and name in headers:
                reached[name] = headers[name]
                left.append(headers[name])
    digest = hashlib.sha256()
    for part in (unit, *(part for name, data in sorted(reached.items()) for part in (name.encode(), data))):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def find(name: str, unit: bytes, headers: Mapping[str, bytes]) -> ctypes.CDLL | None:
    """The object with the functions of a source file; None where none was built from just this text, or none loads."""
    if (folder := folder_of_objects()) is None or name not in (known := _index(folder).get("units", {})):
        return None
    return library(folder) if known[name] == digest_of(unit, headers) else None


def folder_of_objects() -> Path | None:
    """Where the objects lie; None where there are none, or they are not to be used."""
    if setting := os.environ.get("KERNELS_HUB_PREBUILT"):
        folder = None if setting == "ignore" else Path(setting)
    else:  # a layer repository imports no library, and is loaded by others than this one, too
        paths = getattr(sys.modules.get("kernels_hub"), "__path__", None)
        folder = Path(next(iter(paths))) / "prebuilt" if paths else None
    return folder if folder is not None and (folder / INDEX).is_file() else None


@cache
def library(folder: Path) -> ctypes.CDLL | None:
    """The best object of a folder that runs here; None, which is said once, where none does."""
    found, reasons = examine(folder)
    if found is None:
        _LOGGER.warning("prebuilt native code is not used: %s", "; ".join(reasons))
    return None if found is None else found[1]


def examine(folder: Path) -> tuple[tuple[str, ctypes.CDLL] | None, list[str]]:
    """The level that serves, with its object, and why better ones do not."""
    index, reasons = _index(folder), []
    if (machine := f"{platform.machine()}-{sys.platform}") != index.get("machine"):
        return None, [f"it is for {index.get('machine', 'no machine')}, and this is {machine}"]
    for level in index["levels"]:
        path = folder / level["file"]
        try:
            if (digest := hashlib.sha256(path.read_bytes()).hexdigest()) != level["sha256"]:
                reasons.append(
                    f"{path} is damaged: its sha256 is {digest[:16]}…, not {level['sha256'][:16]}…; install again"
                )
                continue
            loaded = ctypes.CDLL(str(path))
            if loaded.kh_runs_here():
                return (level["name"], loaded), reasons
            reasons.append(f"{level['name']}: this processor lacks an instruction set")
        except (OSError, AttributeError) as error:
            reasons.append(f"{path} does not load: {error}")
    return None, reasons


@cache
def _index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / INDEX).read_bytes())
        if all(
            isinstance(index[key], kind)
            for key, kind in (("units", dict), ("levels", list), ("machine", str))
        ):
            return dict(index)
        raise ValueError("units, levels and machine are not what they should be")
    except (OSError, ValueError, KeyError, TypeError) as error:
        _LOGGER.warning("prebuilt native code is not used: %s cannot be read: %s", folder / INDEX, error)
        return {}
