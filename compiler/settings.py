"""The settings of `compile`, as a record."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.plan.heuristics import Heuristic
from kernels_hub.compiler.plan.selection import (
    Filter,
)


@dataclass(frozen=True)
class Settings:
    """What `compile` was asked for. max_shapes: how many specialised plans are kept. cache: where tuning is kept."""

    device: Device
    only: Filter = field(default_factory=Filter)
    rank: Heuristic | str = "default"
    max_shapes: int = 8
    cache: str | os.PathLike[str] | None = None
    wait: bool = True
    """Whether calls wait for the chosen plan, or are served meanwhile by engines that need no compiler."""
