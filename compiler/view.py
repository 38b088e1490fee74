"""A graph that one can see: as Graphviz's DOT, as an SVG picture, as an interactive page in one file.

    from kernels_hub.compiler.view import to_html

    Path("page.html").write_text(to_html(graph), encoding="utf-8")
    Path("pass.html").write_text(to_html(graph, rewritten), encoding="utf-8")  # before and after, side by side

Equal graphs give equal text. Nothing in a graph's names becomes markup, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.viewing.blocks import build_tree
from kernels_hub.compiler.viewing.dot import quote, render_dot
from kernels_hub.compiler.viewing.drawing import draw
from kernels_hub.compiler.viewing.page import render_page
from kernels_hub.compiler.viewing.scene import compose, default_open
from kernels_hub.compiler.viewing.svg import render_svg

__all__ = ["to_dot", "to_html", "to_svg"]


def to_dot(graph: Graph, after: Graph | None = None) -> str:
    """A digraph for Graphviz, repeated blocks as clusters; with `after`, both graphs in clusters of their own."""
    lines = [
        f"digraph {quote(graph.name)} {{",
        '  node [shape=box, style=rounded, fontname="monospace", fontsize=10]; edge [color="#8d877b"];',
    ]
    if after is None:
        drawing = draw(graph)
        lines += render_dot(drawing, build_tree(drawing))
    else:
        for prefix, one in (("before", graph), ("after", after)):
            drawing = draw(one)
            lines.append(f"  subgraph cluster_{prefix} {{ label={quote(f'{prefix}: {one.name}')};")
            lines += [f"  {line}" for line in render_dot(drawing, build_tree(drawing), f"{prefix}_")]
            lines.append("  }")
    return "\n".join([*lines, "}\n"])


def to_svg(graph: Graph, *, unfold: bool = False, weights: bool = True) -> str:
    """A picture. Of repeated blocks the first is open, the others are folded; unfold opens all.

    weights: whether boxes name the weights and constants that they read.
    """
    drawing = draw(graph)
    tree = build_tree(drawing)
    opened = set(range(len(tree.blocks))) if unfold else default_open(tree)
    return render_svg(drawing, tree, compose(drawing, tree, opened, weights=weights))


def to_html(graph: Graph, after: Graph | None = None, *, sizes: Mapping[str, int] | None = None) -> str:
    """A page: pan, zoom, search, fold and unfold, types, weights, attributes, costs. With `after`, two side by side.

    sizes: numbers for symbols, which costs are computed at; 1 (or the least allowed) for all others. Raises DimError
    for a symbol that no graph has, and for a size that its bounds refuse.
    """
    graphs = [graph] if after is None else [graph, after]
    return render_page([(one, draw(one, _mine(one, graphs, sizes or {}))) for one in graphs])


def _mine(graph: Graph, graphs: list[Graph], sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes of symbols of this graph, and those that none has, for `draw` to refuse."""
    anywhere = {name for one in graphs for name in one.symbols}
    return {name: size for name, size in sizes.items() if name in graph.symbols or name not in anywhere}
