"""A graph's pictures as its methods. What draws them is loaded when the first one is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from kernels_hub.compiler.ir.graph import Graph

_Path = str | os.PathLike[str] | None


class Pictures:
    """The methods of `Graph` that draw it. Each gives the text, and writes it where a path is given."""

    def to_svg(self, path: _Path = None, *, unfold: bool = False, weights: bool = True) -> str:
        """A picture. Of repeated blocks the first is open, the others are folded; unfold opens all.

        weights: whether boxes name the weights and constants that they read.
        """
        from kernels_hub.compiler import view

        return _written(view.to_svg(cast("Graph", self), unfold=unfold, weights=weights), path)

    def to_dot(self, path: _Path = None, *, after: Graph | None = None) -> str:
        """A digraph for Graphviz, repeated blocks as clusters; with `after`, both graphs."""
        from kernels_hub.compiler import view

        return _written(view.to_dot(cast("Graph", self), after), path)

    def to_html(
        self, path: _Path = None, *, after: Graph | None = None, sizes: Mapping[str, int] | None = None
    ) -> str:
        """One self-contained interactive page; with `after`, the two graphs side by side.

        sizes: numbers for symbols, which costs are computed at. Raises DimError for a symbol that no graph has.
        """
        from kernels_hub.compiler import view

        return _written(view.to_html(cast("Graph", self), after, sizes=sizes), path)


def _written(text: str, path: _Path) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
