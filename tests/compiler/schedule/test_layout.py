"""Where results of convolutions and products lie: as the graph says, or with their columns side by side, then copied."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.schedule.layout import stands_alone
from kernels_hub.compiler.schedule.schedule import schedule
from tests.compiler.schedule.run import run_schedule
from tests.compiler.schedule.test_fuse import check


def convolution(channels: int, height: int | str, width: int) -> Graph:
    graph = Graph("convolution")
    x = graph.input("x", (1, channels, height, width))
    data = np.random.default_rng(0).standard_normal((64, channels, 3, 3)).astype(np.float32)
    w = graph.parameter("w", data.shape, data=data)
    y = graph.apply("conv", x, w, strides=(1, 1), dilations=(1, 1), padding=((1, 1), (1, 1)), groups=1)
    graph.output("y", y + 1.0)
    return graph


@pytest.mark.parametrize(
    ("channels", "height", "width", "alone"),
    [
        (32, 28, 28, True),  # deep: 288 multiplications an element
        (32, 32, 32, False),  # channels 4 KiB apart, in one set of the cache
        (32, 16, 16, True),  # as crowded, and few
        (128, 16, 24, True),  # 1.5 KiB
        (128, 16, 32, False),  # 2 KiB
        (8, 28, 28, False),  # shallow and large
        (32, "h", 32, True),  # nothing is known of how far apart
    ],
)
def test_a_convolution_alone(channels: int, height: int | str, width: int, alone: bool):
    assert stands_alone(convolution(channels, height, width)) is alone


def test_a_crowded_convolution_is_converted_before_and_behind():
    check(convolution(32, 28, 28), 1, tolerance=1e-3)
    check(convolution(32, 32, 32), 3, tolerance=1e-3)


@pytest.mark.parametrize(("rows", "kernels"), [(255, 1), (256, 2)])
def test_columns_of_a_product_are_stored_apart_where_they_do_not_crowd(rows: int, kernels: int):
    graph = Graph("product")
    x = graph.input("x", (1, rows, 320))
    w = graph.constant(np.random.default_rng(0).standard_normal((320, 128)).astype(np.float32))
    graph.output("y", graph.apply("permute", x @ w, order=(0, 2, 1)))
    check(graph, kernels, tolerance=1e-3)


@pytest.mark.parametrize("groups", [2, 4])
def test_sums_over_groups_of_channels_lie_channels_last(groups: int):
    """Split attention: a convolution's channels in groups, which are added up."""
    rng = np.random.default_rng(0)
    graph = Graph("split")
    x = graph.input("x", (2, 6, 9, 9))
    data = rng.standard_normal((16, 6, 3, 3)).astype(np.float32)
    w = graph.parameter("w", data.shape, data=data)
    y = graph.apply("conv", x, w, strides=(1, 1), dilations=(1, 1), padding=((1, 1), (1, 1)), groups=1)
    graph.output("y", y.reshape((2, groups, 16 // groups, 9, 9)).sum((1,)).exp().sum((2, 3)))
    made = schedule(graph)
    (buffer,) = {
        one for kernel in made.kernels for one in kernel.writes() if one.shape == (2, 16 // groups, 9, 9)
    }
    assert (buffer.strides[1], buffer.strides[3]) == (1, 16 // groups)
    inputs = graph.dummy_inputs(0, {})
    found = run_schedule(made, graph, inputs, {})["y"]
    np.testing.assert_allclose(found, evaluate(graph, inputs)["y"], rtol=1e-4, atol=1e-4)


def test_the_place_of_the_largest_channel_of_a_pixel():
    """As a segmentation model gives it: the reduction's result has pixels, and its op one axis."""
    graph = Graph("classes")
    x = graph.input("x", (2, 6, 5, 5))
    data = np.random.default_rng(0).standard_normal((8, 6, 3, 3)).astype(np.float32)
    w = graph.parameter("w", data.shape, data=data)
    y = graph.apply("conv", x, w, strides=(1, 1), dilations=(1, 1), padding=((1, 1), (1, 1)), groups=1)
    split = y.reshape((2, 2, 4, 5, 5))
    graph.output("classes", graph.apply("argmax", y, axis=1))
    graph.output("of groups", graph.apply("argmax", split, axis=1))
    inputs = graph.dummy_inputs(0, {})
    found, expected = run_schedule(schedule(graph), graph, inputs, {}), evaluate(graph, inputs)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
