"""The page that `kernels-hub demo` ends with: every figure is there, and no text can make markup of its own."""

from __future__ import annotations

from pathlib import Path

from kernels_hub.cli.demo_page import page, write_page
from tests.house.test_documentation import loaded

RESULTS = {
    "models": [
        {
            "model": "MiniLM <b>", "before_ms": 40.0, "after_ms": 25.0, "ratio": 1.6, "max_error": 2e-6,
            "max_magnitude": 5.7, "packed_mib": 41.0, "swapped": 25, "modules": 60,
        }
    ],
    "similarities": [{"first": "a cat", "second": "<script>alert(1)</script>", "original": 0.5, "kernelized": 0.5}],
    "onnx": {},
    "published": [{"layer": "GatedMLP", "times faster": "1.30"}],
}  # fmt: skip


def test_it_has_the_figures_and_loads_nothing(tmp_path: Path):
    written = write_page(RESULTS, tmp_path)
    text = written.read_text(encoding="utf-8")
    assert text == page(RESULTS) and loaded(text) == []
    for part in (
        "1.60 times as fast",
        "40.0 ms",
        "25.0 ms",
        "width:62.5%",
        "25 of 60 modules",
        "2.0e-06",
        "GatedMLP",
        "1.30",
    ):
        assert part in text


def test_texts_are_escaped():
    text = page(RESULTS)
    assert "<script" not in text and "&lt;script&gt;" in text and "MiniLM &lt;b&gt;" in text


def test_without_published_layers_there_is_no_table_of_them():
    assert "published" not in page({**RESULTS, "published": []})
