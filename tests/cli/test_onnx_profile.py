"""`kernels-hub onnx profile`, and `kernels-hub view` of a model that cannot be imported."""

from __future__ import annotations

import json

import onnx
import pytest


def written(path, body: str, *, opsets: str = '"" : 18'):
    text = f"<ir_version: 10, opset_import: [{opsets}]> g (float[n, 4] x) => (float[n, 4] y) {{ {body} }}"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


@pytest.fixture
def library(monkeypatch):
    """Nothing is compiled."""
    monkeypatch.setenv("KERNELS_HUB_CXX", "none")


@pytest.mark.usefixtures("library")
def test_steps_have_shapes_shares_and_a_trace(run, tmp_path):
    path = written(
        tmp_path / "m.onnx", "s = MatMul (x, x) y = Tanh (s)".replace("MatMul (x, x)", "Mul (x, x)")
    )
    result = run("onnx", "profile", path, "--dim", "n=8", "--repeats", "2", "--trace", tmp_path / "t.json")
    assert result.code == 0
    head, columns, *rows = result.out.splitlines()
    assert "ms a call; x [8, 4]" in head
    assert columns.split() == ["STEP", "ENGINE", "SHAPES", "US", "TIME", "ROOF"]
    assert any("8x4" in row for row in rows)
    assert "below half of their roof" in result.out
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    found = json.loads(run("onnx", "profile", path, "--dim", "n=8", "--repeats", "2", "--json").out)
    assert len(found["steps"]) == sum(one["ph"] == "X" for one in events)
    assert sum(step["share of time"] for step in found["steps"]) == pytest.approx(1)


def test_a_model_that_cannot_be_imported_is_drawn_with_what_stops_it(run, tmp_path):
    path = written(tmp_path / "m.onnx", "s = Abs (x) y = house.Odd (s)", opsets='"" : 18, "house" : 1')
    for form in ("html", "svg", "dot"):
        page = tmp_path / f"m.{form}"
        result = run("view", path, "-o", page)
        assert result.code == 0
        assert "2 ONNX nodes, 1 of which cannot be imported" in result.out
        text = page.read_text(encoding="utf-8")
        assert "house::Odd" in text
        assert ("⚠" in text) or ("\\u26a0" in text)
