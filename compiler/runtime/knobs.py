"""The table of knobs: what was tuned for each architecture, read from knobs.json. Nothing is tuned at run time.

    "sm_90"    stages: steps that products look ahead; block: elements of a pointwise program, product: [rows, columns,
               depth] of a product's tile, where these are not to follow from the sizes (0, null); kernels: for a
               kernel by its name, constants of its launch that take the place of those
    "avx512"   flags: of the compiler, for the C++

No result depends on a knob.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ...files import read_shipped

_LOGGER = logging.getLogger("kernels_hub.runtime.knobs")
_ARCH = re.compile(r"(sm_|gfx)([0-9a-f]+?)[a-z]?")

FILE = "knobs.json"
PATH = Path(__file__).parents[2] / FILE
"""In the package of an exported layer; the compiler has none."""


def knobs_for(arch: str) -> Mapping[str, Any]:
    """The row of an architecture; of the nearest one where it has none, which is said once; {} without any."""
    table = _read(PATH)
    knobs = nearest(arch, table)
    if knobs != arch and arch:
        _say(arch, knobs)
    return table[knobs] if knobs is not None else {}


def nearest(arch: str, known: Iterable[str]) -> str | None:
    """The architecture itself, else the newest older one of the same maker, else the oldest; None of another maker."""
    known = list(known)
    if arch in known:
        return arch
    arch_number = _number(arch)
    same = sorted(
        (number, name)
        for name in known
        if (number := _number(name)) is not None and arch_number and number[0] == arch_number[0]
    )
    older = [name for number, name in same if arch_number and number <= arch_number]
    return older[-1] if older else same[0][1] if same else None


def _number(arch: str) -> tuple[str, int] | None:
    match = _ARCH.fullmatch(arch)
    return (
        (match[1], int(match[2], 10 if match[1] == "sm_" and match[2].isdigit() else 16)) if match else None
    )


@cache
def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        document: dict[str, dict[str, Any]] = json.loads(read_shipped(path))
        if not all(isinstance(row, dict) for row in document.values()):
            raise TypeError("each entry is to be a table")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        _LOGGER.warning("%s does not say what it should (%s): knobs follow from sizes", path, error)
        return {}
    return document


@cache
def _say(arch: str, found: str | None) -> None:
    what = f"those of {found} are used" if found else "they follow from sizes"
    _LOGGER.warning("%s has no knobs for %s: %s", PATH, arch, what)
