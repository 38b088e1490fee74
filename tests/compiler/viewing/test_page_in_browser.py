"""The page in a browser: a graph of 5,000 nodes is drawn, folded, searched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from kernels_hub.compiler.viewing.view import to_html
from tests.compiler.viewing.graphs import encoder
from tests.compiler.viewing.test_view import hostile

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (apt-get install chromium)")


@pytest.fixture
def dump(tmp_path):
    """The document after the page at file#fragment has run; what it says on the console fails the test."""

    def run(text, fragment):
        page = tmp_path / "page.html"
        page.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [
                CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1400,900",
                f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--dump-dom",
                f"{page.as_uri()}#{fragment}",
            ],
            capture_output=True, text=True, timeout=60, env={**os.environ, "HOME": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        assert "CONSOLE" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        assert 'data-ready="1"' in done.stdout
        return re.sub(r"<(style|script).*?</\1>", "", done.stdout, flags=re.DOTALL)

    return run


def shown(document):
    return [int(number) for number in re.findall(r'data-shown="(\d+)"', document)]


@pytest.mark.exhaustive
def test_five_thousand_nodes(dump):
    graph = encoder(66)
    assert len(graph.nodes) > 5000
    text = to_html(graph)
    assert len(text.encode()) < 2_000_000
    folded = dump(text, "fold=all&q=softmax&pick=40")
    # One block is open, for what was picked in it.
    assert '<h2 id="found-title">66 found</h2>' in folded
    assert (
        "encoder.layer.40.attention" in re.search(r'<section id="detail".*?</section>', folded, re.DOTALL)[0]
    )
    assert folded.count('aria-expanded="true"') == 1 and folded.count('aria-expanded="false"') == 65
    everything = dump(text, "fold=none&weights=1&colour=flops")
    assert everything.count('aria-expanded="true"') == 66
    (all_boxes,), (few,) = shown(everything), shown(folded)
    assert all_boxes > 3000 > 200 > few
    assert "log scale" in everything and "log scale" not in folded


def test_before_and_after_with_hostile_names(dump):
    evil = "</script><img src=x onerror=document.title='pwned'><b>"
    document = dump(to_html(hostile(evil), encoder(2)), "q=matmul&pick=0")
    assert "pwned</title>" not in document and "<img" not in document
    assert "change" in document and len(shown(document)) == 2
    assert "&lt;img" in document
