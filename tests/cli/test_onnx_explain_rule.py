"""`kernels-hub onnx explain-rule`: where a rule fires, the nearest miss, the list, and bad input."""

from __future__ import annotations

import json

import onnx
import pytest

from kernels_hub.compiler.rewrite.explain import rule_passes

GELU = """
    root = Constant <value_float = 1.4142135> ()
    one = Constant <value_float = 1.0> ()
    half = Constant <value_float = 0.5> ()
    scaled = Div (x, root)
    erf = Erf (scaled)
    shifted = Add (erf, one)
    product = Mul (x, shifted)
    y = Mul (product, half)
"""


@pytest.fixture
def model(tmp_path):
    """model(body) -> the path of a model from float[n, 4] x to y, whose nodes are called after their results."""

    def model(body):
        text = f'<ir_version: 10, opset_import: ["" : 18]> g (float[n, 4] x) => (float[n, 4] y) {{ {body} }}'
        parsed = onnx.parser.parse_model(text)
        for node in parsed.graph.node:
            node.name = f"make_{node.output[0]}"
        path = tmp_path / "m.onnx"
        onnx.save(parsed, path)
        return path

    return model


def test_where_a_rule_fires(run, model):
    result = run("onnx", "explain-rule", model(GELU), "gelu")
    header, count, _, row = result.out.splitlines()
    assert (result.code, count) == (0, "fires at 1 place:")
    assert header.startswith("gelu (pass recognise, exact)")
    assert row.split() == ["make_y", "mul", "float32[n,", "4]"]


def test_the_nearest_miss_names_the_node_and_the_reason(run, model):
    path = model(GELU.replace("value_float = 0.5", "value_float = 0.25"))
    result = run("onnx", "explain-rule", path, "gelu")
    assert result.code == 0 and "fires" not in result.out
    assert "no match; nearest is the mul from make_y, float32[n, 4]" in result.out
    assert "is 0.25, not 0.5" in result.out
    found = json.loads(run("onnx", "explain-rule", path, "gelu", "--json").out)
    assert found["matches"] == [] and found["rule"] == "gelu" and found["pass"] == "recognise"
    nearest = found["nearest"]
    assert (nearest["op"], nearest["origin"]) == ("mul", "make_y")
    assert nearest["matched"] >= 1 and "0.25" in nearest["reason"]


def test_a_rule_is_tried_after_those_before_it_or_raw(run, model):
    path = model("a = Neg (x) \n b = Neg (a) \n y = Max (x, b)")
    found = json.loads(run("onnx", "explain-rule", path, "idempotent", "--json").out)
    assert [one["origin"] for one in found["matches"]] == ["make_y"] and found["nearest"] is None
    found = json.loads(run("onnx", "explain-rule", path, "idempotent", "--json", "--raw").out)
    assert found["raw"] and found["matches"] == [] and "x is %0" in found["nearest"]["reason"]
    assert "matches at 1 place:" in run("onnx", "explain-rule", path, "inverse_twice", "--raw").out


def test_nothing_like_it(run, model):
    result = run("onnx", "explain-rule", model("y = Abs (x)"), "rotary")
    assert result.out.splitlines()[1:] == ["no match: no value has the op that the pattern begins with"]


def test_dims_are_bound(run, model):
    path = model("y = Neg (x)")
    found = json.loads(run("onnx", "explain-rule", path, "abs_of_neg", "--dim", "n=3", "--json").out)
    assert found["nearest"] == {"matched": 0, "reason": "no value has the op that the pattern begins with"}
    found = json.loads(run("onnx", "explain-rule", path, "inverse_twice", "--dim", "n=3", "--json").out)
    assert found["nearest"]["type"] == "float32[3, 4]"


def test_all_rules(run, model):
    listed = run("onnx", "explain-rule", "--list")
    assert listed.out == run("onnx", "explain-rule").out
    rows = listed.out.splitlines()
    assert rows[0].split() == ["RULE", "PASS", "NUMBERS", "WHAT", "IT", "DOES"]
    assert [row.split()[0] for row in rows[1:]] == list(rule_passes())
    rules = json.loads(run("onnx", "explain-rule", "--list", "--json").out)["rules"]
    assert {"rule": "square", "pass": "simplify", "exact": False, "doc": "x ** 2 -> x * x"} in rules
    fired = json.loads(run("onnx", "explain-rule", model(GELU), "--json").out)["rules"]
    assert {one["rule"] for one in fired if one["fired"]} >= {"gelu"}
    assert "FIRED" in run("onnx", "explain-rule", model(GELU)).out.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gelu_tan"], "there is no rule 'gelu_tan'; near it: gelu_tanh"),
        (["@@"], "there is no rule '@@'; --list shows all"),
        (["gelu", "--dim", "n"], "expected NAME=SIZE, got 'n'"),
        (["gelu", "--list"], "--list takes neither RULE nor --raw"),
    ],
)
def test_bad_arguments(run, model, arguments, message):
    result = run("onnx", "explain-rule", model("y = Abs (x)"), *arguments)
    assert result.code == 2 and message in result.err


def test_a_missing_file(run, tmp_path):
    result = run("onnx", "explain-rule", tmp_path / "none.onnx", "gelu")
    assert result.code == 2 and "there is no file" in result.err
