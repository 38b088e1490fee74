"""A scene as one SVG document, light or dark as the reader prefers; its colours are those of the page."""

from __future__ import annotations

from kernels_hub.compiler.viewing.blocks import Tree
from kernels_hub.compiler.viewing.drawing import Box, Drawing
from kernels_hub.compiler.viewing.palette import DARK, LIGHT, properties
from kernels_hub.compiler.viewing.scene import FOLDED_HEIGHT, Line, Place, Scene
from kernels_hub.escaping import HtmlText

MARGIN = 24.0
TITLE = 34.0

_STYLE = f"""
svg {{ --paper:#fbfaf7; --sheet:#fff; --ink:#23211d; --soft:#6d685e; --line:#d5d0c4; --edge:#8d877b; --wash:#f4f1ea;
  {properties(LIGHT)} background:var(--paper) }}
@media (prefers-color-scheme:dark) {{ svg {{ --paper:#191816; --sheet:#24221f; --ink:#e9e5dc; --soft:#a29b8e;
  --line:#45413a; --edge:#7d776b; --wash:#201f1c; {properties(DARK)} }} }}
text {{ font:11px ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace; fill:var(--soft) }}
.name {{ font-weight:600; font-size:12px; fill:var(--ink) }}
.weight {{ font-size:10px }}
.box {{ fill:var(--sheet); stroke:var(--line) }}
.open {{ fill:var(--wash); stroke:var(--line) }}
.edge {{ fill:none; stroke:var(--edge); stroke-width:1.2 }}
.far {{ stroke-dasharray:3 4; opacity:.3 }}
"""
_STYLE += "\n".join(f".{kind} {{ fill:var(--{kind}) }}" for kind in LIGHT)


def render_svg(drawing: Drawing, tree: Tree, scene: Scene) -> str:
    """The document, of the scene's size."""
    width, height = scene.width + 2 * MARGIN, scene.height + 2 * MARGIN + TITLE
    nodes = sum(drawing.counts.values())
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(width)}" height="{_n(height)}" '
            f'viewBox="{_n(-MARGIN)} {_n(-MARGIN - TITLE)} {_n(width)} {_n(height)}" role="img">'
        ),
        f"<title>{HtmlText(drawing.name)}</title>",
        f"<style>{_STYLE}</style>",
        (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 1 8 4 0 7z" fill="var(--edge)"/></marker></defs>'
        ),
        (
            f'<text class="name" y="{_n(-TITLE + 8)}">{HtmlText(drawing.name)}'
            f'<tspan font-weight="400"> · {nodes} nodes</tspan></text>'
        ),
    ]
    parts += [_block(place, tree) for place in scene.places if place.item < 0]
    parts += [_line(line) for line in scene.lines]
    parts += [_box(place, drawing.boxes[place.item]) for place in scene.places if place.item >= 0]
    parts.append("</svg>\n")
    return "\n".join(parts)


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _fit(text: str, width: float, each: float) -> str:
    most = max(int(width / each), 1)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _block(place: Place, tree: Tree) -> str:
    block = tree.blocks[~place.item]
    opened = place.height > FOLDED_HEIGHT
    box = (
        f'<rect class="{"open" if opened else "box"}" x="{_n(place.x)}" y="{_n(place.y)}" width="{_n(place.width)}" '
        f'height="{_n(place.height)}" rx="9"/>'
    )
    many = f"{block.place + 1} of {block.count}"
    x, y, right = _n(place.x + 12), place.y, place.x + place.width - 12
    name = _fit(block.label, place.width - (90 if opened else 20), 7.3)
    below = f"{many} · {_inside(tree, ~place.item)} nodes"
    return (
        f'<g>{box}<text class="name" x="{x}" y="{_n(y + 18)}">{HtmlText(name)}</text>'
        + (f'<text x="{_n(right)}" y="{_n(y + 18)}" text-anchor="end">{many}</text>' if opened else "")
        + ("" if opened else f'<text x="{x}" y="{_n(y + 36)}">{below}</text>')
        + "</g>"
    )


def _inside(tree: Tree, number: int) -> int:
    return sum(1 if item >= 0 else _inside(tree, ~item) for item in tree.blocks[number].items)


def _line(line: Line) -> str:
    bend = min(max((line.y2 - line.y1) / 2, 8.0), 60.0)
    d = (
        f"M{_n(line.x1)} {_n(line.y1)}C{_n(line.x1)} {_n(line.y1 + bend)} {_n(line.x2)} {_n(line.y2 - bend)} "
        f"{_n(line.x2)} {_n(line.y2)}"
    )
    if line.bottom > line.y2:
        d += f"V{_n(line.bottom)}"
    tip = ' marker-end="url(#tip)"' if line.ends else ""
    return f'<path class="edge{" far" if line.far else ""}" d="{d}"{tip}/>'


def _box(place: Place, box: Box) -> str:
    x, y, width = place.x, place.y, place.width
    rounded = 14 if box.kind in {"input", "output"} else 6
    parts = [
        f"<g><title>{HtmlText(box.origin or box.title)}</title>",
        f'<rect class="box" x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(place.height)}" rx="{rounded}"/>',
        f'<rect class="{box.kind}" x="{_n(x + 7)}" y="{_n(y + 8)}" width="4" height="11" rx="2"/>',
        f'<text class="name" x="{_n(x + 17)}" y="{_n(y + 18)}">{HtmlText(_fit(box.title, width - 24, 7.3))}</text>',
    ]
    y += 33
    for of in box.types:
        parts.append(f'<text x="{_n(x + 10)}" y="{_n(y)}">{HtmlText(_fit(of, width - 18, 6.7))}</text>')
        y += 15
    for row in box.rows if place.height > 27 + 15 * len(box.types) else ():
        label = _fit(f"{row.label} · {row.type}", width - 22, 6.1)
        parts.append(f'<text class="weight" x="{_n(x + 10)}" y="{_n(y + 1)}">◆ {HtmlText(label)}</text>')
        y += 14
    return "".join(parts) + "</g>"
