"""Launches Triton kernels: with tiles from the table of knobs, from shipped binaries or through the JIT.

Generated functions call it `on`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ...triton_launches import launch
from .binaries import Binaries

_ALWAYS = frozenset({"num_warps", "num_stages"})


class Launcher:
    """Of one device. knobs: its row of the table. binaries: what was compiled for it ahead, if anything."""

    def __init__(
        self, knobs: Mapping[str, Any] = MappingProxyType({}), binaries: Binaries | None = None
    ) -> None:
        self.stages: int = knobs.get("stages", 3)
        self.block: int = knobs.get("block", 0)
        product = knobs.get("product")
        self.product: tuple[int, ...] | None = tuple(product) if product else None
        self._kernels: Mapping[str, Mapping[str, int]] = knobs.get("kernels", {})
        self._binaries = binaries

    def tile(self, kernel: Any, chosen: Mapping[str, int]) -> dict[str, int]:
        """The constants of a launch. chosen: what follows from the sizes."""
        name = kernel.fn.__name__
        tuned = self._kernels.get(name, {})
        merged = {**chosen, **{key: value for key, value in tuned.items() if key in chosen or key in _ALWAYS}}
        return merged if self._binaries is None else self._binaries.tile(name, merged)

    def launch(self, kernel: Any, grid: Sequence[int], arguments: Sequence[Any], **constants: Any) -> None:
        """Start it on the current stream of the current device."""
        if self._binaries is None or not self._binaries.launch(
            kernel.fn.__name__, grid, arguments, constants
        ):
            launch(kernel, tuple(grid), tuple(arguments), **constants)
