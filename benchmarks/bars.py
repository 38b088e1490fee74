"""Bars as SVG, drawn without a library: a group a case, a bar a peer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

COLOURS = ("#9aa0a6", "#f2a33c", "#e8710a", "#5b8def", "#7c5cc4", "#188038")
BAR, GAP, HEIGHT, TOP, LEFT = 14, 22, 220, 46, 40


def bars(title: str, values: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> str:
    """values: case -> name -> length of its bar. A line marks 1."""
    most = max((value for row in values.values() for value in row.values()), default=1.0) * 1.08
    group = BAR * len(names) + GAP
    width = LEFT + group * len(values) + GAP
    base = TOP + HEIGHT

    def y(value: float) -> float:
        return base - HEIGHT * value / most

    parts = [f'<text x="{LEFT}" y="16" font-size="13" font-weight="bold">{escape(title)}</text>']
    for place, name in enumerate(names):
        start = LEFT + place * 118
        parts.append(
            f'<rect x="{start}" y="25" width="9" height="9" fill="{COLOURS[place % len(COLOURS)]}"/>'
        )
        parts.append(f'<text x="{start + 13}" y="33">{escape(name)}</text>')
    for number, (case, row) in enumerate(values.items()):
        left = LEFT + GAP / 2 + number * group
        for place, name in enumerate(names):
            value = row.get(name, 0.0)
            x, top = left + place * BAR, y(value)
            colour = COLOURS[place % len(COLOURS)]
            parts.append(
                f'<rect x="{x:.1f}" y="{top:.1f}" width="{BAR - 2}" height="{base - top:.1f}" fill="{colour}">'
                f"<title>{escape(case)}, {escape(name)}: {value:.2f}</title></rect>"
            )
            at = f'x="{x + BAR / 2 - 1:.1f}" y="{top - 3:.1f}"'
            parts.append(f'<text {at} font-size="8" text-anchor="middle">{value:.1f}</text>')
        middle = left + BAR * len(names) / 2
        parts.append(f'<text x="{middle:.1f}" y="{base + 14}" text-anchor="middle">{escape(case)}</text>')
    for height, style in ((y(1), 'stroke-dasharray="3 3"'), (base, "")):
        ends = f'x1="{LEFT}" x2="{width - GAP}" y1="{height:.1f}" y2="{height:.1f}"'
        parts.append(f'<line {ends} stroke="#202124" {style}/>')
    wide = max(width, LEFT + 118 * len(names))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {base + 24}" width="{wide}" height="{base + 24}" '
        f'font-family="sans-serif" font-size="10" fill="#202124"><rect width="100%" height="100%" fill="#ffffff"/>'
        f"{''.join(parts)}</svg>\n"
    )
