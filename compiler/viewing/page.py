"""The interactive page: one HTML file with its data, style and script inside, and a policy that allows only these."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

from kernels_hub.compiler.viewing.blocks import FOLDED_WIDTH, Tree, build_tree
from kernels_hub.compiler.viewing.drawing import KINDS, Box, Drawing
from kernels_hub.compiler.viewing.layers import GAP
from kernels_hub.compiler.viewing.palette import DARK, LIGHT, properties
from kernels_hub.compiler.viewing.scene import FOLDED_HEIGHT, HEADER, PADDING, RANK_GAP
from kernels_hub.escaping import HtmlText, json_text

_KIND_COLOURS = f"""
:root {{ {properties(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {properties(DARK)} }} }}
:root[data-theme="dark"] {{ {properties(DARK)} }}
"""


def render_page(drawings: Sequence[Drawing]) -> str:
    """The page of one drawing, or of two side by side."""
    data = {
        "kinds": KINDS,
        "gap": GAP, "rankGap": RANK_GAP, "foldedWidth": FOLDED_WIDTH, "foldedHeight": FOLDED_HEIGHT,
        "header": HEADER, "padding": PADDING,
        "graphs": [_graph(drawing) for drawing in drawings],
    }  # fmt: skip
    style, script = _KIND_COLOURS + _asset("page.css"), _asset("page.js")
    title = " → ".join(dict.fromkeys(drawing.name for drawing in drawings))
    parts = {
        "@TITLE@": HtmlText(title),
        "@POLICY@": f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'",
        "@STYLE@": style,
        "@SCRIPT@": script,
        "@DATA@": _json(data),
    }
    # One after the other over the template's pieces, so that no text of a graph is taken for a place to fill.
    pieces = [_asset("page.html")]
    for mark, text in parts.items():
        split = []
        for piece in pieces:
            if piece in parts.values():
                split.append(piece)
                continue
            head, *tails = piece.split(mark)
            split.append(head)
            for tail in tails:
                split += [text, tail]
        pieces = split
    return "".join(pieces)


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(data: object) -> str:
    """JSON that no HTML parser sees a tag or a comment in."""
    text = json_text(data)
    for one in "<>&":
        text = text.replace(one, f"\\u{ord(one):04x}")
    return text


class _InternTable:
    """Things written once and named by number."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, key: object, row: object = None) -> int:
        """Its number; entered if it is new."""
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            self.rows.append(key if row is None else row)
        return self._numbers[key]


def _graph(drawing: Drawing) -> dict[str, Any]:
    tree = build_tree(drawing)
    texts, shapes = _InternTable(), _InternTable()
    return {
        "name": drawing.name,
        "counts": dict(drawing.counts),
        "dead": drawing.dead,
        "sizes": dict(drawing.sizes),
        "total": [drawing.total.flops, drawing.total.bytes],
        "boxes": [_box(box, texts, shapes) for box in drawing.boxes],
        "texts": texts.rows,
        "shapes": shapes.rows,
        **_tree(tree),
    }


def _box(box: Box, texts: _InternTable, shapes: _InternTable) -> list[Any]:
    """[what many share, title, origin, inputs, outputs, rows]."""
    shape = (box.op, box.kind, box.types, box.attrs, box.cost)
    number = shapes.number(
        shape,
        [
            texts.number(box.op), KINDS.index(box.kind), [texts.number(of) for of in box.types],
            [[texts.number(name), texts.number(value)] for name, value in box.attrs],
            box.cost.flops, box.cost.bytes, texts.number(box.cost.formula),
        ],
    )  # fmt: skip
    rows = [
        [
            row.operand,
            texts.number(row.label),
            texts.number(row.type),
            texts.number(" → ".join(row.via)),
            texts.number(row.origin),
        ]
        for row in box.rows
    ]
    title = texts.number(box.title)
    return [number, title, texts.number(box.origin), list(box.inputs), list(box.outputs), rows]


def _tree(tree: Tree) -> dict[str, Any]:
    return {
        "blocks": [
            [
                block.parent, block.run, block.place, block.count, block.label, block.layout, block.items,
                block.inputs, block.outputs, block.nets,
            ]
            for block in tree.blocks
        ],
        "layouts": [
            {
                "ranks": layout.ranks,
                "x": layout.x,
                "widths": layout.widths,
                "steps": [number for step in layout.steps for number in step],
                "far": [number for edge in layout.far for number in (edge.source, edge.target, edge.net, edge.port)],
            }
            for layout in tree.layouts
        ],
    }  # fmt: skip
