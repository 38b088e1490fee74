"""The compiler is cheap to import and needs no framework."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from kernels_hub import compiler

HEAVY = ("torch", "triton", "onnx", "numpy", "sympy")


def modules_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_compiler_loads_nothing_heavy():
    assert not modules_after("import kernels_hub.compiler") & set(HEAVY)


def test_the_oracle_needs_numpy_alone():
    statement = """
from kernels_hub.compiler import *
import numpy as np
g = Graph("g"); x = g.input("x", ("n", 3)); g.output("y", (x @ x.transpose()).softmax())
assert evaluate(verify(parse_graph(print_graph(g))), [np.ones((2, 3), np.float32)], debug=True)["y"].shape == (2, 2)
"""
    assert not modules_after(statement) & {"torch", "triton", "onnx", "sympy", "ml_dtypes"}


def test_opening_a_file_loads_nothing_that_it_does_without(tmp_path, monkeypatch):
    """Modules that only plans in files, reports, and models of some sizes need: 4 ms of processor time together."""
    onnx = pytest.importorskip("onnx", reason="needs onnx")
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path / "cache"))
    text = '<ir_version: 10, opset_import: ["": 18]> g (float[n] x) => (float[n] y) { y = Neg(x) }'
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    known = modules_after(f"from kernels_hub.compiler import compile\nrun = compile({str(path)!r}, 'cpu')")
    assert "kernels_hub.compiler.engines.library" in known
    unused = {"ir.report", "ir.parser", "engines.payload", "specialised", "importers.onnx_variants"}
    assert not known & {f"kernels_hub.compiler.{name}" for name in unused}


NAMES = """
    CompilerError OnnxImportError
    DType Differentiated Evaluation Graph Node Value
    bind differentiate dummy_weights evaluate explain_rule extract import_torch parse_graph print_graph rebuild rewrite symbol
    to_dot to_html to_svg verify
    Decline Device Note Outcome Support set_plugin_paths
""".split()
LOAD_MORE = """
    Candidate Executable Filter Plan Profile Rates check_onnx check_support compile create_plans
    emit_layer import_onnx load_executable
""".split()


@pytest.mark.parametrize("name", NAMES + LOAD_MORE)
def test_public_names(name: str):
    assert getattr(compiler, name).__doc__
    assert callable(getattr(compiler, name))
    assert name in dir(compiler)


def test_the_names_are_these():
    assert sorted(compiler._PUBLIC) == sorted(NAMES + LOAD_MORE)
    assert compiler.__all__ == sorted(NAMES)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(compiler.__file__).read_text(encoding="utf-8"))
    block = next(one for one in tree.body if isinstance(one, ast.If))
    seen = {alias.asname for one in block.body if isinstance(one, ast.ImportFrom) for alias in one.names}
    assert seen == {*NAMES, *LOAD_MORE}


@pytest.mark.parametrize(
    "first",
    [
        "pass",
        "import kernels_hub.compiler.rewrite.pipeline",
        "from kernels_hub.compiler.rewrite import views",
    ],
)
def test_rewrite_is_a_package_that_can_be_called_whatever_is_imported_first(first: str):
    statement = f"""
{first}
import kernels_hub.compiler
from kernels_hub.compiler import Graph, rewrite
import kernels_hub.compiler.rewrite.pipeline as pipeline
graph = Graph()
x = graph.input("x", (3,))
graph.output("y", x + 0.0 * 1.0)
assert rewrite(graph).graph.name == kernels_hub.compiler.rewrite(graph).graph.name == "graph"
assert rewrite.pipeline is pipeline
"""
    assert not modules_after(statement) & {"torch", "triton", "onnx"}


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        compiler.nothing
