"""The oracle as an engine, tensors that share memory with arrays, and graphs as bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from kernels_hub.compiler import Graph, bind, evaluate, print_graph
from kernels_hub.compiler.engines import guard
from kernels_hub.compiler.engines.engine import Device, Note
from kernels_hub.compiler.engines.payload import pack_graph, unpack_graph
from kernels_hub.compiler.engines.reference import ENGINE
from kernels_hub.compiler.engines.tensors import codes, scalar_tensor, to_array, to_tensor, torch_dtype
from kernels_hub.compiler.errors import EngineError, EvaluateError, PlanError
from kernels_hub.compiler.ir import types
from tests.compiler.engines.executed import CPU, array, assert_agrees
from tests.compiler.strategies import SIZES, graphs

EVERY = list(types.DTYPES)


# -- tensors


@pytest.mark.parametrize("dtype", EVERY)
def test_arrays_and_tensors_share_memory(dtype):
    row = types.dtype(dtype)
    x = array((3, 4), dtype)
    views = [x, x.T, x[:, 1:3], x[::2], x[0], x[0, :1].reshape(()), np.broadcast_to(x, (2, 3, 4))]
    for view in views:
        tensor = to_tensor(view)
        assert tensor.shape == view.shape and tensor.dtype is torch_dtype(row)
        back = to_array(tensor, row)
        assert back.dtype == view.dtype and back.tobytes() == view.tobytes()
        assert np.shares_memory(back.view(np.uint8) if back.ndim and back.flags.c_contiguous else back, view)
    for copied in (
        x[:, ::-1],
        x[:0],
        x.astype(x.dtype.newbyteorder(">")) if row.module == "numpy" else x[::-1],
    ):
        assert to_array(to_tensor(copied), row).tolist() == copied.astype(row.numpy).tolist() or row.is_float


def test_read_only_and_unaligned_arrays():
    x = np.arange(6, dtype=np.float32)
    x.flags.writeable = False
    assert to_tensor(x).tolist() == x.tolist()
    odd = np.frombuffer(b"\0" + x.tobytes(), np.float32, 6, 1)
    assert to_tensor(odd).tolist() == x.tolist()


def test_memory_lives_as_long_as_the_tensor():
    tensor = to_tensor(np.arange(100_000, dtype=np.int64))
    junk = [np.zeros(100_000, np.int64) for _ in range(4)]
    assert tensor.sum().item() == 4_999_950_000 and len(junk) == 4


def test_codes_and_scalars():
    x = torch.tensor([1.0, -0.0]).to(torch.float8_e5m2)
    assert codes(x).dtype is torch.uint8 and codes(x).view(x.dtype).tolist() == [1.0, -0.0]
    assert scalar_tensor(1.7, types.BFLOAT16).item() == 1.703125
    assert scalar_tensor(3, types.INT64).dtype is torch.int64


# -- the engine


@settings(max_examples=25, deadline=None)
@given(graphs())
def test_random_graphs(graph):
    graph = bind(graph, SIZES)
    inputs = graph.dummy_inputs(0, SIZES)
    assert_agrees(ENGINE, graph, list(inputs.values()), tolerance=0.0)


def everything():
    """Weights, a large constant, symbols, a region, narrow dtypes."""
    graph = Graph("everything")
    graph.symbol("n", 1, 8)
    x = graph.input("x", ("n", 4), "bfloat16")
    weight = graph.parameter("w/ü", (4, 3), "bfloat16", array((4, 3), "bfloat16"))
    table = graph.constant(array((5, 3), "float32"))
    scalar = graph.parameter("s", (), "float8_e4m3fn", array((), "float8_e4m3fn"))
    none = graph.parameter("none", (0, 3), data=np.zeros((0, 3), np.float32))
    wide = (x @ weight).cast("float32")
    body = Graph("body")
    body.symbol("n", 1, 8)
    body.output("y", body.input("a", ("n", 3)) * 2.0)
    (called,) = graph.add("call", (wide,), {"callee": body}).results
    graph.output("y", graph.apply("concat", called, table, none, axis=0))
    graph.output("s", scalar)
    return graph


def test_serialized_plans_compute_the_same():
    graph = everything()
    plan = guard.compiled(ENGINE, graph, CPU)
    payload = plan.serialize()
    again = guard.loaded(ENGINE, payload, CPU)
    x = array((2, 4), "bfloat16")
    assert again.signature == plan.signature
    for one, other in zip(again.compute([to_tensor(x)]), plan.compute([to_tensor(x)]), strict=True):
        assert one.dtype is other.dtype and torch.equal(codes(one), codes(other))
    for place in range(0, len(payload), 61):
        damaged = bytearray(payload)
        damaged[place] ^= 1
        with pytest.raises(PlanError):
            guard.loaded(ENGINE, bytes(damaged), CPU)
    for length in (0, 7, 40, len(payload) // 2, len(payload) - 1):
        with pytest.raises(PlanError):
            guard.loaded(ENGINE, payload[:length], CPU)


def test_a_payload_is_for_one_engine_and_one_kind_of_device():
    graph = everything()
    payload = pack_graph(graph, "reference", CPU, {"tile": 4})
    found = unpack_graph(payload, "reference", CPU)
    assert print_graph(found.graph) == print_graph(graph) and found.knobs == {"tile": 4}
    assert sorted(found.graph.weights) == sorted(graph.weights)
    with pytest.raises(PlanError, match="is of engine 'reference'; engine 'library' cannot run it"):
        unpack_graph(payload, "library", CPU)
    with pytest.raises(PlanError, match="for cpu, not for cuda:1: compile the graph there"):
        unpack_graph(payload, "reference", Device("cuda", 1))


def test_execute_writes_where_it_is_told():
    graph = everything()
    x = array((2, 4), "bfloat16")
    expected = evaluate(graph, [x])
    outputs = [torch.empty(7, 3), torch.empty((), dtype=torch.float8_e4m3fn)]
    plan = guard.compiled(ENGINE, graph, CPU)
    plan.execute([to_tensor(x)], outputs)
    assert np.array_equal(outputs[0].numpy(), expected["y"])
    with pytest.raises(PlanError, match="output 'y'"):
        plan.execute([to_tensor(x)], [torch.empty(6, 3), outputs[1]])


def test_sizes_that_only_the_data_tell():
    graph = Graph("found")
    graph.output("places", graph.apply("nonzero", graph.input("x", (4,)), count=graph.symbol("count")))
    (found,) = guard.compiled(ENGINE, graph, CPU).compute([torch.tensor([0.0, 2.0, 0.0, 3.0])])
    assert found.tolist() == [[1, 3]]


def test_profile_has_a_row_an_op():
    rows = guard.compiled(ENGINE, everything(), CPU).profile([to_tensor(array((2, 4), "bfloat16"))], 2)
    (product,) = [row for row in rows if row.name.endswith(" matmul")]
    assert product.flops == 2 * 2 * 4 * 3 and product.seconds > 0 and product.engine == "reference"


def test_what_it_declines_and_refuses():
    graph = everything()
    assert ENGINE.check(graph, CPU).notes == {Note.SLOW}
    assert "runs on the CPU, not on cuda:0" in ENGINE.check(graph, Device("cuda")).reason
    empty = Graph("empty")
    empty.output("y", empty.parameter("w", (2,)) * 1.5)
    assert "no arrays for the parameters 'w'" in ENGINE.check(empty, CPU).reason
    with pytest.raises(EngineError, match="does not take graph empty"):
        ENGINE.compile(empty, CPU, {})
    with pytest.raises(EngineError, match="has no knob 'tile'; it has none"):
        ENGINE.compile(graph, CPU, {"tile": 1})
    plan = guard.compiled(ENGINE, graph, CPU)
    with pytest.raises(PlanError, match="takes 1 inputs, got 0"):
        plan.compute([])


def test_data_that_an_op_refuses_pass_with_their_own_error():
    graph = Graph("pick")
    graph.output("y", graph.input("x", (3,)).gather(graph.input("i", (1,), "int64"), 0))
    with pytest.raises(EvaluateError, match="index 3 is out of range"):
        guard.compiled(ENGINE, graph, CPU).compute([torch.ones(3), torch.tensor([3])])
