"""What `expanded` writes out in other ops: transposed convolutions, interpolation, taps that see padding alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.errors import ShapeError
from kernels_hub.compiler.schedule.expand import expanded
from kernels_hub.compiler.schedule.inlining import refused
from kernels_hub.compiler.schedule.schedule import schedule
from tests.compiler.schedule.run import run_schedule

SEARCH = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def input_of(graph: Graph, draw, channels: int, sizes: dict[str, int], rank: int):
    """An input of a batch, channels and `rank` more dims, each of a name or a number."""
    dims: list[str | int] = []
    for axis in range(rank):
        size = draw(st.integers(1, 6))
        if draw(st.booleans()):
            sizes[f"d{axis}"] = size
            dims.append(f"d{axis}")
        else:
            dims.append(size)
    return graph.input("x", (draw(st.integers(1, 2)), channels, *dims))


def assert_written_out(graph: Graph, sizes: dict[str, int], op: str) -> None:
    """The schedule gives what the oracle does, and an op is gone."""
    assert refused(graph) == {}
    assert op not in {node.op.name for node in expanded(graph).live()}
    inputs = graph.dummy_inputs(0, sizes)
    expected = evaluate(graph, inputs, bindings=sizes)["y"]
    actual = run_schedule(schedule(graph), graph, inputs, sizes)["y"]
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-5)


@SEARCH
@given(data=st.data())
def test_transposed_convolutions(data):
    draw, sizes, graph = data.draw, {}, Graph("transposed")
    rank, groups = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    channels, outputs = groups * draw(st.integers(2, 3)), draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 5)) for _ in range(rank)]
    strides = [draw(st.integers(1, 3)) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) if stride == 1 else 1 for stride in strides]
    padding = [(draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in range(rank)]
    extra = [draw(st.integers(0, stride - 1)) for stride in strides]
    x = input_of(graph, draw, channels, sizes, rank)
    w = graph.constant(np.random.default_rng(0).standard_normal((channels, outputs, *kernel), np.float32))
    try:
        y = graph.apply(
            "conv_transpose", x, w, strides=strides, dilations=dilations, padding=padding, groups=groups,
            output_padding=extra,
        )  # fmt: skip
        graph.output("y", y.relu())
        evaluate(graph, graph.dummy_inputs(0, sizes), bindings=sizes)
    except (ShapeError, ValueError):
        return  # padding leaves nothing
    assert_written_out(graph, sizes, "conv_transpose")


@SEARCH
@given(data=st.data())
def test_interpolation(data):
    draw, sizes, graph = data.draw, {}, Graph("resize")
    x = input_of(graph, draw, 2, sizes, 2)
    fixed = not sizes
    mode = draw(st.sampled_from(["nearest", "linear", "cubic"]))
    shape, scales = list(x.shape), [1.0] * 4
    for axis in (2, 3):
        factor = draw(st.integers(1, 3))
        shape[axis] = x.shape[axis] * factor if draw(st.booleans()) or not fixed else draw(st.integers(1, 12))
        scales[axis] = float(factor)
    coordinates = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
    attrs = {
        "mode": mode,
        "coordinates": draw(st.sampled_from(coordinates + ["half_pixel_symmetric"] * fixed)),
        "nearest": draw(st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])),
        "exclude_outside": mode != "nearest" and draw(st.booleans()),
    }
    if not fixed and draw(st.booleans()):
        attrs["scales"] = scales
    y = graph.apply("resize", x, shape=shape, **attrs)
    graph.output("y", y * 2.0)
    assert_written_out(graph, sizes, "" if mode == "nearest" else "resize")


@pytest.mark.parametrize(
    "attrs",
    [{"coordinates": "crop", "roi": (0, 0, 0.2, 0, 1, 1, 0.8, 1)}, {"mode": "cubic", "antialias": True}],
)
def test_interpolation_that_is_left_to_others(attrs):
    graph = Graph("resize")
    x = graph.input("x", (1, 1, "h", 4))
    graph.output("y", graph.apply("resize", x, shape=(1, 1, 7, 9), **attrs))
    assert refused(graph)


def test_a_deconvolution_of_each_channel_is_left_to_others():
    graph = Graph("depthwise")
    x, w = graph.input("x", (1, 4, 5, 5)), graph.input("w", (4, 1, 2, 2))
    attrs = {"strides": (2, 2), "dilations": (1, 1), "padding": ((0, 0), (0, 0)), "output_padding": (0, 0)}
    graph.output("y", graph.apply("conv_transpose", x, w, groups=4, **attrs))
    assert refused(graph)


CASES = {
    # kernel, strides, dilations, padding, pixels -> the kernel that is left
    "no tap but the middle one": ((3, 3), (1, 1), (24, 24), ((24, 24), (24, 24)), (16, 16), (1, 1)),
    "one dim": ((3, 3), (1, 1), (1, 9), ((1, 1), (9, 9)), (4, 8), (3, 1)),
    "the last two taps": ((1, 3), (1, 1), (1, 5), ((0, 0), (4, 0)), (1, 8), (1, 2)),
    "the first tap, and pixels that nothing sees": ((1, 2), (1, 1), (1, 9), ((0, 0), (9, 0)), (1, 3), (1, 1)),
    "strided": ((1, 5), (1, 2), (1, 4), ((0, 0), (8, 8)), (1, 4), (1, 1)),
    "all see": ((3, 3), (1, 1), (2, 2), ((2, 2), (2, 2)), (5, 5), (3, 3)),
}


@pytest.mark.parametrize("case", CASES)
def test_taps_that_see_padding_alone(case):
    kernel, strides, dilations, padding, pixels, left = CASES[case]
    graph = Graph("blind")
    x = graph.input("x", (2, 4, *pixels))
    w = graph.constant(np.random.default_rng(1).standard_normal((6, 2, *kernel), np.float32))
    y = graph.apply("conv", x, w, strides=strides, dilations=dilations, padding=padding, groups=2)
    graph.output("y", y)
    (conv,) = [node for node in expanded(graph).live() if node.op.name == "conv"]
    assert conv.operands[1].shape[2:] == left
    assert_written_out(graph, {}, "")


# name -> (input channels, output channels, kernel, padding, pixels), and pixels in a block
TO_FEW = {
    "a filter of a line": ((1, 1, (25,), ((12, 12),), (200,)), 16),
    "a filter without padding": ((1, 1, (9,), ((0, 0),), (301,)), 8),
    "a filter of the past": ((1, 1, (33,), ((32, 0),), (150,)), 8),
    "audio of a decoder": ((8, 1, (7,), ((3, 3),), (130,)), 8),
    "two channels": ((3, 2, (5,), ((2, 2),), (97,)), 4),
    "an image": ((6, 3, (3, 3), ((1, 1), (1, 1)), (9, 31)), 2),
    "an image, padded on one side": ((4, 1, (3, 5), ((1, 1), (0, 4)), (5, 70)), 4),
}


@pytest.mark.parametrize("case", TO_FEW)
def test_convolutions_to_few_channels(case):
    (channels, outputs, kernel, padding, pixels), block = TO_FEW[case]
    graph, ones = Graph("few"), [1] * len(kernel)
    x = graph.input("x", (2, channels, *pixels))
    w = graph.constant(np.random.default_rng(1).standard_normal((outputs, channels, *kernel), np.float32))
    y = graph.apply("conv", x, w, strides=ones, dilations=ones, padding=padding, groups=1)
    graph.output("y", y.relu())
    (conv,) = [node for node in expanded(graph, cpu=True).live() if node.op.name == "conv"]
    assert conv.operands[1].shape == (block * outputs, channels, *kernel[:-1], kernel[-1] + block - 1)
    assert conv.attrs["strides"][-1] == block
    assert_written_out(graph, {}, "")


@pytest.mark.parametrize(
    "change",
    [{"strides": [2]}, {"dilations": [2]}, {"groups": 2}, {"outputs": 16}, {"pixels": "n"}, {"taps": 1}],
)
def test_convolutions_that_gain_nothing_by_blocks(change):
    given = {"strides": [1], "dilations": [1], "groups": 1, "outputs": 2, "pixels": 64, "taps": 9, **change}
    graph = Graph("few")
    x = graph.input("x", (1, 2, given["pixels"]))
    w = graph.input("w", (given["outputs"], 2 // given["groups"], given["taps"]))
    attrs = {name: given[name] for name in ("strides", "dilations", "groups")}
    graph.output("y", graph.apply("conv", x, w, padding=[(4, 4)], **attrs))
    (conv,) = [node for node in expanded(graph, cpu=True).live() if node.op.name == "conv"]
    assert conv.operands[1].shape == w.shape


def test_other_targets_make_no_blocks():
    graph = Graph("few")
    x, w = graph.input("x", (1, 1, 64)), graph.input("w", (1, 1, 9))
    graph.output("y", graph.apply("conv", x, w, strides=[1], dilations=[1], padding=[(4, 4)], groups=1))
    (conv,) = [node for node in expanded(graph).live() if node.op.name == "conv"]
    assert conv.attrs["strides"] == (1,)


def test_many_parts_of_a_concat_are_loops_of_their_own():
    """A dense block of 20 layers asks no element which part it is in."""
    graph = Graph("dense")
    parts = [graph.input(f"x{place}", (2, 3, 5)) for place in range(20)]
    x = graph.apply("concat", *parts, axis=1)
    graph.output("y", (x * 2.0).relu())
    (kernel,) = schedule(graph).kernels
    assert len(kernel.nests) == 20
    (whole,) = schedule(graph, most_parts=8).kernels
    assert len(whole.nests) == 1
    assert math.prod(loop.extent for loop in whole.nests[0].outer) == 2 * 60 * 5


@pytest.mark.parametrize(
    ("pixels", "most_parts", "kernels"),
    [(784, 64, 2), (16, 64, 1), (784, 8, 1)],
    ids=["loops are cut", "few elements", "each part would be a launch"],
)
def test_a_reduction_of_a_concat_is_a_nest_of_its_own_where_that_one_is_cut(pixels, most_parts, kernels):
    """Squeeze and excitation behind a ghost block, a group norm behind a skip connection."""
    graph = Graph("squeeze")
    parts = [graph.input(f"x{place}", (1, 12, pixels)) for place in range(3)]
    joined = graph.apply("concat", *parts, axis=1).relu()
    graph.output("joined", joined)
    graph.output("total", joined.sum((2,)))
    made = schedule(graph, most_parts=most_parts).kernels
    assert len(made) == kernels
    if kernels > 1:
        assert [len(kernel.nests) for kernel in made] == [3, 1]
    inputs = graph.dummy_inputs(0, {})
    found = run_schedule(schedule(graph, most_parts=most_parts), graph, inputs, {})
    for name, expected in evaluate(graph, inputs).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)


_ROWS = [[3.0, math.nan, 1.0, 1.0, -2.0], [0.5, 0.25, math.inf, -math.inf, 7.0], [math.nan] * 5]
_ORDERED = {
    "argkth": ({"k": 2, "axis": 1}, ()),
    "argmedian": ({"axis": 1}, ()),
    "argmedian of numbers": ({"axis": 1, "ignore_nan": True}, ()),
    "argmedian down": ({"axis": 0}, ()),
    "searchsorted": ({}, ((3, 2), [[0.0, 9.0], [0.5, math.nan], [1.0, -1.0]])),
    "searchsorted right": ({"right": True}, ((3, 2), [[1.0, 3.0], [7.0, math.inf], [1.0, -1.0]])),
    "isin": ({}, ((3,), [1.0, math.nan, 0.25])),
    "logcumsumexp": ({"axis": 1}, ()),
    "logcumsumexp down": ({"axis": 0}, ()),
}


@pytest.mark.parametrize("named", _ORDERED)
@pytest.mark.parametrize("free", [False, True])
def test_what_sorting_decides(named, free):
    """With NaN, infinities and rows that are in no order."""
    (attrs, more), op = _ORDERED[named], named.partition(" ")[0]
    graph, sizes = Graph("ordered"), {"rows": 3} if free else {}
    x = graph.input("x", ("rows" if free else 3, 5))
    others = ()
    inputs = {"x": np.array(_ROWS, np.float32)}
    if more:
        shape, numbers = more
        others = (graph.input("v", ("rows", *shape[1:]) if free and len(shape) > 1 else shape),)
        inputs["v"] = np.array(numbers, np.float32)
    graph.output("y", graph.apply(op, x, *others, **attrs))
    if named == "logcumsumexp down" and free:
        assert refused(graph) != {}, "of a length that is not known"
        return
    remains = op in {node.op.name for node in expanded(graph).live()}
    assert refused(graph) == {} and remains == (op == "argkth")
    expected = evaluate(graph, inputs, bindings=sizes)["y"]
    actual = run_schedule(schedule(graph), graph, inputs, sizes)["y"]
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
