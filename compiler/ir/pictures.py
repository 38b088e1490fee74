"""A graph's text and pictures as its methods.

The graph knows nothing of what prints and draws it: the package says so once (`draw_with`), and it is loaded for the
first picture.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

_Path = str | os.PathLike[str] | None
_Marks = Mapping[Any, str] | None


class Renderer(Protocol):
    """What draws graphs: see `viewing.view`."""

    def to_text(self, graph: Pictures, /) -> str:
        """The printed form."""

    def to_svg(self, graph: Pictures, /, *, unfold: bool, weights: bool, marks: _Marks) -> str:
        """A picture."""

    def to_figure(self, graph: Pictures, /) -> str:
        """A picture for a cell of a notebook."""

    def to_dot(self, graph: Pictures, after: Pictures | None, /, *, marks: _Marks) -> str:
        """A digraph for Graphviz."""

    def to_html(
        self,
        graph: Pictures,
        after: Pictures | None,
        /,
        *,
        sizes: Mapping[str, int] | None,
        marks: _Marks,
    ) -> str:
        """A page."""


def draw_with(load: Callable[[], Renderer]) -> None:
    """Draw all graphs with what `load` gives."""
    global _load  # noqa: PLW0603 (said once, when the package is imported)
    _load = load


def _load() -> Renderer:
    raise RuntimeError("nothing draws graphs: import kernels_hub.compiler")


class Pictures:
    """The methods of `Graph` that show it. Those that draw write the picture where a path is given, too."""

    def __str__(self) -> str:
        return _load().to_text(self)

    def _repr_html_(self) -> str:
        return _load().to_figure(self)

    def to_svg(
        self, path: _Path = None, *, unfold: bool = False, weights: bool = True, marks: _Marks = None
    ) -> str:
        """A picture. Of repeated blocks the first is open, the others are folded; unfold opens all.

        weights: whether boxes name the weights and constants that they read. marks: values of the graph, and a note for
        each ("" is none): what makes them is shown in another colour, with a star.
        """
        return _written(_load().to_svg(self, unfold=unfold, weights=weights, marks=marks), path)

    def to_dot(self, path: _Path = None, *, after: Pictures | None = None, marks: _Marks = None) -> str:
        """A digraph for Graphviz, repeated blocks as clusters; with `after`, both graphs. marks: as for `to_svg`."""
        return _written(_load().to_dot(self, after, marks=marks), path)

    def to_html(
        self,
        path: _Path = None,
        *,
        after: Pictures | None = None,
        sizes: Mapping[str, int] | None = None,
        marks: _Marks = None,
    ) -> str:
        """One self-contained interactive page; with `after`, the two graphs side by side.

        sizes: numbers for symbols, which costs are computed at. marks: values of either graph, as for `to_svg`. Raises
        DimError for a symbol that no graph has.
        """
        return _written(_load().to_html(self, after, sizes=sizes, marks=marks), path)


def _written(text: str, path: _Path) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
