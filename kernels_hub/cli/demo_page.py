"""The page of `kernels-hub demo`: its results as bars and tables, in one file that loads nothing."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import TypedDict

PAGE_FILE = "demo.html"


class ModelResult(TypedDict):
    """A model before and after: see `demo.Comparison`."""

    model: str
    before_ms: float
    after_ms: float
    ratio: float
    max_error: float
    max_magnitude: float
    packed_mib: float
    swapped: int
    modules: int


class Similarity(TypedDict):
    """A pair of sentences."""

    first: str
    second: str
    original: float
    kernelized: float


class Results(TypedDict):
    """What `demo` returns, as far as the page shows it."""

    models: list[ModelResult]
    similarities: list[Similarity]
    published: list[dict[str, str]]


_STYLE = """
:root { color-scheme: light dark; --kernel: #2459c4; --eager: #9aa3ab; }
@media (prefers-color-scheme: dark) { :root { --kernel: #9dbdff; --eager: #5b636c; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
.bar { height: 1.1rem; border-radius: 3px; margin: 2px 0; }
.row { display: grid; grid-template-columns: 8rem 1fr 7rem; gap: .7rem; align-items: center; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .25rem .6rem; }
tr { border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
small { opacity: .75; }
"""


def write_page(results: Results, folder: Path) -> Path:
    """Write the results of `demo` as a page into a folder; its path."""
    path = folder / PAGE_FILE
    path.write_text(page(results), encoding="utf-8")
    return path


def page(results: Results) -> str:
    """HTML. results: as `demo` returns them; its texts are escaped."""
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>kernels_hub demo</title><style>{_STYLE}</style>'
    ]
    parts.append("<h1>kernels_hub on this machine</h1>")
    parts += [_model(one) for one in results["models"]]
    parts.append("<h2>Sentences: the same neighbours</h2>")
    parts.append(
        _table(
            ("original", "kernelized", "pair"),
            (
                (f"{one['original']:.6f}", f"{one['kernelized']:.6f}", f"{one['first']} | {one['second']}")
                for one in results["similarities"]
            ),
        )
    )
    published = results["published"]
    if published:
        parts.append("<h2>Layers compiled, published and used by version</h2>")
        parts.append(_table(tuple(published[0]), (tuple(row.values()) for row in published)))
    return "\n".join(parts) + "</html>\n"


def _model(result: ModelResult) -> str:
    longest = max(result["before_ms"], result["after_ms"])
    bars = "".join(
        f'<div class="row"><span>{name}</span>'
        f'<div class="bar" style="width:{100 * milliseconds / longest:.1f}%;background:var(--{colour})"></div>'
        f"<span>{milliseconds:.1f} ms</span></div>"
        for name, colour, milliseconds in (
            ("PyTorch", "eager", result["before_ms"]),
            ("kernelized", "kernel", result["after_ms"]),
        )
    )
    return (
        f"<h2>{escape(result['model'])}: {result['ratio']:.2f} times as fast</h2>{bars}"
        f"<p><small>{result['swapped']} of {result['modules']} modules run on kernels. "
        f"Largest difference {result['max_error']:.1e} where outputs reach {result['max_magnitude']:.2g}. "
        f"Packed weights hold {result['packed_mib']:.0f} MiB.</small></p>"
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{titles}</tr>{body}</table>"
