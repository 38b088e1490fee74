"""The demo's ONNX file: exported, imported, rewritten, drawn, and its figures true; of MiniLM, and of one as small."""

from __future__ import annotations

import io
import sys
from dataclasses import asdict, replace

import onnx
import pytest
from rich.console import Console

from kernels_hub.cli import demo, demo_models, demo_onnx


@pytest.fixture(scope="module")
def example():
    model, inputs = demo_models.bert(batch=2, length=12, layers=2, hidden=64)
    inputs["attention_mask"][1, 7:] = 0
    return model, inputs


def run(folder, example):
    """The figures, and what was printed."""
    console = Console(file=io.StringIO(), width=200)
    return demo_onnx.onnx_before_and_after(console, folder, example), console.file.getvalue()


def test_the_file_before_and_after(tmp_path, example, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # what `make demo` installs has none
    figures, printed = run(tmp_path, example)
    onnx.checker.check_model(tmp_path / "minilm.onnx")
    kinds = [node.op_type for node in onnx.load(tmp_path / "minilm.onnx").graph.node]
    assert figures.file_operations == len(kinds) - kinds.count("Constant") > 100
    assert figures.recognised == {"layer_norm": 5, "attention": 2, "gelu": 2}
    assert figures.after < 0.6 * figures.before
    assert 0 < figures.rewriting_error < 2e-6 and 0 < figures.torch_error < 1e-5 < figures.max_magnitude
    assert not example[0].training
    page = (tmp_path / "minilm.html").read_text(encoding="utf-8")
    assert figures.page == str(tmp_path / "minilm.html") and page.startswith("<!doctype html>")
    for part in ("layer_norm", "gelu", "last_hidden_state"):
        assert part in page
    for said in (
        "layer_norm_weight",
        "5 layer_norm, 2 attention, 2 gelu",
        f"{figures.after} rewritten",
        "minilm.html",
    ):
        assert said in printed


def test_figures_show_a_graph_that_computes_something_else(tmp_path, example, monkeypatch):
    from kernels_hub.compiler.rewrite import pipeline

    def wrong(graph):
        """Rewritten, and twice what it was."""
        from kernels_hub.compiler import rebuild

        new = rebuild(graph).graph
        ((name, value),) = new.outputs.items()
        del new.outputs[name]
        new.output(name, value * 2.0)
        return pipeline.Rewritten(new, {})

    monkeypatch.setattr(pipeline, "rewrite", wrong)
    figures, printed = run(tmp_path, example)
    assert figures.rewriting_error == pytest.approx(figures.max_magnitude, rel=1e-4)
    assert figures.torch_error == pytest.approx(figures.max_magnitude, rel=1e-4)
    assert figures.recognised == {} and "recognised: nothing" in printed


def test_minilm_with_its_weights(tmp_path):
    figures, printed = run(tmp_path, None)
    assert figures.recognised == {"layer_norm": 13, "attention": 6, "gelu": 6}
    assert figures.after < 0.55 * figures.before and figures.after < 0.55 * figures.file_operations
    assert figures.rewriting_error < 5e-6 and figures.torch_error < 1e-5 < 1 < figures.max_magnitude
    assert "13 layer_norm, 6 attention, 6 gelu" in printed


FIGURES = demo_onnx.OnnxFigures("", 9, 8, 4, {"gelu": 1}, 0.1, 0.2, 1e-7, 1e-6, 3.0)


def fake(console, folder):
    (folder / "minilm.onnx").write_bytes(b"model")
    (folder / "minilm.html").write_text("page")
    return replace(FIGURES, page=str(folder / "minilm.html"))


def test_a_folder_that_is_named_keeps_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_onnx, "onnx_before_and_after", fake)
    assert demo._onnx(None, tmp_path / "new" / "folder").page == str(
        tmp_path / "new" / "folder" / "minilm.html"
    )
    assert sorted(one.name for one in (tmp_path / "new" / "folder").iterdir()) == [
        "minilm.html",
        "minilm.onnx",
    ]


def test_without_one_the_page_alone_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_onnx, "onnx_before_and_after", fake)
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    for _ in range(2):  # the second takes the place of the first
        page = demo._onnx(None, None).page
        (folder,) = tmp_path.iterdir()
        assert page == str(folder / "minilm.html") and [one.name for one in folder.iterdir()] == [
            "minilm.html"
        ]


def test_figures_are_plain_data():
    assert FIGURES.as_json() == asdict(FIGURES)
