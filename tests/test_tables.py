"""Tables: aligned where there is room, paragraphs in a narrow terminal, and HTML; no cell does more than show."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from kernels_hub.tables import html_table, terminal_width, text_table
from tests.combinations import all_but

HEAD = ("step", "us", "reason")
ROWS = [("matmul", "12.5", ""), ("add", "3.0", "a reason of several words, longer than its column's name")]


def test_columns_are_aligned_and_numbers_on_the_right() -> None:
    assert text_table(HEAD, ROWS, numbers=("us",)).splitlines() == [
        "step      us  reason",
        "------  ----  ----------------------------------------",
        "matmul  12.5",
        "add      3.0  a reason of several words, longer than its column's name",
    ]


def test_a_narrow_terminal_gets_paragraphs_that_leave_nothing_out() -> None:
    assert text_table(HEAD, ROWS, 40).splitlines() == [
        "matmul",
        "    us: 12.5",
        "add",
        "    us: 3.0; reason: a reason of several",
        "    words, longer than its column's name",
    ]


@pytest.mark.parametrize("width", [1, 20, 33, 69, 70, 71, 1000])
def test_no_width_loses_a_word(width: int) -> None:
    lines = text_table(HEAD, ROWS, width).splitlines()
    assert max(map(len, lines)) <= max(width, 20)
    assert "".join(ROWS[1][2].split()) in "".join("".join(lines).split())


def test_a_table_of_nothing_is_its_head() -> None:
    assert text_table(HEAD, []).splitlines() == ["step  us  reason", "----  --  ------"]
    assert html_table(HEAD, []).endswith("<tbody></tbody></table>")


def test_cells_are_text_and_nothing_else() -> None:
    evil = [("<script>\x1b[2J\n", "\u202e", "&")]
    for width in (None, 10):
        text = text_table(HEAD, evil, width)
        assert "\x1b" not in text and "\u202e" not in text and r"\x1b" in text
    html = html_table(HEAD, evil, numbers=("us",))
    assert "<script>" not in html and "&amp;" in html
    assert html.count('style="text-align:right"') == 2


PRINTED = """
from torch import nn
from kernels_hub import Mode, explain
print(explain(nn.Sequential(nn.Linear(4, 4), nn.SiLU()), mode=Mode.INFERENCE, device="cpu"))
"""


@pytest.mark.parametrize("columns", all_but([50, 400], 400))
def test_a_report_fits_the_terminal_that_it_is_printed_to(columns: int) -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-c", PRINTED], stdout=follower, stdin=subprocess.DEVNULL, env=environment
    )
    os.close(follower)
    printed = b""
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:  # how a pseudoterminal says that its other end was closed
            break
        if not chunk:
            break
        printed += chunk
    os.close(leader)
    assert process.wait() == 0
    lines = printed.decode().splitlines()
    assert max(map(len, lines)) <= columns
    assert ("class: Linear;" in printed.decode()) == (columns == 50)
    assert lines[0].startswith("module ") == (columns == 400)


def test_output_that_goes_elsewhere_has_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    for elsewhere in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stdout", elsewhere)
        assert terminal_width() is None
