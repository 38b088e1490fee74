"""What shares a kernel, and what does not: counted, and run."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.rewrite.pipeline import rewrite
from kernels_hub.compiler.schedule.kernel import Kernel, Load, Product, Reduce, Role, Schedule, Store
from kernels_hub.compiler.schedule.kernel import Test as Asked
from kernels_hub.compiler.schedule.schedule import schedule
from tests.compiler.schedule.run import OutOfRange, run_schedule


def check(
    graph: Graph, kernels: int, sizes: dict[str, int] | None = None, tolerance: float = 1e-5
) -> Schedule:
    """The schedule of a graph: it has that many kernels, and computes what the oracle does."""
    sizes = sizes or {}
    planned = schedule(graph)
    inputs = graph.dummy_inputs(0, sizes)
    expected = evaluate(graph, inputs, bindings=sizes)
    found = run_schedule(planned, graph, inputs, sizes)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, tolerance, tolerance)
    assert len(planned.kernels) == kernels, [one.name for one in planned.kernels]
    return planned


def count(kernel: Kernel, kind: type) -> int:
    return sum(isinstance(one, kind) for nest in kernel.nests for one in nest.body)


def repeated(channels: int, pixels: int) -> Graph:
    """Two weights a pixel, for all channels."""
    graph = Graph("repeated")
    x, at = graph.input("x", (channels, pixels)), graph.input("at", (pixels,))
    graph.output("y", x * (at * 2.0 + 1.0).broadcast((channels, pixels), (1,)))
    return graph


def test_what_a_broadcast_repeats_often_is_stored_on_a_cpu():
    check(repeated(32, 1024), kernels=2)
    check(repeated(2, 16384), kernels=1)
    check(repeated(32, 64), kernels=1)  # too little for a loop of its own
    assert len(schedule(repeated(32, 1024), cpu=False).kernels) == 1


@pytest.mark.parametrize(("size", "step", "kernels"), [(400, 160, 2), (400, 400, 1), (8, 4, 1)])
def test_what_overlapping_windows_read_is_computed_once_on_a_cpu(size: int, step: int, kernels: int):
    graph = Graph("windows")
    x = graph.input("x", (40 * size,))
    graph.output("y", (x * 2.0 + 1.0).windows(0, size, step) * 3.0)
    assert len(schedule(graph).kernels) == kernels
    assert len(schedule(graph, cpu=False).kernels) == 1
    cheap = Graph("windows")
    cheap.output("y", (cheap.input("x", (40 * size,)) * 2.0).windows(0, size, step) * 3.0)
    assert len(schedule(cheap).kernels) == 1


@pytest.mark.parametrize(
    ("sizes", "tiny"), [((3, 3, 1), True), ((64, 8, 8), True), ((64, 8, 16), False), ((4, 16, 4), False)]
)
def test_tiny_matrices_of_a_batch_are_multiplied_by_loops_on_a_cpu(sizes, tiny):
    m, k, n = sizes
    graph = Graph("tiny")
    graph.output("y", graph.input("a", ("batch", m, k)) @ graph.input("b", ("batch", k, n)))
    planned = check(graph, kernels=1, sizes={"batch": 5})
    assert (planned.kernels[0].nests[0].anchor is None) == tiny
    assert isinstance(schedule(graph, cpu=False).kernels[0].nests[0].anchor, Product)
    alone = Graph("alone")
    alone.output("y", alone.input("a", (m, k)) @ alone.input("b", (k, n)))
    assert isinstance(schedule(alone).kernels[0].nests[0].anchor, Product)


def test_a_diamond_is_computed_once():
    graph = Graph("diamond")
    x = graph.input("x", ("n", 8))
    y = x.unary("exp")
    graph.output("y", (y + 1.0) * (y - 1.0))
    (kernel,) = check(graph, 1, {"n": 3}).kernels
    assert [one.op.name for one in kernel.nests[0].body if hasattr(one, "op")].count("exp") == 1
    assert count(kernel, Load) == 1


def test_a_layer_norm_of_a_sum_is_one_kernel_with_two_results():
    graph = Graph("norm")
    x, y = graph.input("x", ("n", 16)), graph.input("y", ("n", 16))
    weight = graph.input("w", (16,))
    total = x + y
    centred = total - total.mean(-1, keepdims=True)
    normed = centred / ((centred * centred).mean(-1, keepdims=True) + 1e-5).sqrt() * weight
    graph.output("total", total)
    graph.output("normed", normed)
    (kernel,) = check(graph, 1, {"n": 5}).kernels
    assert count(kernel, Reduce) == 2
    assert count(kernel, Store) == 2


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_is_one_kernel_along_any_axis(axis):
    graph = Graph("softmax")
    graph.output("y", graph.input("x", (4, 20, 18)).softmax(axis))
    (kernel,) = check(graph, 1).kernels
    assert count(kernel, Reduce) == 2


def test_bias_activation_and_residual_are_the_epilogue_of_a_product():
    graph = Graph("linear")
    x, w = graph.input("x", ("n", 8)), graph.parameter("w", (8, 8), data=np.eye(8, dtype=np.float32))
    bias = graph.parameter("b", (8,), data=np.ones(8, np.float32))
    y = x.apply("matmul", x, w) + bias
    graph.output("y", y * y.unary("sigmoid") + x)
    (kernel,) = check(graph, 1, {"n": 3}).kernels
    assert isinstance(kernel.nests[0].anchor, Product)


def test_heads_are_split_and_joined_by_strides():
    graph = Graph("heads")
    x = graph.input("x", (2, 6, 8))
    q = x.unary("exp").reshape((2, 6, 2, 4)).permute(0, 2, 1, 3)
    scores = q.apply("matmul", q, q.permute(0, 1, 3, 2))
    y = scores.apply("matmul", scores, q)
    w = graph.parameter("w", (8, 8), data=np.eye(8, dtype=np.float32))
    joined = y.permute(0, 2, 1, 3).reshape((12, 8))
    graph.output("y", joined.apply("matmul", joined, w))
    planned = check(graph, 4, tolerance=1e-3)
    assert not any("reshape" in one.name or "permute" in one.name for one in planned.kernels)


def test_loops_are_cut_at_a_concat():
    graph = Graph("rotate")
    x = graph.input("x", ("n", 8))
    low, high = (
        x.apply("slice", x, starts=(0, at), stops=(x.shape[0], at + 4), steps=(1, 1)) for at in (0, 4)
    )
    graph.output("y", x + low.apply("concat", -high, low, axis=1))
    (kernel,) = check(graph, 1, {"n": 3}).kernels
    assert len(kernel.nests) == 2
    assert count(kernel, Asked) == 0


def test_a_concat_of_nothing_behind_a_reshape():
    """Its only place is 0, which lies in none of its parts."""
    graph = Graph("nothing")
    x = graph.input("x", (0, 1, 4))
    joined = graph.apply("concat", x, x, axis=0)
    graph.output("y", (joined.reshape((0, 4)) * 2.0).reshape((4, 0)))
    check(graph, 1)


def test_a_whole_sum_does_not_drag_its_elements_onto_one_thread():
    graph = Graph("sum")
    x = graph.input("x", (64, 4096))
    y = x.unary("exp")
    graph.output("y", y / y.sum((0, 1)).broadcast_to((64, 4096)))
    check(graph, 3, tolerance=1e-4)


def test_two_models_of_one_input_do_not_wait_for_each_other_in_a_cycle():
    graph = Graph("cycle")
    x = graph.input("x", (4, 4))
    a = x.unary("exp")
    m = a.apply("matmul", a, a)
    graph.output("y", (a + m.permute(1, 0)) * m)
    check(graph, 3, tolerance=1e-4)


def test_padding_and_pooling():
    graph = Graph("pool")
    x = graph.input("x", (1, 3, 7, 6))
    y = x.apply(
        "max_pool", x, kernel=(3, 3), strides=(2, 2), dilations=(1, 1), padding=((1, 1), (1, 1)), ceil=True
    )
    graph.output(
        "y",
        y.apply(
            "avg_pool",
            y,
            kernel=(2, 2),
            strides=(1, 1),
            dilations=(1, 1),
            padding=((1, 0), (0, 1)),
            ceil=False,
        ),
    )
    graph.output(
        "z", x.apply("pad", x, graph.constant(2.0), padding=((0, 0), (1, 0), (0, 2), (3, 0)), mode="constant")
    )
    check(graph, 3)


def test_convolutions_lie_channels_last_between_row_major_ends():
    graph = Graph("conv")
    x = graph.input("x", (2, 4, 6, 5))
    options = {"strides": (1, 1), "dilations": (1, 1), "padding": ((1, 1), (1, 1)), "groups": 2}
    rng = np.random.default_rng(0)
    w1 = graph.parameter("w1", (6, 2, 3, 3), data=rng.standard_normal((6, 2, 3, 3)).astype(np.float32))
    w2 = graph.parameter("w2", (4, 3, 3, 3), data=rng.standard_normal((4, 3, 3, 3)).astype(np.float32))
    y = x.apply("conv", x, w1, **options).unary("tanh")
    graph.output("y", y.apply("conv", y, w2, **options) + x)
    planned = check(graph, 4, tolerance=1e-4)  # the input laid out, two convolutions, the output laid back
    laid, hidden, result, output = (next(iter(one.writes())) for one in planned.kernels)
    assert (
        laid.strides == (120, 1, 20, 4)
        and hidden.strides == (180, 1, 30, 6)
        and result.strides == laid.strides
    )
    assert output is planned.outputs["y"] and output.strides == (120, 30, 5, 1)


@pytest.mark.parametrize(("pixels", "kernels"), [((6, 5), 4), ((1, 1), 3)])
def test_convolutions_of_one_pixel_turn_nothing(pixels, kernels):
    """Squeeze and excitation between row-major ends: no copies, and the result lies as the input does."""
    graph = Graph("squeeze")
    x = graph.input("x", (2, 4, *pixels))
    options = {"strides": (1, 1), "dilations": (1, 1), "padding": ((0, 0), (0, 0)), "groups": 1}
    rng = np.random.default_rng(0)
    w1 = graph.parameter("w1", (3, 4, 1, 1), data=rng.standard_normal((3, 4, 1, 1)).astype(np.float32))
    w2 = graph.parameter("w2", (4, 3, 1, 1), data=rng.standard_normal((4, 3, 1, 1)).astype(np.float32))
    mean = x.mean([2, 3], keepdims=True)
    gate = mean.apply("conv", mean.apply("conv", mean, w1, **options).unary("tanh"), w2, **options)
    graph.output("y", x * gate.unary("sigmoid"))
    planned = check(graph, kernels, tolerance=1e-4)  # the mean, two convolutions, the product
    assert planned.outputs["y"] in {one for kernel in planned.kernels[-1:] for one in kernel.writes()}


def test_weights_alone_are_prepared_once():
    graph = Graph("prepared")
    x = graph.input("x", (3,))
    w = graph.parameter("w", (3,), data=np.ones(3, np.float32))
    scale = w.unary("exp").sum(0)
    graph.output("y", x * scale.broadcast_to((3,)))
    planned = check(graph, 1)
    assert len(planned.prepare) == 1


def test_an_index_out_of_range_is_an_error_and_no_read():
    graph = Graph("gather")
    x, places = graph.input("x", (4, 2)), graph.input("i", ("n",), "int64")
    graph.output("y", x.apply("gather", x, places, axis=0))
    planned = schedule(graph)
    inputs = {"x": np.arange(8, dtype=np.float32).reshape(4, 2), "i": np.array([0, -1, 3], np.int64)}
    found = run_schedule(planned, graph, inputs, {"n": 3})
    assert found["y"].tolist() == inputs["x"][[0, -1, 3]].tolist()
    with pytest.raises(OutOfRange, match="out of range of a dim of 4"):
        run_schedule(planned, graph, {**inputs, "i": np.array([0, 4, 0], np.int64)}, {"n": 3})


def test_what_has_no_loop_form_is_refused_by_name():
    graph = Graph("places")
    x = graph.input("x", (2, 3, 8))
    graph.output("y", x.apply("argmax_pool", x, kernel=(2,), strides=(2,), dilations=(1,), padding=((0, 0),)))
    with pytest.raises(EngineError, match="argmax_pool has no loop form"):
        schedule(graph)


def test_what_a_scatter_writes_is_made_where_it_is_written():
    """The messages of a graph network lie in no memory; what follows reads the sums in a kernel of its own."""
    graph = Graph("messages")
    x = graph.input("x", ("n", 4))
    sources, targets = graph.input("i", ("e",), "int64"), graph.input("j", ("e",), "int64")
    weights = graph.input("w", ("e",))
    sent = x.gather(sources, 0) * weights.unsqueeze(1).broadcast_to((weights.shape[0], 4))
    zeros = graph.constant(np.zeros((), np.float32)).broadcast_to(x.shape)
    graph.output("y", x.apply("scatter_nd", zeros, targets.unsqueeze(1), sent, reduction="add").tanh())
    planned = schedule(graph)
    assert [buffer.role for buffer in planned.buffers].count(Role.SCRATCH) == 1
    assert [len(kernel.nests) for kernel in planned.kernels] == [2, 1]
    random = np.random.default_rng(0)
    inputs = {"x": random.random((5, 4), np.float32), "w": random.random(9, np.float32)}
    inputs |= {"i": random.integers(-5, 5, 9), "j": random.integers(-5, 5, 9)}
    found = run_schedule(planned, graph, inputs, {"n": 5, "e": 9})
    np.testing.assert_allclose(found["y"], evaluate(graph, inputs)["y"], 1e-5, 1e-5)
    with pytest.raises(OutOfRange, match="out of range of a dim of n"):
        run_schedule(planned, graph, {**inputs, "j": np.full(9, 5)}, {"n": 5, "e": 9})


@pytest.mark.parametrize(
    ("scale", "rule"), [(2, ("asymmetric", "floor")), (3, ("half_pixel", "round_prefer_ceil"))]
)
def test_nearest_upsampling_is_index_arithmetic(scale, rule):
    graph = Graph("upsample")
    x = graph.input("x", (1, 2, 3, "n"))
    shape = (1, 2, 3 * scale, f"{scale}*n")
    options = {"coordinates": rule[0], "nearest": rule[1], "mode": "nearest"}
    graph.output("y", x.apply("resize", x, shape=graph.dims(shape), **options).unary("neg"))
    check(graph, 1, {"n": 4})


@pytest.mark.parametrize("affine", [True, False])
def test_group_norm_sums_along_the_channels(affine):
    graph = Graph("groups")
    x = graph.input("x", ("n", 8, 3, 5))
    grouped = x.reshape((x.shape[0], 4, 30))
    centred = grouped - grouped.mean(-1, keepdims=True)
    normed = (centred * ((centred * centred).mean(-1, keepdims=True) + 1e-5).rsqrt()).reshape(x.shape)
    if affine:
        weight, bias = (graph.input(name, (8,)) for name in "wb")
        normed = normed * weight.broadcast(x.shape, (1,)) + bias.broadcast(x.shape, (1,))
    graph.output("y", normed)
    recognised = rewrite(graph).graph
    assert [node.attrs["callee"].name for node in recognised.nodes if node.op.name == "call"] == [
        "group_norm"
    ]
    planned = check(recognised, 5, {"n": 2}, tolerance=1e-4)
    assert not any(
        "//" in str(one.place) for one in planned.kernels[-1].nests[0].body if isinstance(one, Load)
    )


def test_heads_side_by_side_are_loops_of_their_own():
    graph = Graph("heads")
    x = graph.input("x", (2, 4, 6, 16))
    graph.output("y", graph.apply("reshape", x.apply("permute", x, order=(0, 2, 1, 3)), shape=(2, 6, 64)))
    (nest,) = check(graph, 1).kernels[0].nests
    assert [loop.extent for loop in nest.outer] == [2, 6, 4, 16]


@pytest.mark.parametrize(("width", "extents"), [(4, [2, 6, 16]), (12, [2, 6, 4, 12])])
def test_short_runs_are_no_loops(width: int, extents: list[int]):
    graph = Graph("heads")
    x = graph.input("x", (2, 4, 6, width))
    graph.output(
        "y", graph.apply("reshape", x.apply("permute", x, order=(0, 2, 1, 3)), shape=(2, 6, 4 * width))
    )
    (nest,) = check(graph, 1).kernels[0].nests
    assert [loop.extent for loop in nest.outer] == extents


@pytest.mark.parametrize(("mode", "parts"), [("reflect", 9), ("edge", 9), ("wrap", 9), ("constant", 5)])
def test_padding_is_cut_along_every_axis(mode: str, parts: int):
    graph = Graph("padded")
    graph.output("y", graph.input("x", (2, 6, 8)).pad([(0, 0), (1, 2), (3, 1)], mode=mode))
    (kernel,) = check(graph, 1).kernels
    assert len(kernel.nests) == parts
    assert not any(one.guards for nest in kernel.nests for one in nest.body if isinstance(one, Load))


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_padding_by_more_than_there_is_is_counted_round(mode: str):
    graph = Graph("padded")
    graph.output("y", graph.input("x", (2, 3)).pad([(0, 0), (7, 5)], mode=mode))
    check(graph, 1)
