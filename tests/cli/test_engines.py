"""`kernels-hub engines`: the list with failures, each engine's answer for a file, bad input."""

from __future__ import annotations

import json

import onnx
import pytest
from typer.testing import CliRunner

from kernels_hub.cli.engines import engines
from kernels_hub.compiler.engines import registry
from kernels_hub.compiler.engines.engine import engine_id

PLUGIN = """
class Picky:
    name = "picky"
    def check(self, graph, device):
        raise KeyError("no table")
    def compile(self, graph, device, knobs): ...
    def load(self, payload, device): ...
ENGINE = Picky()
"""


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    monkeypatch.delenv(registry.PATH_VARIABLE, raising=False)
    yield
    registry.set_plugin_paths([])


@pytest.fixture
def plugins(tmp_path):
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "picky.py").write_text(PLUGIN)
    (folder / "broken.py").write_text("raise RuntimeError('out of luck')")
    return folder


@pytest.fixture
def model(tmp_path):
    text = '<ir_version: 10, opset_import: ["" : 18]> g (float[n, 4] x) => (float[n, 4] y) { y = Tanh (x) }'
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def run(*arguments):
    return CliRunner().invoke(engines, [str(one) for one in arguments])


def test_list(plugins):
    result = run("list", "--plugin", plugins)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    reference = next(line for line in lines if line.split()[0] == "reference")
    assert reference.split()[1:] == [f"{engine_id('reference'):+d}", "cpu", "bundled", "reference"]
    picky = next(line for line in lines if line.split()[0] == "picky")
    assert "none here" in picky and str(plugins / "picky.py") in picky
    assert any("broken.py" in line and "RuntimeError: out of luck" in line for line in lines)


def test_list_as_json(plugins):
    document = json.loads(run("list", "--plugin", plugins, "--json").output)
    rows = {row["name"]: row for row in document["engines"]}
    assert rows["library"]["id"] == engine_id("library") and "cpu" in rows["library"]["devices"]
    assert {"source": str(plugins / "broken.py"), "reason": "RuntimeError: out of luck"} in document[
        "failures"
    ]


def test_check(model, plugins):
    result = run("check", model, "--plugin", plugins)
    assert result.exit_code == 0
    answers = {line.split()[0]: line for line in result.output.splitlines()[2:]}
    assert " yes" in answers["library"] and " yes" in answers["reference"]
    assert "threw at check: KeyError: 'no table'" in answers["picky"]


def test_check_as_json_on_another_device(model):
    result = run("check", model, "--device", "npu:1", "--dim", "n=3", "--json")
    assert result.exit_code == 1
    document = json.loads(result.output)
    assert document["device"] == "npu:1" and document["nodes"] == 2
    reasons = {row["engine"]: row["reason"] for row in document["engines"] if not row["takes"]}
    assert "runs on the CPU, not on npu:1" in reasons["reference"]


def test_bad_input(model, tmp_path):
    assert "there is no file" in run("check", tmp_path / "none.onnx").output
    assert "expected a device" in run("check", model, "--device", "cpu:x").output
    assert run("check", model, "--device", "cpu:x").exit_code == 2
