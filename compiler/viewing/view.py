"""Renders a graph as Graphviz DOT, as SVG, or as an interactive HTML page.

    from kernels_hub.compiler.viewing.view import to_html

    Path("page.html").write_text(to_html(graph), encoding="utf-8")
    Path("pass.html").write_text(to_html(graph, rewritten), encoding="utf-8")  # before and after, side by side

Equal graphs give equal text. Nothing in a graph's names becomes markup, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernels_hub.compiler.errors import GraphError
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.printer import print_graph
from kernels_hub.compiler.viewing.blocks import build_tree
from kernels_hub.compiler.viewing.dot import quote, render_dot
from kernels_hub.compiler.viewing.drawing import draw
from kernels_hub.compiler.viewing.onnx_drawing import draw_onnx
from kernels_hub.compiler.viewing.page import render_page
from kernels_hub.compiler.viewing.scene import compose, default_open
from kernels_hub.compiler.viewing.svg import render_svg
from kernels_hub.escaping import HtmlText

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["render_onnx", "to_dot", "to_figure", "to_html", "to_svg", "to_text"]

_MOST_DRAWN = 1000
"""Nodes of a graph that a notebook shows as a picture."""


def to_text(graph: Graph) -> str:
    """The printed form, which `ir.parser` reads back."""
    return print_graph(graph)


def to_dot(graph: Graph, after: Graph | None = None, *, marks: Mapping[Value, str] | None = None) -> str:
    """A digraph for Graphviz, repeated blocks as clusters; with `after`, both graphs in clusters of their own.

    marks: values, of either graph, and a note for each ("" is none).

    >>> graph = Graph("double")
    >>> x = graph.input("x", ("n", 4))
    >>> y = graph.output("y", x * 2.0)
    >>> to_dot(graph).startswith('digraph "double" {')
    True
    """
    lines = _opened(graph.name)
    if after is None:
        drawing = draw(graph, marks=marks)
        lines += render_dot(drawing, build_tree(drawing))
    else:
        graphs = [graph, after]
        for prefix, one, marked in zip(("before", "after"), graphs, _marks_of(graphs, marks), strict=True):
            drawing = draw(one, marks=marked)
            lines.append(f"  subgraph cluster_{prefix} {{ label={quote(f'{prefix}: {one.name}')};")
            lines += [f"  {line}" for line in render_dot(drawing, build_tree(drawing), f"{prefix}_")]
            lines.append("  }")
    return "\n".join([*lines, "}\n"])


def to_svg(
    graph: Graph, *, unfold: bool = False, weights: bool = True, marks: Mapping[Value, str] | None = None
) -> str:
    """A picture. Of repeated blocks the first is open, the others are folded; unfold opens all.

    weights: whether boxes name the weights and constants that they read. marks: values and a note for each ("" is
    none), whose boxes are shown in another colour, with a star. Raises GraphError for a value that has no box.

    >>> graph = Graph("double")
    >>> x = graph.input("x", ("n", 4))
    >>> y = graph.output("y", x * 2.0)
    >>> to_svg(graph).startswith("<svg ")
    True
    """
    drawing = draw(graph, marks=marks)
    tree = build_tree(drawing)
    opened = set(range(len(tree.blocks))) if unfold else default_open(tree)
    return render_svg(drawing, tree, compose(drawing, tree, opened, weights=weights))


def to_figure(graph: Graph) -> str:
    """The picture for a cell of a notebook, in a box that scrolls; of a graph of over 1,000 nodes, what else there is.

    It is an image, so that none of its styles reaches the notebook around it.

    >>> graph = Graph("double")
    >>> x = graph.input("x", ("n", 4))
    >>> y = graph.output("y", x * 2.0)
    >>> to_figure(graph).startswith("<div")
    True
    """
    name = HtmlText(graph.name)
    if len(graph.nodes) > _MOST_DRAWN:
        return f'<p>{name}: {len(graph.nodes)} nodes; <code>to_html("page.html")</code> writes them as a page</p>'
    picture = b64encode(to_svg(graph, weights=False).encode()).decode()
    image = f'<img alt="{name}" src="data:image/svg+xml;base64,{picture}" style="max-width:none">'
    return f'<div style="max-height:32em; overflow:auto">{image}</div>'


def to_html(
    graph: Graph,
    after: Graph | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    marks: Mapping[Value, str] | None = None,
) -> str:
    """A page: pan, zoom, search, fold and unfold, types, weights, attributes, costs. With `after`, two side by side.

    sizes: numbers for symbols, which costs are computed at; 1 (or the least allowed) for all others. marks: values, of
    either graph, and a note for each, as for `to_svg`; the page's search finds them by the star. Raises DimError for a
    symbol that no graph has, and for a size that its bounds refuse.

    >>> graph = Graph("double")
    >>> x = graph.input("x", ("n", 4))
    >>> y = graph.output("y", x * 2.0)
    >>> to_html(graph, sizes={"n": 8}).startswith("<!doctype html>")
    True
    """
    graphs = [graph] if after is None else [graph, after]
    return render_page(
        [
            draw(graph, _mine(graph, graphs, sizes or {}), marked)
            for graph, marked in zip(graphs, _marks_of(graphs, marks), strict=True)
        ]
    )


def render_onnx(model: ModelProto, reasons: Mapping[str, str], form: str) -> str:
    """A model that does not become a graph, as ".html", ".svg" or ".dot": see `onnx_drawing`."""
    drawing = draw_onnx(model, reasons)
    if form == ".html":
        return render_page([drawing])
    tree = build_tree(drawing)
    if form == ".dot":
        return "\n".join([*_opened(drawing.name), *render_dot(drawing, tree), "}\n"])
    return render_svg(drawing, tree, compose(drawing, tree, default_open(tree)))


def _opened(name: str) -> list[str]:
    return [
        f"digraph {quote(name)} {{",
        '  node [shape=box, style=rounded, fontname="monospace", fontsize=10]; edge [color="#8d877b"];',
    ]


def _marks_of(graphs: list[Graph], marks: Mapping[Value, str] | None) -> list[dict[Value, str]]:
    """The marks of each graph. Raises GraphError for a value of none of them."""
    for value in marks or {}:
        if not any(value.graph is graph for graph in graphs):
            raise GraphError(f"{value} cannot be marked: it is of another graph, {value.graph.name}")
    return [
        {value: note for value, note in (marks or {}).items() if value.graph is graph} for graph in graphs
    ]


def _mine(graph: Graph, graphs: list[Graph], sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes of symbols of this graph, and those that none has, for `draw` to refuse."""
    anywhere = {name for graph in graphs for name in graph.symbols}
    return {name: size for name, size in sizes.items() if name in graph.symbols or name not in anywhere}
