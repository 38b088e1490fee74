"""The page of a run: each case with its ratios, its share of the roof or its error, in one file that loads nothing."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.gpu.journal import Entry, Journal
from benchmarks.gpu.slices import SLICES

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .2rem .6rem; }
tr { border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
.failed { color: #b3261e; } @media (prefers-color-scheme: dark) { .failed { color: #ff8a80; } }
"""


def write_page(journal: Journal, device: str, path: Path) -> None:
    """Write the page of all that a journal knows."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>kernels_hub on {escape(device)}</title><style>{_STYLE}</style>",
        f"<h1>kernels_hub on {escape(device)}</h1>",
        "<p>Ratios are eager PyTorch's time over another's, median (least to most) of rounds in turn.</p>",
    ]
    for of in SLICES:
        entries = journal.of(of.number)
        failed = sum(bool(entry.error) for entry in entries)
        parts.append(
            f"<h2>{of.number}. {escape(of.name)}</h2><p>{escape(of.proves)}. {len(entries)} cases, {failed} failed.</p>"
        )
        parts.append(_table(_row(entry) for entry in entries))
    path.write_text("".join(parts) + "</html>\n", encoding="utf-8")


def _table(rows: Iterable[str]) -> str:
    return "<table><tr><th>case<th>result<th>difference<th>seconds</tr>" + "".join(rows) + "</table>"


def _row(entry: Entry) -> str:
    result = dict(entry.result)
    off = result.pop("difference", {})
    largest = max(off.values(), default=0.0) if isinstance(off, dict) else off
    shown = f"<span class=failed>{escape(entry.error)}</span>" if entry.error else _shown(result)
    return f"<tr><td>{escape(entry.case)}<td>{shown}<td>{largest:.1e}<td>{entry.seconds:.1f}</tr>"


def _shown(result: dict[str, Any]) -> str:
    texts = [
        f"{escape(key)} {of['median']:.2f} ({of['least']:.2f} to {of['most']:.2f})"
        for key, of in result.pop("ratio", {}).items()
    ]
    texts += [f"{escape(key)}: {escape(_plain(value))}" for key, value in result.items() if key != "us"]
    return "; ".join(texts)


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(one)}" for key, one in value.items())
    return str(value)[:300]
