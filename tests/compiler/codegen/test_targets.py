"""Targets of code generation: packages behind one record, with spellings of their own beside those of rows."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from kernels_hub.compiler import Graph
from kernels_hub.compiler.codegen import targets
from kernels_hub.compiler.codegen.target import Spellings
from kernels_hub.compiler.codegen.targets import TARGETS
from kernels_hub.compiler.ir import ops
from kernels_hub.compiler.ir.op import Trait, spelled
from kernels_hub.compiler.ir.ops import OPS
from kernels_hub.compiler.ir.ops.pointwise import pointwise
from kernels_hub.compiler.ir.types import FLOAT32
from kernels_hub.compiler.schedule.index import Loop, Ranges
from kernels_hub.compiler.schedule.schedule import schedule

FOLDER = Path(targets.__file__).parent


def test_every_package_is_a_target():
    packages = {one.parent.name for one in FOLDER.glob("*/target.py")}
    assert packages == set(TARGETS)
    assert all(one.name == name == one.spellings.target for name, one in TARGETS.items())


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_makes_text_of_a_schedule(name):
    graph = Graph("g")
    x, w = graph.input("x", ("n", 16), "float32"), graph.input("w", (16, 16), "float32")
    graph.output("y", (x @ w).unary("tan").mean(-1))
    program = TARGETS[name].generate(schedule(graph))
    assert program.sizes == ("n",)
    assert len(program.steps) >= 1
    assert TARGETS[name].spellings.of(OPS["tan"], "float").format("")[:-2] in program.source
    assert {one.name for one in program.buffers} >= {"input0", "input1", "output0"}


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_spells_scalars(name):
    i = Loop("$i", 8)
    scalars = TARGETS[name].scalars(Ranges((i,)))
    assert scalars.index(i.index * 4 + 1).replace("i_", "i") == "i * 4 + 1"
    assert "0.5" in scalars.literal(np.float32(0.5), FLOAT32)


def test_every_function_of_floats_has_a_spelling_everywhere():
    for row in OPS.values():
        if Trait.POINTWISE in row.traits and row.arity == 1 and row.torch:
            for target in TARGETS.values():
                assert target.spellings.of(row, "float"), f"{row.name} in {target.name}"


def test_a_table_of_its_own_goes_before_the_row_and_the_dialect_after_it():
    row = pointwise(
        "f", "f", np.sin, ("float", "int"), spellings=spelled(cpp="std::f({0})", toy={"int": "toy_f({0})"})
    )
    plain = pointwise("g", "g", np.add, ("float",), arity=2, spellings=spelled(cpp="{0} + {1}"))
    toy = Spellings("toy", {}, dialect_of="cpp", library="std::")
    assert (toy.of(row, "int"), toy.of(row, "float"), toy.of(plain, "float")) == (
        "toy_f({0})",
        None,
        "{0} + {1}",
    )
    whole = Spellings("whole", {}, dialect_of="cpp")
    assert (whole.of(row, "float"), whole.of(plain, "float")) == ("std::f({0})", "{0} + {1}")
    toy.own["f"] = {"float": "own_f({0})"}
    assert (toy.of(row, "int"), toy.of(row, "float")) == ("toy_f({0})", "own_f({0})")


def test_the_op_table_names_no_framework():
    """PyTorch's overloads and the targets' spellings are names there."""
    for path in Path(ops.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {one.partition(".")[0] for one in names} & {"torch", "triton", "onnx"}, path
