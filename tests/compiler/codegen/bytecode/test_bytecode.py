"""Schedules as bytecode, interpreted with poisoned memory, against the oracle and against generated C++."""

from __future__ import annotations

import contextlib
import re
import shutil

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.codegen.bytecode import anchors, instruction
from kernels_hub.compiler.codegen.bytecode.chains import _BINARY, _UNARY
from kernels_hub.compiler.codegen.bytecode.nests import REDUCTIONS
from kernels_hub.compiler.codegen.bytecode.operations import header
from kernels_hub.compiler.codegen.bytecode.program import generate
from kernels_hub.compiler.engines.bytecode_library import INTERPRETER
from kernels_hub.compiler.errors import EngineError, EvaluateError
from kernels_hub.compiler.ir.dims import symbol
from kernels_hub.compiler.runtime.toolchain import RUNTIME
from kernels_hub.compiler.schedule.expand import expanded
from kernels_hub.compiler.schedule.inlining import unsupported
from kernels_hub.compiler.schedule.schedule import schedule
from tests.compiler.codegen.cpp_runner import run_schedule, weights_of
from tests.compiler.codegen.test_cpp_random import reductions
from tests.compiler.oracle import array, assert_same
from tests.compiler.strategies import OTHER_SIZES, SIZES, assert_same_outputs, graphs
from tests.fuzz.harness import budget

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def check(graph: Graph, sizes: dict[str, int], tolerance: float = 1e-4, seed: int = 0) -> None:
    """What the interpreter computes is what the oracle does."""
    inputs = graph.dummy_inputs(seed, sizes)
    expected = evaluate(graph, inputs, bindings=sizes)
    made = schedule(graph)
    got = run_schedule(made, inputs, weights_of(graph, made), sizes, interpreted=True)
    assert_same_outputs({name: got[name] for name in expected}, expected, tolerance)


# -- tables that two languages share


def test_the_operations_are_those_of_the_op_table():
    text = (INTERPRETER / "bytecode_operations.h").read_text()
    assert text == header(), "write header() into compiler/interpreter/bytecode_operations.h"


def _enumerators(file: str, name: str) -> list[str]:
    """Of an enum in the interpreter's C++, as its spellings in Python."""
    text = (INTERPRETER / file).read_text()
    (body,) = re.findall(rf"enum class {name} : \w+ {{([^}}]*)}};", text)
    return [one.strip().removeprefix("k") for one in body.split(",")]


def test_codes_are_the_same_in_both_languages():
    text = (INTERPRETER / "bytecode.cpp").read_text()
    (listed,) = re.findall(r"kInstructions\[\] = {([^}]*)};", text)
    assert [one.strip() for one in listed.split(",")] == [op.name.lower() for op in instruction.Op]
    kinds = [one.upper() for one in _enumerators("bytecode.h", "RegisterKind")]
    assert kinds == [kind.name for kind in instruction.RegisterKind]
    assert [one.lower() for one in _enumerators("bytecode_compute.h", "Reduction")] == list(REDUCTIONS)
    short = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u"}
    names = [re.sub(r"^[a-z]+(?=\d)", lambda one: short[one[0]], name) for name in instruction.ELEMENTS]
    assert [one.lower() for one in _enumerators("bytecode.h", "Element")] == names
    (forms,) = re.findall(r"enum class FourierForm {([^}]*)};", (RUNTIME / "linked_fourier.h").read_text())
    assert [one.strip().removeprefix("k").lower() for one in forms.split(",")] == list(anchors._FORMS)
    links = _enumerators("bytecode_chain.h", "Link")
    for name, (first, second) in _BINARY.items():
        wanted = {"maximum": ("Max", "MaxOf"), "minimum": ("Min", "MinOf")}.get(name)
        plain = name.capitalize()
        turned = plain if first == second else f"{plain}From"
        assert (links[first], links[second]) == (wanted or (plain, turned))
    assert {name: links[code].lower() for name, code in _UNARY.items()} == {name: name for name in _UNARY}
    for name in ("kMostRows", "kMostElements"):
        (found,) = re.findall(rf"{name} = (\d+)", (INTERPRETER / "bytecode.h").read_text())
        assert (
            int(found)
            == {"kMostRows": instruction.MOST_ROWS, "kMostElements": instruction.MOST_ELEMENTS}[name]
        )


# -- numbers


@needs_compiler
@settings(max_examples=budget(40, 400), suppress_health_check=list(HealthCheck), deadline=None)
@given(graph=graphs(dtypes=("float32", "float64", "int32", "int64", "int8", "bool")))
def test_the_interpreter_computes_what_the_oracle_does(graph):
    if unsupported(expanded(graph)):
        return
    with contextlib.suppress(EngineError):  # sorts, running sums, scattered writes
        generate(schedule(graph))
        for sizes in (SIZES, OTHER_SIZES):
            check(graph, sizes)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int8", "int64", "bool"])
def test_reductions(dtype):
    """Every kind, along each axis and all, with NaN and ties among floats."""
    graph = reductions(dtype)
    x = array(5, 37, 83, dtype=dtype)
    if "float" in dtype:
        x = np.abs(x) ** np.float32(0.25) if dtype == "float32" else x
        x[3, 5, 7] = x[3, 5, 9] = x.max()
        x[1, 2, 3] = np.nan
    expected = evaluate(graph, {"x": x})
    got = run_schedule(schedule(graph), {"x": x}, sizes={"n": 5}, interpreted=True)
    for name, want in expected.items():
        assert_same(got[name], want)


@needs_compiler
@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("shape", [(3, 40), (40, 3), (2000, 2), (2, 5000)])
def test_infinities_alone_are_extrema(kind, shape):
    graph = Graph("extrema")
    x = graph.input("x", shape)
    for axis in range(2):
        graph.output(f"y{axis}", x.reduce(kind, [axis]))
    given = np.full(shape, -np.inf if kind == "max" else np.inf, np.float32)
    got = run_schedule(schedule(graph), {"x": given}, interpreted=True)
    assert all((got[f"y{axis}"] == given.flat[0]).all() for axis in range(2))


SHAPES = [(1, 1), (1, 7), (3, 16), (129, 5), (130, 64), (2, 2049), (7, 4097), (0, 5), (5, 0)]


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_chains_and_tiles_of_any_size(dtype):
    """Ends of tiles and of vectors, rows that are repeated, numbers that change from row to row, a sum of each."""
    n, m = symbol("n"), symbol("m")
    graph = Graph("chain")
    x, row, column = (
        graph.input(name, shape, dtype) for name, shape in (("x", (n, m)), ("row", (m,)), ("column", (n, 1)))
    )
    y = (x * row.reshape(1, m).broadcast_to((n, m)) + column.broadcast_to((n, m))).unary("tanh")
    y = (1.0 - y.apply("maximum", y, x)) / (y * y + 2.0)
    graph.output("y", y)
    graph.output("sums", y.reduce("sum", [1]))
    graph.output("back", -y.permute(1, 0))
    made = schedule(graph)
    for rows, columns in SHAPES:
        sizes = {"n": rows, "m": columns}
        inputs = {
            "x": array(rows, columns, dtype=dtype), "row": array(columns, dtype=dtype, seed=1),
            "column": array(rows, 1, dtype=dtype, seed=2),
        }  # fmt: skip
        expected = evaluate(graph, inputs, bindings=sizes)
        got = run_schedule(made, inputs, {}, sizes, interpreted=True)
        bound = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 4e-2, "float16": 5e-3}[dtype]
        assert_same_outputs({name: got[name] for name in expected}, expected, bound)


@needs_compiler
def test_rows_of_few_columns():
    """Taken in by vectors, several at once: NaN and infinities, zeros of either sign, a number of its own for each row."""
    n, m = symbol("n"), symbol("m")
    graph = Graph("rows")
    x, column = graph.input("x", (n, m)), graph.input("column", (n, 1))
    wide = column.broadcast_to((n, m))
    graph.output("quotients", (x - wide) / wide)
    for kind in ("sum", "max", "min"):
        graph.output(kind, x.reduce(kind, [1]))
    made = schedule(graph)
    for rows in (1, 7, 8, 16, 37):
        for columns in (1, 2, 7, 15, 16, 17, 48, 49, 63, 64, 100, 127, 128, 129):
            sizes = {"n": rows, "m": columns}
            given = array(rows, columns)
            if rows > 6:
                for row, extreme in enumerate((np.nan, np.inf, -np.inf)):
                    given[row, (row * 5) % columns] = given[row + 3, -1] = extreme
            numbers = array(rows, 1, seed=1)
            numbers[::3] = np.resize(np.array([0.0, -0.0], np.float32), (len(numbers[::3]), 1))
            with np.errstate(divide="ignore", invalid="ignore"):
                expected = evaluate(graph, {"x": given, "column": numbers}, bindings=sizes)
            got = run_schedule(made, {"x": given, "column": numbers}, {}, sizes, interpreted=True)
            for name in ("quotients", "max", "min"):
                np.testing.assert_array_equal(got[name], expected[name], f"{name} of {rows} x {columns}")
            np.testing.assert_allclose(got["sum"], expected["sum"], 1e-5, 1e-5)


@needs_compiler
@pytest.mark.parametrize("channels", [(3, 16), (16, 24), (24, 24)])
@pytest.mark.parametrize("groups", [1, 3])
def test_small_tiles_of_convolutions_wait_for_more(channels, groups):
    given, made = channels
    groups = groups if given % groups == made % groups == 0 else 1
    graph = Graph("conv")
    x = graph.input("x", ("b", given, 13, 11))
    w = graph.parameter("w", (made, given // groups, 3, 3), data=array(made, given // groups, 3, 3) / 5)
    bias = graph.parameter("bias", (made,), data=array(made, seed=1))
    attrs = {"strides": (1, 1), "dilations": (1, 1), "padding": ((1, 1), (1, 1)), "groups": groups}
    y = graph.add("conv", [x, w], attrs).results[0]
    y = y + bias.reshape(1, made, 1, 1).broadcast_to(y.shape)
    graph.output("y", y.apply("maximum", y, (y * 0.1)))
    for batch in (1, 5):
        check(graph, {"b": batch})


@needs_compiler
def test_what_is_read_from_beside_is_bounded():
    graph = Graph("pick")
    x, at = graph.input("x", (6, 40)), graph.input("at", (9,), "int64")
    graph.output("y", x.apply("gather", x, at, axis=0) * 2.0)
    made = schedule(graph)
    values = array(6, 40)
    for places in (np.array([0, 5, -1, -6, 3, 3, 2, 1, 0]), np.zeros(9, int)):
        got = run_schedule(made, {"x": values, "at": places}, interpreted=True)
        assert np.array_equal(got["y"], values[places] * 2)
    for bad in (6, -7):
        with pytest.raises(EvaluateError, match="out of range"):
            run_schedule(made, {"x": values, "at": np.array([0, 1, 2, bad, 0, 0, 0, 0, 0])}, interpreted=True)


@needs_compiler
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float", "blank"])
@pytest.mark.parametrize("keys", [7, 2100])
def test_attention(mask, keys):
    """With rows that see nothing, more keys than a tile has, and a result that is added to something."""
    import kernels_hub.compiler as kc

    class Attends(torch.nn.Module):
        def forward(self, q, k, v, m):
            given = None if mask in {"none", "causal"} else m
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, given, is_causal=mask == "causal")
            return y * 2 + q[..., :1]

    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 5, 16), torch.randn(2, 3, keys, 16), torch.randn(2, 3, keys, 16)
    seen = torch.rand(2, 1, 5, keys) > 0.3
    if mask == "blank":
        seen[0, 0, 2] = False
    given = torch.randn(2, 1, 5, keys) if mask == "float" else seen
    module = Attends().eval()
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setenv("KERNELS_HUB_BYTECODE", "build")
        run = kc.compile((module, (q, k, v, given)), "cpu", engines=("bytecode",))
        torch.testing.assert_close(run(q, k, v, given), module(q, k, v, given), equal_nan=True)


@needs_compiler
def test_threads_give_the_same(monkeypatch):
    """Of a product, a convolution and a reduction with enough to do for several."""
    graph = Graph("threads")
    x = graph.input("x", (300, 256))
    w = graph.parameter("w", (256, 320), data=array(256, 320))
    y = x.apply("matmul", x, w)
    graph.output("y", (y + 1.0).unary("sigmoid"))
    graph.output("total", y.reduce("sum", [0]))
    made, given = schedule(graph), {"x": array(300, 256, seed=3)}
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 4):
            torch.set_num_threads(count)
            found.append(run_schedule(made, given, weights_of(graph, made), interpreted=True))
    finally:
        torch.set_num_threads(threads)
    assert np.array_equal(found[0]["y"], found[1]["y"])
    np.testing.assert_allclose(found[0]["total"], found[1]["total"], rtol=1e-5)
