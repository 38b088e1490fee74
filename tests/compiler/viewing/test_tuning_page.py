"""The page of a search: everything is on it, nothing of it is taken for markup, and nothing leaves it."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from kernels_hub.compiler.viewing.tuning import amount, render_tuning


def row(number: int, **more: Any) -> dict[str, Any]:
    made = {
        "digest": f"{number:032x}"[::-1], "origin": f"equal graph {number}", "choices": {}, "predicted": 1e-5 * (number + 1),
        "status": "slower", "seconds": 2e-5 * (number + 1), "times_faster": 1 / (number + 1), "reason": "timed", "facts": {},
        "winner": False, "baseline": False, "graph": "",
    }  # fmt: skip
    return {**made, **more}


def document(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    made = {
        "graph": "block", "dtype": "float32", "device": "cpu (avx512)", "machine": "a machine", "sizes": {"rows": 3},
        "seed": 0, "budget": 60.0, "spent": 12.0, "interrupted": False, "remembered": False, "baseline_seconds": 4e-5,
        "times_faster": 2.0, "candidates": list(rows), "log": ["saturated"],
    }  # fmt: skip
    return {**made, **more}


HOSTILE = '</script><script>alert(1)</script> @BODY@ & "quoted" <b>\u2028'


class Rows(HTMLParser):
    """Cells of the table, and all tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self._inside = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag not in {"td", "th"}

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.rows[-1][-1] += data


def test_every_candidate_is_on_it():
    rows = [
        row(1, baseline=True),
        row(
            0,
            winner=True,
            status="fastest",
            choices={"split": 8},
            facts={"kernels": 2},
            graph="graph {\n  %0 <x>\n}",
        ),
        row(2, status="wrong", seconds=None, times_faster=None, reason="output 'y' differs"),
        row(3, status="pruned", seconds=None, times_faster=None, predicted=0.0, reason="hopeless"),
    ]
    page = render_tuning(document(*rows))
    assert Rows(page).rows == [
        [
            "candidate",
            "origin",
            "choices",
            "predicted",
            "measured",
            "times faster",
            "status",
            "facts",
            "reason",
        ],
        ["00000000", "equal graph 0", "split = 8", "10 µs", "20 µs", "1.00", "fastest", "kernels 2", "timed"],
        ["10000000", "equal graph 1", "", "20 µs", "40 µs", "0.50", "slower", "", "timed"],
        ["30000000", "equal graph 3", "", "-", "-", "-", "pruned", "", "hopeless"],
        ["20000000", "equal graph 2", "", "30 µs", "-", "-", "wrong", "", "output 'y' differs"],
    ]
    assert "<b>1.00 times</b> as fast as the default" in page and "graph {\n  %0 &lt;x&gt;\n}" in page
    assert page.count("<circle") == 2 and page.count("<rect") == 2


def test_nothing_of_it_is_markup():
    plain = render_tuning(document(row(0, winner=True, graph="graph")))
    page = render_tuning(
        document(
            row(0, winner=True, origin=HOSTILE, reason=HOSTILE, choices={HOSTILE: HOSTILE}, graph=HOSTILE),
            graph=HOSTILE, machine=HOSTILE, log=[HOSTILE],
        )
    )  # fmt: skip
    assert Rows(page).tags == Rows(plain).tags
    assert "@SCRIPT@" not in page and "alert(1)" in page


def test_the_policy_allows_what_is_inside_alone():
    page = render_tuning(document(row(0)))
    assert "://" not in page
    for tag, name in (("style", "style-src"), ("script", "script-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in page
    assert "default-src 'none'" in page and " style=" not in page and " onclick" not in page


ANSWERS = {
    "interrupted": (document(row(0, winner=True), interrupted=True), "The search was interrupted"),
    "nothing ran": (document(row(0, seconds=None, status="failed", times_faster=None)), "No candidate ran"),
    "nothing tried": (document(), "No candidate ran"),
    "the default": (document(row(0, winner=True, baseline=True)), "Nothing that was tried is faster"),
    "remembered": (
        document(row(0, winner=True, times_faster=None), baseline_seconds=None),
        "An earlier search found",
    ),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_what_came_of_it(case: str):
    found, text = ANSWERS[case]
    assert text in render_tuning(found)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (2.5, "2.5 s"), (0.0123, "12.3 ms"), (3e-5, "30 µs"), (4e-8, "40 ns")]
)
def test_amounts(seconds: float | None, text: str):
    assert amount(seconds) == text
