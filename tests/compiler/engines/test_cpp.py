"""The C++ engine against the oracle: random graphs, all sizes, threads, what it refuses."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from kernels_hub.compiler import Graph, bind, evaluate
from kernels_hub.compiler.engines import library
from kernels_hub.compiler.engines.cpp import ENGINE
from kernels_hub.compiler.engines.engine import Decline, Device
from kernels_hub.compiler.engines.tensors import snapshot, to_array, to_tensor
from kernels_hub.compiler.errors import EvaluateError
from kernels_hub.compiler.runtime.binding import MOST_BINDINGS
from kernels_hub.compiler.runtime.toolchain import find_compiler
from kernels_hub.compiler.schedule.memory import place
from tests.compiler.strategies import OTHER_SIZES, SIZES, assert_same_outputs, graphs
from tests.fuzz.harness import budget

CPU = Device("cpu")
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")


def tensors(graph: Graph, sizes: dict[str, int], seed: int = 0):
    return [to_tensor(array) for array in graph.dummy_inputs(seed, sizes).values()]


def arrays(graph: Graph, outputs) -> dict[str, np.ndarray]:
    named = zip(graph.outputs.items(), outputs, strict=True)
    return {name: to_array(tensor, value.dtype) for (name, value), tensor in named}


def shows_all_symbols(graph: Graph) -> bool:
    """Whether the inputs' shapes tell the size of every symbol."""
    told = {symbol.name for value in graph.inputs.values() for dim in value.shape
            if not isinstance(dim, int) and (symbol := dim.only_symbol)}  # fmt: skip
    return told >= set(graph.symbols)


@pytest.mark.exhaustive
@settings(max_examples=budget(8, 100), suppress_health_check=list(HealthCheck), deadline=None)
@given(graph=graphs(max_ops=30))
def test_random_graphs(graph):
    check_against_oracle(graph)


def check_against_oracle(graph: Graph) -> bool:
    """One program for two sets of sizes, or, where the inputs do not tell the sizes, one for one; False: declined."""
    symbolic = shows_all_symbols(graph)
    graph = graph if symbolic else bind(graph, SIZES)
    if isinstance(ENGINE.check(graph, CPU), Decline):
        return False
    plan = ENGINE.compile(graph, CPU, {})
    for sizes in (SIZES, OTHER_SIZES) if symbolic else (SIZES,):
        inputs = graph.dummy_inputs(0, sizes)
        found = plan.compute([to_tensor(array) for array in inputs.values()])
        assert_same_outputs(arrays(graph, found), dict(evaluate(graph, inputs, bindings=sizes)), 3e-2)
    return True


@pytest.fixture(scope="module")
def block() -> Graph:
    """A gated block of any batch, with weights."""
    rng = np.random.default_rng(0)
    graph = Graph("block")
    graph.symbol("n", 0)
    x = graph.input("x", ("n", 48))
    up, gate, down = (
        graph.parameter(name, shape, data=rng.standard_normal(shape).astype(np.float32) / 7)
        for name, shape in (("up", (48, 96)), ("gate", (48, 96)), ("down", (96, 48)))
    )
    g = x.apply("matmul", x, gate)
    y = g * g.unary("sigmoid") * x.apply("matmul", x, up)
    y = x + y.apply("matmul", y, down)
    centred = y - y.mean(-1, keepdims=True)
    graph.output("y", centred / ((centred * centred).mean(-1, keepdims=True) + 1e-5).sqrt())
    return graph


@pytest.fixture(scope="module")
def plan(block):
    return ENGINE.compile(block, CPU, {})


def expected(graph: Graph, inputs) -> np.ndarray:
    return evaluate(graph, [one.numpy() for one in inputs])["y"]


def test_one_program_serves_all_sizes(block, plan):
    for n in [1, 5, 0, 129, 1, *range(2, 2 + MOST_BINDINGS)]:
        inputs = tensors(block, {"n": n}, seed=n)
        (found,) = plan.compute(inputs)
        np.testing.assert_allclose(found.numpy(), expected(block, inputs), 2e-4, 2e-4)


def test_inputs_in_any_strides(block, plan):
    x = torch.randn(48, 10).t()
    (found,) = plan.compute([x])
    np.testing.assert_allclose(found.numpy(), expected(block, [x.contiguous()]), 2e-4, 2e-4)
    (found,) = plan.compute([x[::2]])
    np.testing.assert_allclose(found.numpy(), expected(block, [x[::2].contiguous()]), 2e-4, 2e-4)


def test_a_workspace_that_is_brought_is_used(block, plan):
    inputs = tensors(block, {"n": 33})
    workspace = torch.full((plan.workspace_size({"n": 33}),), 0xFF, dtype=torch.uint8)
    output = torch.full((33, 48), torch.nan)
    plan.execute(inputs, [output], workspace)
    np.testing.assert_allclose(output.numpy(), expected(block, inputs), 2e-4, 2e-4)
    assert (workspace != 0xFF).any()


def test_the_arena_is_no_larger_than_what_lives_at_once(plan):
    arena = place(plan.schedule, {"n": 100})
    assert arena.size <= 1.05 * arena.bound


def test_threads_have_arenas_of_their_own(block, plan):
    cases = [tensors(block, {"n": 20 + i}, seed=i) for i in range(4)]
    wanted = [expected(block, inputs) for inputs in cases]
    wrong: list[int] = []

    def work(number: int) -> None:
        torch.set_num_threads(1)
        for _ in range(30):
            (found,) = plan.compute(cases[number])
            if not np.allclose(found.numpy(), wanted[number], 2e-4, 2e-4):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(cases))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


def test_a_plan_survives_as_bytes(block, plan):
    again = ENGINE.load(plan.serialize(), CPU)
    inputs = tensors(block, {"n": 7})
    assert torch.equal(again.compute(inputs)[0], plan.compute(inputs)[0])


def test_profile_names_every_kernel(block, plan):
    rows = plan.profile(tensors(block, {"n": 64}), repeats=2)
    assert [row.name for row in rows] == [kernel.name for kernel in plan.schedule.kernels]
    assert sum(row.flops for row in rows) >= 3 * 2 * 64 * 48 * 96
    assert all(row.seconds > 0 and row.bytes > 0 for row in rows)


def test_an_index_out_of_range_is_an_error(block):
    graph = Graph("gather")
    x, places = graph.input("x", (4, 2)), graph.input("i", ("n",), "int64")
    graph.output("y", x.apply("gather", x, places, axis=0))
    plan = ENGINE.compile(graph, CPU, {})
    x = torch.arange(8.0).reshape(4, 2)
    (found,) = plan.compute([x, torch.tensor([0, -1])])
    assert found.tolist() == [[0, 1], [6, 7]]
    with pytest.raises(EvaluateError, match="out of range of a dim of 4"):
        plan.compute([x, torch.tensor([0, 4])])


@pytest.mark.parametrize("root", ["product", "convolution", "attention"])
def test_what_a_root_is_joined_with_may_be_read_by_index(root):
    """Rows of a table added where a product, a convolution or scores are finished: good indices, then a bad one."""
    graph = Graph(root)
    random = np.random.default_rng(0)

    def weight(name, *shape):
        return graph.parameter(name, shape, data=random.standard_normal(shape).astype(np.float32))

    if root == "product":
        places = graph.input("places", (6,), "int64")
        rows = weight("table", 20, 16).gather(places)
        graph.output("y", graph.input("x", (6, 16)) @ weight("w", 16, 16) + rows)
    elif root == "convolution":
        places = graph.input("places", (1, 16, 8), "int64")
        rows = weight("table", 20, 8).gather(places)
        x, w = graph.input("x", (1, 4, 8, 8)), weight("w", 16, 4, 3, 3)
        graph.output(
            "y", graph.apply("conv", x, w, strides=(1, 1), dilations=(1, 1), padding=((1, 1), (1, 1))) + rows
        )
    else:
        places = graph.input("places", (12, 12), "int64")
        bias = weight("table", 20).gather(places)
        q, k, v = (graph.input(name, (2, 12, 16)) for name in "qkv")
        scores = q @ k.permute(0, 2, 1) + graph.apply("broadcast", bias, shape=(2, 12, 12), axes=(1, 2))
        graph.output("y", graph.apply("softmax", scores, axis=2) @ v)
    plan = ENGINE.compile(graph, CPU, {})
    assert "&failure](" in plan.program.source
    inputs = graph.dummy_inputs(0, {})
    inputs["places"] = random.integers(-20, 20, inputs["places"].shape)
    found = plan.compute([torch.from_numpy(inputs[name]) for name in graph.inputs])
    assert_same_outputs({"y": found[0].numpy()}, evaluate(graph, inputs), 1e-4)
    inputs["places"].flat[3] = 20
    with pytest.raises(EvaluateError, match="out of range"):
        plan.compute([torch.from_numpy(inputs[name]) for name in graph.inputs])


def test_it_says_which_values_it_cannot_make():
    graph = Graph("places")
    x = graph.input("x", (2, 3, 8))
    places = x.apply(
        "argmax_pool", x.unary("exp"), kernel=(2,), strides=(2,), dilations=(1,), padding=((0, 0),)
    )
    graph.output("y", places)
    answer = ENGINE.check(graph, CPU)
    assert isinstance(answer, Decline)
    assert answer.values == {places.id}
    assert "argmax_pool has no loop form" in answer.reason


def test_an_arena_that_is_large_enough_stays(block):
    plan = ENGINE.compile(block, CPU, {})
    inputs = tensors(block, {"n": 64})
    plan.compute(inputs)
    arena = plan._program._arenas.cpu.memory
    assert arena.numel() == plan.workspace_size({"n": 64})
    plan._program._frames.clear()
    plan.compute(inputs)
    assert plan._program._arenas.cpu.memory is arena


def test_a_size_that_no_input_tells_is_declined():
    graph = Graph("untold")
    x = graph.input("x", (3,))
    graph.output("y", x.broadcast((graph.symbol("n", 1), 3), (1,)))
    answer = ENGINE.check(graph, CPU)
    assert isinstance(answer, Decline)
    assert "no input's shape tells the size n" in answer.reason


def test_other_devices_are_declined(block):
    assert "on the CPU" in ENGINE.check(block, Device("cuda")).reason  # type: ignore[union-attr]


def test_without_a_compiler_it_declines(block, monkeypatch):
    monkeypatch.setattr("kernels_hub.compiler.engines.cpp.find_compiler", lambda: None)
    assert "KERNELS_HUB_CXX" in ENGINE.check(block, CPU).reason  # type: ignore[union-attr]


@pytest.mark.parametrize(("batch", "time"), [(1, 30), (30, 1), (3, 17), (17, 3), (1, 1), (0, 4)])
def test_a_product_of_sequences_time_first(batch, time):
    """Rows that lie batch first: either of the two dims may be the longer one."""
    graph = Graph("sequences")
    x = graph.input("x", ("batch", "time", 24))
    w = graph.parameter("w", (24, 40), data=np.linspace(-1, 1, 24 * 40, dtype=np.float32).reshape(24, 40))
    turned = x.permute(1, 0, 2)
    spread = w.broadcast((turned.shape[0], 24, 40), (1, 2))
    graph.output("y", turned.apply("matmul", turned, spread).unary("tanh") + turned.sum((2,), keepdims=True))
    given = np.random.default_rng(1).standard_normal((batch, time, 24)).astype(np.float32)
    (found,) = ENGINE.compile(graph, CPU, {}).compute([torch.from_numpy(given)])
    wide = given.transpose(1, 0, 2).astype(np.float64)
    expected = np.tanh(wide @ graph.weight("w").astype(np.float64)) + wide.sum(2, keepdims=True)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_weights_are_those_of_the_moment_of_compiling():
    weight, bias = torch.randn(8, 8), torch.randn(8)
    graph = Graph("linear")
    x = graph.input("x", ("n", 8))
    w = graph.parameter("w", (8, 8), data=weight.numpy())
    b = graph.parameter("b", (8,), data=bias.numpy())
    graph.output("y", x.apply("matmul", x, w) + b)
    inputs = tensors(graph, {"n": 3})
    plans = [engine.compile(graph, CPU, {}) for engine in (ENGINE, library.ENGINE)]
    before = [plan.compute(inputs)[0] for plan in plans]
    weight.zero_()
    bias.zero_()
    for plan, expected_ in zip(plans, before, strict=True):
        assert torch.equal(plan.compute(inputs)[0], expected_)


def test_memory_that_nobody_can_write_to_is_not_copied(tmp_path):
    (tmp_path / "w").write_bytes(np.arange(8, dtype=np.float32).tobytes())
    fixed = np.arange(8.0)
    fixed.flags.writeable = False
    for array in (
        np.memmap(tmp_path / "w", np.float32, "r"),
        np.frombuffer(bytes(8), np.float32),
        fixed,
        fixed[2:],
    ):
        assert snapshot(array) is array
    for array in (np.arange(8.0)[2:], torch.zeros(3).numpy()):
        assert not np.shares_memory(snapshot(array), array)


@pytest.mark.parametrize("fixed", [32, 37, 48, 100])
def test_what_turns_and_flips_is_right_at_every_size(fixed: int):
    """torch.rot90 and its kin: columns that are read backwards become rows, rows that are become columns."""
    graph = Graph("flipped")
    graph.symbol("n", 0)
    x = graph.input("x", (2, "n", fixed))
    graph.output("columns", x.flip(2).permute(0, 2, 1))
    graph.output("rows", x.flip(1).permute(0, 2, 1))
    graph.output("both", x.flip(0, 1, 2).permute(2, 1, 0))
    plan = ENGINE.compile(graph, CPU, {})
    assert plan.program.source.count("kh::transpose(") == 2  # rows of 2 are no tiles
    for n in (0, 1, 16, 33, 64, 95):
        inputs = graph.dummy_inputs(0, {"n": n})
        found = plan.compute([to_tensor(array) for array in inputs.values()])
        assert_same_outputs(arrays(graph, found), dict(evaluate(graph, inputs, bindings={"n": n})), 0)


@pytest.mark.parametrize("fixed", [32, 37, 48, 100])
def test_what_only_turns_is_right_at_every_size(fixed: int):
    graph = Graph("turned")
    graph.symbol("n", 0)
    x = graph.input("x", (2, "n", fixed))
    graph.output("rows", x.permute(0, 2, 1))
    graph.output("last", x.permute(2, 1, 0))
    graph.output("padded", x.permute(0, 2, 1).pad([(0, 0), (1, 0), (0, 0)], 7))
    plan = ENGINE.compile(graph, CPU, {})
    assert "kh::transpose(" in plan.program.source
    for n in (0, 1, 16, 33, 64, 95):
        inputs = graph.dummy_inputs(0, {"n": n})
        found = plan.compute([to_tensor(array) for array in inputs.values()])
        assert_same_outputs(arrays(graph, found), dict(evaluate(graph, inputs, bindings={"n": n})), 0)
