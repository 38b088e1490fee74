"""The README's picture of speed, drawn from committed results: `python -m benchmarks.picture`.

A group for each model, a bar for each way to run it: the median, over the rounds of one run, of eager's time divided
by its own. A bar is there only where that run measured it. Writes `docs/assets/speed-light.svg` and `speed-dark.svg`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
ASSETS = ROOT / "docs" / "assets"

WAYS = {
    "eager": "eager PyTorch",
    "torch.compile": "torch.compile",
    "kernels_hub": "kernels_hub, default mapping",
    "compiled": "kernels_hub, mapping `compiled`",
}


@dataclass(frozen=True)
class Shown:
    """One model of the picture. group: the key of the results file that holds its cases."""

    title: str
    detail: str
    file: str
    group: str
    case: str


SHOWN = (
    Shown(
        "Llama",
        "generate(), a token of 32",
        "2026-11-23-cpu-generation.json",
        "cases",
        "short",
    ),
    Shown("MiniLM", "8 x 128 tokens", "2026-11-23-cpu-models.json", "models", "minilm"),
    Shown("ResNet-50", "1 image", "2026-11-23-cpu-models.json", "models", "resnet"),
)


@dataclass(frozen=True)
class Theme:
    """Colours of text, lines and bars, in the order of WAYS."""

    text: str
    quiet: str
    bars: tuple[str, str, str, str]


THEMES = {
    "light": Theme("#1f2328", "#59636e", ("#b4bbc2", "#e59a2f", "#6f9be8", "#2459c4")),
    "dark": Theme("#f0f6fc", "#9198a1", ("#5b636c", "#d98e2b", "#5a8ae0", "#9dbdff")),
}

WIDTH, LEFT, RIGHT, TOP = 760, 216, 60, 14
BAR, STEP, GAP = 15, 19, 18


def _result(shown: Shown) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RESULTS / shown.file).read_text(encoding="utf-8"))
    return loaded


def speeds(shown: Shown) -> dict[str, float]:
    """How many times as fast as eager each way was, in the order of WAYS; only what was measured."""
    faster = {"eager": 1.0, **_result(shown)[shown.group][shown.case]["speedup_over_eager"]}
    return {way: faster[way] for way in WAYS if way in faster}


def machine(models: Sequence[Shown]) -> str:
    """The machine of the runs, which has to be one."""
    found = {
        (result["machine"]["cpu"], result["threads"], result["machine"]["versions"]["torch"], shown.file[:10])
        for shown in models
        for result in [_result(shown)]
    }
    if len(found) != 1:
        raise ValueError(
            f"a picture shows one machine, one version of PyTorch and one day; these are {found}"
        )
    ((cpu, threads, torch, day),) = found
    return f"{cpu}, {threads} threads, float32, torch {torch}, {day}"


def picture(values: Mapping[Shown, Mapping[str, float]], footnote: str, theme: Theme) -> str:
    """An SVG: horizontal bars, grouped by model, longer is faster."""
    scale = (WIDTH - LEFT - RIGHT) / max(max(row.values()) for row in values.values())
    parts: list[str] = []

    def text(x: float, y: float, words: str, *, colour: str, size: int = 12, anchor: str = "start") -> None:
        at = f'x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"'
        parts.append(f"<text {at}>{escape(words)}</text>")

    y = TOP
    for place, (way, name) in enumerate(WAYS.items()):
        x = LEFT + (place % 2) * 215
        line = y + 20 * (place // 2)
        colour = theme.bars[list(WAYS).index(way)]
        parts.append(f'<rect x="{x}" y="{line}" width="11" height="11" rx="2" fill="{colour}"/>')
        text(x + 18, line + 10, name, colour=theme.text)
    y += 56
    for shown, row in values.items():
        middle = y + STEP * len(row) / 2
        text(LEFT - 14, middle - 1, shown.title, colour=theme.text, size=14, anchor="end")
        text(LEFT - 14, middle + 14, shown.detail, colour=theme.quiet, size=10, anchor="end")
        for way, value in row.items():
            colour = theme.bars[list(WAYS).index(way)]
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{value * scale:.1f}" height="{BAR}" rx="2" fill="{colour}"/>'
            )
            text(LEFT + value * scale + 6, y + 12, f"{value:.2f}x", colour=theme.text, size=11)
            y += STEP
        y += GAP
    text(LEFT, y + 2, "times as fast as eager PyTorch; longer is faster", colour=theme.quiet, size=11)
    text(LEFT, y + 18, footnote, colour=theme.quiet, size=10)
    height = y + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="system-ui, sans-serif" role="img" aria-label="Speed of three models">\n'
        f"{chr(10).join(parts)}\n</svg>\n"
    )


def pictures() -> dict[str, str]:
    """File name -> SVG."""
    values = {shown: speeds(shown) for shown in SHOWN}
    footnote = machine(SHOWN)
    return {f"speed-{name}.svg": picture(values, footnote, theme) for name, theme in THEMES.items()}


def main() -> None:
    ASSETS.mkdir(parents=True, exist_ok=True)
    for name, svg in pictures().items():
        (ASSETS / name).write_text(svg, encoding="utf-8")
        print(ASSETS / name)


if __name__ == "__main__":
    main()
