"""roi_align against samples taken one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.compiler import Graph
from kernels_hub.compiler.errors import EvaluateError, ShapeError, TypeRuleError
from tests.compiler.oracle import array, run


def align(x, regions, images, **attrs):
    return run(lambda *values: values[0].graph.apply("roi_align", *values, **attrs), x, regions, images)


def pixel(image: np.ndarray, y: float, x: float) -> float:
    """Bilinear between the four pixels around; 0 more than one pixel outside."""
    height, width = image.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return 0.0
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    row, column = min(int(y), height - 1), min(int(x), width - 1)
    below, right = min(row + 1, height - 1), min(column + 1, width - 1)
    dy, dx = y - row, x - column
    top = image[row, column] * (1 - dx) + image[row, right] * dx
    return float(top * (1 - dy) + (image[below, column] * (1 - dx) + image[below, right] * dx) * dy)


def by_definition(x, regions, images, height, width, scale, offset):
    result = np.zeros((len(regions), x.shape[1], height, width))
    for n, (region, image) in enumerate(zip(regions, images, strict=True)):
        left, top, right, bottom = (float(corner) * scale - offset for corner in region)
        high, wide = bottom - top, right - left
        if not offset:
            high, wide = max(high, 1.0), max(wide, 1.0)
        down, across = math.ceil(high / height), math.ceil(wide / width)
        for c in range(x.shape[1]):
            for i in range(height):
                for j in range(width):
                    seen = [
                        pixel(
                            x[image, c].astype(float),
                            top + high / height * (i + (a + 0.5) / down),
                            left + wide / width * (j + (b + 0.5) / across),
                        )
                        for a in range(down)
                        for b in range(across)
                    ]
                    result[n, c, i, j] = sum(seen) / max(len(seen), 1)
    return result


CORNERS = st.lists(st.tuples(*[st.integers(-24, 64)] * 4), min_size=0, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    CORNERS, st.sampled_from([0.0, 0.5]), st.sampled_from([1.0, 0.25]), st.integers(1, 3), st.integers(1, 3)
)
def test_roi_align(corners, offset, scale, height, width):
    x = array(2, 2, 5, 7, seed=3)
    regions = np.array(corners, np.float32).reshape(-1, 4) / 8
    images = np.arange(len(regions)) % 2
    got = align(x, regions, images, height=height, width=width, scale=scale, offset=offset)
    assert got.dtype == np.float32
    wanted = by_definition(x, regions, images, height, width, scale, offset)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_the_definition_samples_pixels():
    x = np.arange(4.0).reshape(1, 1, 2, 2)
    assert by_definition(x, [[0, 0, 2, 2]], [0], 2, 2, 1.0, 0.5).reshape(-1).tolist() == [0, 1, 2, 3]
    assert by_definition(x, [[0, 0, 2, 2]], [0], 1, 1, 1.0, 0.5).item() == 1.5
    assert by_definition(x, [[9, 9, 12, 12]], [0], 1, 1, 1.0, 0.5).item() == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(dtype):
    x, regions = array(1, 2, 6, 6, dtype=dtype), np.array([[0, 1, 4, 5]]).astype(array(1, dtype=dtype).dtype)
    got = align(x, regions, np.array([0]), height=2, width=2)
    wanted = by_definition(x, regions, [0], 2, 2, 1.0, 0.5)
    assert got.dtype == x.dtype
    assert np.abs(got.astype(float) - wanted).max() < 1e-2


def test_refusals():
    x, regions, images = array(2, 1, 4, 4), array(3, 4), np.array([0, 2, 1])
    with pytest.raises(EvaluateError, match="a region is of image 0 to 2 of 2"):
        align(x, regions, images, height=1, width=1)
    with pytest.raises(EvaluateError, match="a corner of a region is not finite"):
        align(x, regions * np.inf, images % 2, height=1, width=1)
    graph = Graph()
    a, b, c = graph.input("a", (1, 1, 4, 4)), graph.input("b", ("n", 4)), graph.input("c", ("n",), "int64")
    assert str(graph.apply("roi_align", a, b, c, height=2, width=3).type) == "float32[n, 1, 2, 3]"
    with pytest.raises(ShapeError, match=r"dim 1 of the regions .* is 5, but the corners of a region is 4"):
        graph.apply("roi_align", a, graph.input("d", ("n", 5)), c, height=2, width=3)
    with pytest.raises(TypeRuleError, match="height is 0"):
        graph.apply("roi_align", a, b, c, height=0, width=3)
    with pytest.raises(TypeRuleError, match="floats of one dtype, not float32 and float64"):
        graph.apply("roi_align", a, graph.input("e", ("n", 4), "float64"), c, height=1, width=1)
