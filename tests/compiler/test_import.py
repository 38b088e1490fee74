"""The compiler is cheap to import and needs no framework."""

from __future__ import annotations

import subprocess
import sys

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


@pytest.mark.parametrize("name", compiler.__all__)
def test_public_names(name):
    assert getattr(compiler, name).__doc__
    assert name in dir(compiler)


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        compiler.nothing
