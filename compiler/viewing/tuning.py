"""The page of a search: every candidate with its origin, choices, predicted and measured time, status and reason.

One HTML file, with its style and script inside and a policy that allows only these. It is whole without the script,
which sorts and filters. `document` is what `kernels-hub tune --json` prints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kernels_hub.compiler.viewing.page import _KIND_COLOURS, _asset, _digest
from kernels_hub.escaping import HtmlText

WIDTH, HEIGHT, MARGIN = 560, 330, 46
_MOST_BARS = 14
_NOTE = (
    "A candidate is compared with the oracle before it is timed; one that gives other numbers is never timed. "
    "Times are medians of calls in turn."
)
_COLUMNS = (
    ("candidate", ""), ("origin", ""), ("choices", ""), ("predicted", "number"), ("measured", "number"),
    ("times faster", "number"), ("status", ""), ("facts", ""), ("reason", ""),
)  # fmt: skip


def render_tuning(document: Mapping[str, object]) -> str:
    """The page. document: see the module."""
    style = _asset("page.css") + _asset("tuning.css") + _KIND_COLOURS
    script = _asset("tuning.js")
    parts = {
        "@POLICY@": f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'",
        "@TITLE@": HtmlText(f"{document['graph']}: what was tried"),
        "@STYLE@": style,
        "@BODY@": _body(document),
        "@SCRIPT@": script,
    }
    text, rest = "", _asset("tuning.html")
    for mark, part in parts.items():  # in the template's order; what a graph is called is no mark
        before, _, rest = rest.partition(mark)
        text += before + part
    return text + rest


def amount(seconds: float | None) -> str:
    """Seconds as people read them."""
    if seconds is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _body(document: Mapping[str, Any]) -> str:
    rows = sorted(document["candidates"], key=_rank)
    winner = next((row for row in rows if row["winner"]), None)
    parts = [
        f"<h1>{HtmlText(document['graph'])}: what was tried</h1>",
        _facts(document),
        _answer(document, winner),
        _charts(rows),
        "<h2>Candidates</h2>",
        f'<p class="quiet">{_NOTE}</p>',
        '<div class="pick" id="pick" role="group" aria-label="Show"></div>',
        _table(rows),
    ]
    if winner is not None and winner["graph"]:
        inside = f"<summary>its graph</summary>{_preformatted(winner['graph'].splitlines())}"
        parts += ["<h2>The fastest</h2>", f"<details>{inside}</details>"]
    if document["log"]:
        parts += ["<h2>Log</h2>", _preformatted(document["log"])]
    return "\n".join(parts)


def _preformatted(lines: Sequence[str]) -> str:
    return f"<pre>{chr(10).join(map(HtmlText, lines))}</pre>"


def _facts(document: Mapping[str, Any]) -> str:
    counts: dict[str, int] = {}
    for row in document["candidates"]:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    sizes = ", ".join(f"{name} = {size}" for name, size in document["sizes"].items())
    shown = {
        "device": document["device"],
        "machine": document["machine"],
        "sizes": sizes,
        "seed": document["seed"],
        "budget": f"{document['budget']:g} s",
        "spent": f"{document['spent']:.3g} s",
        "candidates": len(document["candidates"]),
        "not timed": ", ".join(
            f"{count} {status}" for status, count in counts.items() if status not in _TIMED
        ),
    }
    found = (
        f"<span>{name} <b>{HtmlText(str(value))}</b></span>" for name, value in shown.items() if value != ""
    )
    return f'<div class="facts">{"".join(found)}</div>'


_TIMED = ("fastest", "slower")


def _answer(document: Mapping[str, Any], winner: Mapping[str, Any] | None) -> str:
    if document["interrupted"]:
        text = "The search was interrupted. What it had found is kept; run the same command again to go on."
        return f'<p class="answer none">{text}</p>'
    if winner is None:
        return '<p class="answer none">No candidate ran.</p>'
    if winner["baseline"]:
        return '<p class="answer none">Nothing that was tried is faster than what the compiler does by default.</p>'
    if winner["times_faster"] is None:
        text = f"An earlier search found {HtmlText(winner['origin'])}; it was not measured again."
        return f'<p class="answer">{text}</p>'
    return (
        f'<p class="answer"><b>{winner["times_faster"]:.2f} times</b> as fast as the default: '
        f"{amount(winner['seconds'])} instead of {amount(document['baseline_seconds'])}, "
        f"by {HtmlText(winner['origin'])}"
        f"{' with ' + _choices(winner) if winner['choices'] else ''}</p>"
    )


def _rank(row: Mapping[str, Any]) -> tuple[bool, float]:
    return row["seconds"] is None, row["seconds"] if row["seconds"] is not None else row["predicted"]


# -- charts -----------------------------------------------------------------------------------------


def _charts(rows: Sequence[Mapping[str, Any]]) -> str:
    timed = [row for row in rows if row["seconds"] is not None]
    predicted = [row for row in timed if row["predicted"] > 0]
    charts = [_bars(timed[:_MOST_BARS], len(timed))] if timed else []
    if len(predicted) > 1:
        charts.append(_scatter(predicted))
    return f'<div class="charts">{"".join(charts)}</div>' if charts else ""


def _bars(rows: Sequence[Mapping[str, Any]], count: int) -> str:
    step, left, right = 22, 78, 76
    most = max(row["seconds"] for row in rows)
    lines = []
    for index, row in enumerate(rows):
        y, width = 8 + index * step, (WIDTH - left - right) * row["seconds"] / most
        lines.append(
            f'<a href="#c-{HtmlText(row["digest"])}">'
            f'<text x="{left - 8}" y="{y + 11}" text-anchor="end">{HtmlText(row["digest"][:8])}</text>'
            f'<rect class="dot {_mark(row)}" x="{left}" y="{y}" width="{width:.1f}" height="14" rx="3">'
            f"<title>{HtmlText(row['origin'])}</title></rect>"
            f'<text x="{left + width + 6:.1f}" y="{y + 11}">{amount(row["seconds"])}</text></a>'
        )
    height = 16 + len(rows) * step
    shown = "Measured" if count == len(rows) else f"Measured, the best {len(rows)} of {count}"
    return _figure(f"{shown}. Green: the fastest; orange: the default.", "".join(lines), height)


def _scatter(rows: Sequence[Mapping[str, Any]]) -> str:
    xs, ys = ([row[name] for row in rows] for name in ("predicted", "seconds"))
    across, up = _Scale(xs, MARGIN, WIDTH - 16), _Scale(ys, HEIGHT - MARGIN, 14)
    lines = [
        f'<path class="axis" d="M{MARGIN} 10V{HEIGHT - MARGIN}H{WIDTH - 10}" fill="none"/>',
        f'<text x="{WIDTH - 12}" y="{HEIGHT - 8}" text-anchor="end">predicted</text>',
        '<text x="4" y="12">measured</text>',
    ]
    lines += [
        f'<text x="{across(tick):.1f}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle">{amount(tick)}</text>'
        for tick in across.ticks
    ]
    lines += [
        f'<text x="{MARGIN - 4}" y="{up(tick) + 4:.1f}" text-anchor="end">{amount(tick)}</text>'
        for tick in up.ticks
    ]
    lines += [
        f'<a href="#c-{HtmlText(row["digest"])}"><circle class="dot {_mark(row)}" cx="{across(row["predicted"]):.1f}" '
        f'cy="{up(row["seconds"]):.1f}" r="5">'
        f"<title>{HtmlText(row['origin'])}: {amount(row['seconds'])}</title></circle></a>"
        for row in sorted(rows, key=lambda row: _mark(row) != "")
    ]
    return _figure("Predicted against measured, both logarithmic.", "".join(lines), HEIGHT)


class _Scale:
    """Logarithmic, from values to places between two."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self._low, high = math.log(min(values)), math.log(max(values))
        self._span = max(high - self._low, 1e-3)
        pad = 0.06 * (last - first)
        self._first, self._last = first + pad, last - pad
        self.ticks = sorted({min(values), math.exp(self._low + self._span / 2), max(values)})

    def __call__(self, value: float) -> float:
        return self._first + (self._last - self._first) * (math.log(value) - self._low) / self._span


def _figure(caption: str, lines: str, height: int) -> str:
    return (
        f'<figure><figcaption>{caption}</figcaption><svg viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{caption}">{lines}</svg></figure>'
    )


def _mark(row: Mapping[str, object]) -> str:
    return "fastest" if row["winner"] else "baseline" if row["baseline"] else ""


# -- the table --------------------------------------------------------------------------------------


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    heads = "".join(f'<th class="{kind}">{name}</th>' for name, kind in _COLUMNS)
    return (
        f'<div class="scroll"><table id="candidates"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(map(_row, rows))}</tbody></table></div>"
    )


def _row(row: Mapping[str, Any]) -> str:
    marks = " ".join(name for name, on in (("fastest", row["winner"]), ("baseline", row["baseline"])) if on)
    faster = row["times_faster"]
    facts = ", ".join(f"{name} {value}" for name, value in row["facts"].items())
    cells = (
        f"<td><code>{HtmlText(row['digest'][:8])}</code></td>",
        f"<td>{HtmlText(row['origin'])}</td>",
        f"<td><code>{_choices(row)}</code></td>",
        _number(row["predicted"] or None, amount(row["predicted"] or None)),
        _number(row["seconds"], amount(row["seconds"])),
        _number(faster, "-" if faster is None else f"{faster:.2f}"),
        f'<td class="status {HtmlText(row["status"])}">{HtmlText(row["status"])}</td>',
        f"<td>{HtmlText(facts)}</td>",
        f"<td>{HtmlText(row['reason'])}</td>",
    )
    digest, status = HtmlText(row["digest"]), HtmlText(row["status"])
    return f'<tr id="c-{digest}" class="{marks}" data-status="{status}">{"".join(cells)}</tr>'


def _number(value: float | None, text: str) -> str:
    return f'<td class="number" data-value="{"" if value is None else repr(value)}">{text}</td>'


def _choices(row: Mapping[str, Any]) -> HtmlText:
    return HtmlText(", ".join(f"{name} = {value}" for name, value in row["choices"].items()))
