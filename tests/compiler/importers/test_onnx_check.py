"""`kernels-hub onnx check FILE`, through the sub-command itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from kernels_hub.cli.onnx import onnx as command
from kernels_hub.compiler.errors import ImportFailure


def saved(tmp_path: Path, body: str) -> str:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {body}'), path)
    return str(path)


def test_all_is_well(tmp_path: Path):
    path = saved(tmp_path, "g (float[n] x) => (float[n] y) { y = Abs(x) }")
    result = CliRunner().invoke(command, ["check", path])
    assert (result.exit_code, result.stdout) == (0, f"{path}: every node can be imported\n")
    result = CliRunner().invoke(command, ["check", path, "--json"])
    assert (result.exit_code, json.loads(result.stdout)) == (
        0,
        {"file": path, "importable": True, "remedy": None, "unsupported": []},
    )


def test_the_table(tmp_path: Path):
    path = saved(tmp_path, "g (float[2] x) => (float[2] z) { y = Magic(x) \n z = Wand(y) }")
    result = CliRunner().invoke(command, ["check", path])
    assert result.exit_code == 1
    header, first, second = result.stdout.splitlines()
    assert header.split() == ["NODE", "OP", "OPSET", "INPUTS", "REASON"]
    assert first.split()[:6] == ["->", "y", "Magic", "18", "float32[2]", "no"]
    assert second.split()[:6] == ["->", "z", "Wand", "18", "?", "no"]
    result = CliRunner().invoke(command, ["check", path, "--json"])
    found = json.loads(result.stdout)["unsupported"]
    assert [(one["op"], one["opset"], one["inputs"]) for one in found] == [
        ("Magic", 18, ["float32[2]"]),
        ("Wand", 18, ["?"]),
    ]


def test_a_loop_that_can_be_imported_in_no_way_says_why(tmp_path: Path):
    body = """g (float[n] x) => (y) <int64[1] zero = {0}> {
        sizes = Shape(x)
        first = Constant<value = int64 {0}>()
        trips = Gather(sizes, first)
        goes_on = Constant<value = bool {1}>()
        y = Loop<body = b (int64 i, bool c) => (bool d, float r) {
            d = Identity(c)
            from = Unsqueeze(i, zero)
            piece = Slice(x, from, sizes)
            r = ReduceSum<keepdims = 0>(piece)
        }>(trips, goes_on)
    }"""
    result = CliRunner().invoke(command, ["check", saved(tmp_path, body)])
    assert result.exit_code == 1
    row = result.stdout.splitlines()[1]
    assert "Loop" in row.split()
    assert "Slice" in row
    assert row.endswith("the starts must be known when the model is imported; it changes from trip to trip")


def test_a_file_laid_out_for_another_processor_says_what_to_do(tmp_path: Path):
    """Four output channels are no whole block on any."""
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], domain="com.microsoft.nchwc")
    infos = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4, 4, 4]) for name in "xy"]
    weight = onnx.numpy_helper.from_array(np.ones((4, 4, 1, 1), np.float32), "w")
    graph = onnx.helper.make_graph([node], "g", infos[:1], infos[1:], [weight])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft.nchwc", 1)]
    path = tmp_path / "laid.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets), path)
    result = CliRunner().invoke(command, ["check", str(path)])
    assert result.exit_code == 1
    assert "save it with the graph optimization level ORT_ENABLE_EXTENDED" in result.stdout


def test_axes_bound_on_the_command_line(tmp_path: Path):
    path = saved(tmp_path, "g (float[n] x, float[3] b) => (float[3] y) { y = Add(x, b) }")
    assert CliRunner().invoke(command, ["check", path]).exit_code == 1
    assert CliRunner().invoke(command, ["check", path, "--dim", "n=3"]).exit_code == 0
    result = CliRunner().invoke(command, ["check", path, "--dim", "n"])
    assert result.exit_code == 2
    assert "expected NAME=SIZE, got 'n'" in result.output


def test_bad_files(tmp_path: Path):
    assert CliRunner().invoke(command, ["check", str(tmp_path / "none.onnx")]).exit_code == 2
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    result = CliRunner().invoke(command, ["check", str(tmp_path / "bad.onnx")])
    assert isinstance(result.exception, ImportFailure)
    with pytest.raises(ImportFailure, match="no ONNX model"):
        raise result.exception
