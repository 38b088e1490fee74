"""The example plugin that wraps ONNX Runtime, loaded by path: each op that it claims against the oracle."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.engines import guard, registry
from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.engines.tensors import to_array, to_tensor
from kernels_hub.compiler.errors import EngineError, PlanError
from kernels_hub.compiler.ir import ops, types
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.rewrite.pipeline import rewrite
from tests.compiler.engines.executed import CPU, array, assert_agrees, graph_of, special
from tests.compiler.strategies import OTHER_SIZES, SIZES, assert_same_outputs, graphs

pytest.importorskip("onnxruntime", reason="needs the package onnxruntime")

DISTRIBUTION = Path(__file__).resolve().parents[3] / "examples" / "engine_plugin_onnxruntime"
PACKAGE = DISTRIBUTION / "kernels_hub_onnxruntime"


@pytest.fixture(scope="module", autouse=True)
def _loaded():
    registry.set_plugin_paths([PACKAGE], mode="absolute")
    yield
    registry.set_plugin_paths([])


@pytest.fixture(scope="module")
def engine():
    return registry.engine("onnxruntime").loaded()


def writers(engine):
    return sys.modules[type(engine).__module__.rpartition(".")[0] + ".export"].WRITERS


def test_it_is_a_plugin_by_path(engine):
    (row,) = [one for one in registry.registered() if one.name == "onnxruntime"]
    assert row.source == str(PACKAGE / "__init__.py")
    assert engine is row.engine.loaded()


def test_it_is_a_distribution_whose_entry_point_is_there(engine):
    project = tomllib.loads((DISTRIBUTION / "pyproject.toml").read_text())
    module, _, function = project["project"]["entry-points"][registry.GROUP]["onnxruntime"].partition(":")
    assert (DISTRIBUTION / module / "__init__.py").is_file()
    assert project["tool"]["setuptools"]["packages"] == [module]
    given = getattr(sys.modules[type(engine).__module__.rpartition(".")[0]], function)()
    assert [one.name for one in given] == ["onnxruntime"]


POINTWISE = [row.name for row in ops.OPS.values() if Trait.POINTWISE in row.traits]


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(engine, name):
    """What it takes of every dtype, at special values; what it does not take is declined by name."""
    row = ops.OPS[name]
    taken = 0
    for dtype in ("float32", "float64", "int32", "int64", "bool", "float16", "uint8"):
        numbers = special(dtype)
        if name == "select":
            arrays = [np.arange(len(numbers)) % 2 == 0, numbers, numbers[::-1].copy()]
        else:
            arrays = [one.copy() for one in np.meshgrid(*[numbers] * row.arity, indexing="ij")]
        for to in ("float32", "float64", "int32", "int64", "bool") if "cast" in name else ("",):
            try:
                graph = graph_of(name, arrays, **({"dtype": to} if to else {}))
            except types.TypeRuleError:
                continue
            answer = engine.check(graph, CPU)
            if answer:
                taken += 1
                # ONNX Runtime's sigmoid is 0 below -18: small in absolute terms alone.
                assert_agrees(engine, graph, arrays, scale=name == "sigmoid")
            else:
                assert (
                    name in answer.reason and answer.values == {value.id for value in graph.outputs.values()}
                ) or (dtype in answer.reason)
    assert bool(taken) is (name in writers(engine))


ONES = {"strides": (1, 1), "dilations": (1, 1)}
STRUCTURED = [
    ("reshape", [(2, 3, 4)], {"shape": (4, 6)}),
    ("broadcast", [(2, 4)], {"shape": (2, 3, 4, 5), "axes": (0, 2)}),
    ("permute", [(2, 3, 4)], {"order": (2, 0, 1)}),
    ("slice", [(5, 6)], {"starts": (1, 0), "stops": (4, 6), "steps": (2, 1)}),
    ("slice", [(5, 6)], {"starts": (1, 1), "stops": (1, 6), "steps": (1, 3)}),
    ("flip", [(3, 4)], {"axes": (0, 1)}),
    ("flip", [(3, 4)], {"axes": ()}),
    ("pad", [(2, 3), ()], {"padding": ((1, 0), (2, 1))}),
    ("pad", [(2, 3)], {"padding": ((1, 0), (7, 4)), "mode": "edge"}),
    ("concat", [(2, 3), (2, 1), (2, 0)], {"axis": 1}),
    ("reduce_sum", [(3, 4, 5)], {"axes": (0, 2)}),
    ("reduce_sum", [(3, 0, 5)], {"axes": (1,)}),
    ("reduce_sum", [(3, 4)], {"axes": ()}),
    ("reduce_mean", [(3, 4, 5)], {"axes": (1,)}),
    ("reduce_max", [(3, 4, 5)], {"axes": (1, 2)}),
    ("reduce_min", [(3, 4, 5)], {"axes": (0,)}),
    ("softmax", [(3, 4, 5)], {"axis": 1}),
    ("log_softmax", [(3, 4, 5)], {"axis": 2}),
    ("matmul", [(2, 3, 4), (2, 4, 5)], {}),
    ("conv", [(2, 4, 6, 5), (6, 2, 3, 2)], {**ONES, "padding": ((1, 0), (1, 1)), "groups": 2}),
    ("conv", [(2, 4, 9), (6, 4, 3)], {"strides": (2,), "dilations": (2,), "padding": ((1, 1),)}),
    ("conv_transpose", [(2, 4, 6, 5), (4, 3, 3, 2)],
     {"strides": (2, 2), "dilations": (1, 1), "padding": ((1, 0), (0, 0)), "output_padding": (1, 0), "groups": 2}),
    ("max_pool", [(2, 3, 7, 6)], {"kernel": (3, 2), **ONES, "padding": ((1, 1), (0, 0))}),
    ("avg_pool", [(2, 3, 7, 6)], {"kernel": (3, 2), **ONES, "padding": ((1, 1), (0, 0))}),
    ("avg_pool", [(2, 3, 7, 6)], {"kernel": (3, 2), **ONES, "padding": ((1, 1), (0, 0)), "count": "padded"}),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "bool"])
def test_structured(engine, dtype):
    taken = set()
    for op, shapes, attrs in STRUCTURED:
        arrays = [array(shape, dtype, seed=place) for place, shape in enumerate(shapes)]
        try:
            graph = graph_of(op, arrays, **attrs)
        except types.TypeRuleError:
            continue
        if engine.check(graph, CPU):
            taken.add(op)
            assert_agrees(engine, graph, arrays)
    assert taken >= {"reshape", "broadcast", "permute", "slice", "flip", "pad", "concat"}
    if dtype == "float32":
        assert taken == {op for op, _, _ in STRUCTURED}


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_gathers(engine, dtype):
    places = np.array([[0, -1], [2, 1]])
    for op, index in (("gather", places), ("gather", np.array(-2)), ("gather_elements", places)):
        arrays = [array((3, 4), dtype), index]
        assert_agrees(engine, graph_of(op, arrays, axis=1), arrays)


def test_an_index_out_of_range_is_an_error(engine):
    arrays = [array((3, 4), "float32"), np.array([4])]
    with pytest.raises(EngineError, match="engine onnxruntime failed at graph case"):
        guard.compiled(engine, graph_of("gather", arrays, axis=1), CPU).compute(
            [to_tensor(one) for one in arrays]
        )


def block(dtype="float32"):
    """A layer norm, a product with a weight, GELU, of any batch."""
    random = np.random.default_rng(0)
    graph = Graph("block")
    graph.symbol("n", 1)
    x = graph.input("x", ("n", 6, 8), dtype)
    weight = graph.parameter("w", (8, 8), dtype, random.standard_normal((8, 8)).astype(dtype))
    centred = x - x.mean(-1, keepdims=True)
    normed = centred / ((centred * centred).mean(-1, keepdims=True) + 1e-5).unary("sqrt")
    h = normed @ weight
    graph.output("y", h * 0.5 * ((h * 0.5**0.5).unary("erf") + 1.0))
    return rewrite(graph).graph


@pytest.mark.parametrize("level", ["all", "basic", "none"])
def test_a_block_of_recognised_parts(engine, level):
    graph = block()
    assert {node.attrs["callee"].name for node in graph.live() if node.op.name == "call"} == {
        "layer_norm",
        "gelu",
    }
    plan = guard.compiled(engine, graph, CPU, {"optimization": level})
    for n in (3, 1, 2, 5, 4, 3):
        x = array((n, 6, 8), "float32", seed=n)
        (found,) = plan.compute([to_tensor(x)])
        assert_same_outputs({"y": found.numpy()}, dict(evaluate(graph, [x])), 1e-5)


def test_serialized_plans(engine):
    x = torch.ones(2, 6, 8)
    plan = guard.compiled(engine, block(), CPU, {"optimization": "basic"})
    payload = plan.serialize()
    again = guard.loaded(engine, payload, CPU)
    assert torch.equal(again.compute([x])[0], plan.compute([x])[0])
    output = torch.empty(2, 6, 8)
    again.execute([x], [output])
    assert torch.equal(output, plan.compute([x])[0])
    with pytest.raises(PlanError, match="of engine 'onnxruntime'"):
        guard.loaded(registry.engine("library"), payload, CPU)
    (row,) = plan.profile([x], 2)
    assert row.name == "block" and row.seconds > 0


def test_what_it_declines(engine):
    graph = block("float64")
    answer = engine.check(graph, CPU)
    assert not answer and "erf of float64" in answer.reason
    assert (
        answer.values
        == {node.results[0].id for node in graph.live() if node.op.name == "call"} & answer.values
    )
    assert "not on cuda:0" in engine.check(graph, Device("cuda")).reason
    with pytest.raises(EngineError, match="'fast'"):
        engine.compile(block(), CPU, {"optimization": "fast"})
    with pytest.raises(EngineError, match="no knob 'tile'; it has optimization"):
        engine.compile(block(), CPU, {"tile": 3})
    with pytest.raises(EngineError, match="does not take graph block: .*erf"):
        engine.compile(graph, CPU, {})


@settings(max_examples=40, deadline=None)
@given(graphs(dtypes=("float32", "int64", "bool")))
def test_random_graphs(graph):
    """What it claims runs; what it declines, it declines for values of the graph."""
    engine = registry.engine("onnxruntime")
    answer = guard.checked(engine, graph, CPU)
    if not answer:
        assert answer.values <= {value.id for value in graph.values}
        return
    plan = guard.compiled(engine, graph, CPU)
    for sizes in (SIZES, OTHER_SIZES):
        inputs = graph.dummy_inputs(0, sizes)
        told = {one for value in graph.inputs.values() for one in map(str, value.shape)}
        if not told >= set(graph.symbols):
            return
        outputs = plan.compute([to_tensor(inputs[name]) for name in graph.inputs])
        actual = {
            name: to_array(tensor, value.dtype)
            for (name, value), tensor in zip(graph.outputs.items(), outputs, strict=True)
        }
        assert_same_outputs(actual, dict(evaluate(graph, inputs)), 2e-2)
