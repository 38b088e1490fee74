"""The demo's end without a C++ compiler, and its table; all of it runs as examples/publish_compiled_layers.py."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from kernels_hub.cli.demo_published import Layer, Used, compiled_published_and_used, table


def test_without_a_compiler_it_says_so_and_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERNELS_HUB_CXX", "none")
    printed = io.StringIO()
    assert compiled_published_and_used(Console(file=printed, width=100), tmp_path) == []
    assert printed.getvalue() == "a C++ compiler is not here: no layer is compiled and published\n"
    assert not any(tmp_path.iterdir())


def test_the_table():
    used = [Used("A", "acme/a@1.0.0", 2, 0.5, 1e-7, 1.25), Used("B", "acme/b@1.0.0", 1, 1.0, 2e-7, 0.9)]
    assert table(used, {"A": 3e-7}) == [
        ("layer", "published", "error", "first output", "times eager", "HF's client"),
        ("A", "acme/a@1.0.0", "1e-07", "0.50 s", "1.25", "3e-07"),
        ("B", "acme/b@1.0.0", "2e-07", "1.00 s", "0.90", "-"),
    ]


def test_where_a_layer_is_published():
    assert Layer("LlamaMLP", "/somewhere/llama-mlp", "llama").repository == "acme/llama-mlp"
