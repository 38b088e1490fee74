"""Ops of ONNX whose results are as long as the data tell: imported for any call, not for one set of values."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from kernels_hub.compiler import compile as compile_model
from kernels_hub.compiler.errors import EvaluateError
from kernels_hub.compiler.importers.onnx import OnnxImportError, import_onnx
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.verify import verify
from tests.compiler.importers.test_onnx import agrees, ops, parse, random


def test_boxes_are_suppressed_and_gathered_in_every_call():
    model = parse("""
    g (float[1, n, 4] boxes, float[1, 2, n] scores) => (float[k, 4] kept, int64[k, 3] places) {
        limit = Constant<value_ints = [3]>()
        overlap = Constant<value_floats = [0.3]>()
        least = Constant<value_floats = [0.1]>()
        places = NonMaxSuppression<center_point_box = 1>(boxes, scores, limit, overlap, least)
        axis = Constant<value_ints = [1]>()
        first = Constant<value_ints = [2]>()
        last = Constant<value_ints = [3]>()
        column = Slice(places, first, last, axis)
        at = Squeeze(column, axis)
        front = Constant<value_ints = [0]>()
        flat = Squeeze(boxes, front)
        kept = Gather(flat, at)
    }
    """)
    random = np.random.default_rng(0)
    for n in (1, 7, 30):
        centres = random.uniform(0, 1, (1, n, 4)).astype(np.float32)
        graph = agrees(model, centres, random.uniform(0, 1, (1, 2, n)).astype(np.float32))
    assert list(graph.inputs) == ["boxes", "scores"]
    assert "suppress_boxes" in ops(graph)


def unique_model(attributes: str) -> onnx.ModelProto:
    model = parse(f"g (int64[3, n] x) => (int64[a, b] y, int64[c] i, int64[d] j, int64[e] k) {{"
                  f" y, i, j, k = Unique<{attributes}>(x) }}")  # fmt: skip
    if "axis" not in attributes:
        del model.graph.output[0].type.tensor_type.shape.dim[0]
    return model


@pytest.mark.parametrize("attributes", ["sorted = 1", "axis = 1", "axis = -2"])
def test_unique_in_every_call(attributes: str):
    for n in (1, 5, 12):
        graph = agrees(unique_model(attributes), np.random.default_rng(0).integers(0, 3, (3, n)))
    assert ops(graph).count("unique") == 1


def test_unique_in_the_order_in_which_they_come():
    """Not against the reference, which fails at sorted = 0 of what is no vector."""
    graph = verify(import_onnx(unique_model("sorted = 0")))
    got = evaluate(graph, [np.array([[4, 2], [2, 4], [7, 1]])])
    wanted = [[4, 2, 7, 1], [0, 1, 4, 5], [0, 1, 1, 0, 2, 3], [2, 2, 1, 1]]
    assert [got[name].tolist() for name in "yijk"] == wanted
    graph = verify(import_onnx(unique_model("axis = -1, sorted = 0")))
    x = np.array([[2, 0, 2, 1, 0], [2, 0, 2, 1, 0], [1, 9, 1, 1, 0]])
    got = evaluate(graph, [x])
    assert np.array_equal(got["y"], x[:, [0, 1, 3, 4]])
    assert [got[name].tolist() for name in "ijk"] == [[0, 1, 3, 4], [0, 1, 0, 2, 3], [2, 1, 1, 1]]


def test_tensors_picked_by_one_mask_have_one_size():
    """x[mask] and y[mask], as torch.onnx.export writes them: a NonZero for each, also of a copy of the mask."""
    model = parse("""
    g (float[n] x, float[n] y, float[n] limit) => (float[k] z) {
        mask = Greater(x, limit)
        first = NonZero(mask)
        rows = Transpose(first)
        left = GatherND(x, rows)
        again = Greater(x, limit)
        second = NonZero(again)
        columns = Transpose(second)
        right = GatherND(y, columns)
        z = Mul(left, right)
    }
    """)
    generator = np.random.default_rng(0)
    for n in (1, 7, 30):
        arrays = generator.normal(size=(3, n)).astype(np.float32)
        graph = agrees(model, *arrays)
    assert ops(graph).count("nonzero") == 1


@pytest.mark.parametrize(("first", "step"), [(0, 1), (-2, 3), (5, 1)])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_range_is_as_long_as_computed_floats_say(first: int, step: int, backwards: bool):
    """Speech synthesis: durations are predicted, and their sum is how many frames there are."""
    ends = "total, start, step" if backwards else "start, total, step"
    model = parse(f"""
    g (float[n] x) => (int64[k] y, int64[k] z) {{
        durations = Ceil(x)
        axis = Constant<value_ints = [0]>()
        summed = ReduceSum<keepdims = 0>(durations, axis)
        total = Cast<to = 7>(summed)
        start = Constant<value_int = {first}>()
        step = Constant<value_int = {-step if backwards else step}>()
        frames = Range({ends})
        again = Range({ends})
        shifted = Add(again, total)
        y = Identity(frames)
        z = Mul(frames, shifted)
    }}
    """)
    generator = np.random.default_rng(0)
    for n in (1, 7, 30):
        graph = agrees(model, generator.uniform(0, 3, n).astype(np.float32))
    assert ops(graph).count("define_size") == 1


FILLED = """
g (float[b, n] x, float[1, 4] w) => (float[b, k] zeros, float[b, j] row) {
    axes = Constant<value_ints = [0, 1]>()
    summed = ReduceSum<keepdims = 0>(x, axes)
    total = Cast<to = 7>(summed)
    first = Constant<value_ints = [0]>()
    columns = Unsqueeze(total, first)
    shape = Shape(x)
    rows = Gather(shape, first)
    wanted = Concat<axis = 0>(rows, columns)
    zeros = ConstantOfShape(wanted)
    one = ReduceSum(w, axes)
    row = Expand(one, wanted)
}
"""


def test_tensors_are_made_of_sizes_that_computed_floats_tell():
    generator, w = np.random.default_rng(0), random(1, 4)
    for shape in ((1, 4), (3, 7), (2, 2)):
        graph = agrees(parse(FILLED), generator.uniform(0, 3, shape).astype(np.float32), w)
    assert ops(graph).count("define_size") == 1
    run = compile_model(parse(FILLED))
    for shape in ((3, 5), (2, 9)):
        x = generator.uniform(0, 3, shape).astype(np.float32)
        got, wanted = run.arrays({"x": x, "w": w}), evaluate(graph, [x, w])
        np.testing.assert_array_equal(got["zeros"], wanted["zeros"])
        np.testing.assert_allclose(got["row"], wanted["row"], rtol=1e-6)


def test_a_size_below_0_is_told():
    graph = import_onnx(parse(FILLED))
    with pytest.raises(EvaluateError, match=r"-2 contradicts .* >= 0"):
        evaluate(graph, [np.full((1, 2), -1, np.float32), random(1, 4)])


def test_a_range_without_a_step_is_refused():
    model = parse("""
    g (float[n] x) => (int64[k] y) {
        axis = Constant<value_ints = [0]>()
        summed = ReduceSum<keepdims = 0>(x, axis)
        total = Cast<to = 7>(summed)
        zero = Constant<value_int = 0>()
        y = Range(zero, total, zero)
    }
    """)
    with pytest.raises(OnnxImportError, match="its step is 0"):
        import_onnx(model)


def test_what_is_known_is_picked_while_importing():
    model = parse("g (float[2] x) => (float[3] y) { c = Constant<value_floats = [2.0, 1.0, 2.0, 3.0]>()\n"
                  "y, i, j, k = Unique(c) }")  # fmt: skip
    graph = agrees(model, random(2))
    assert "unique" not in ops(graph)
    assert graph.outputs["y"].shape == (3,)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
def test_regions_of_any_size_are_aligned(mode: str, ratio: int, coordinates: str):
    model = parse(f"""
    g (float[2, 3, 9, 12] x, float[n, 4] rois, int64[n] images) => (float[n, 3, 2, 3] y) {{
        y = RoiAlign<output_height = 2, output_width = 3, sampling_ratio = {ratio}, spatial_scale = 0.5,
            coordinate_transformation_mode = "{coordinates}", mode = "{mode}">(x, rois, images)
    }}
    """)
    rois = [
        [0, 0, 24, 18],
        [1, 2, 3, 4],
        [-9, -5, 40, 33],
        [20, 3, 21, 17],
        [2.5, 7, 9.25, 8],
        [60, 60, 70, 90],
    ]
    graph = agrees(model, random(2, 3, 9, 12), np.array(rois, np.float32), np.array([0, 1, 1, 0, 0, 1]))
    assert ("roi_align" in ops(graph)) == (ratio == 0)


@pytest.mark.parametrize("axes", ["axes = [0], ", ""])
def test_the_mean_of_what_no_mask_picked_is_0(axes: str):
    """As in ONNX Runtime; it was NaN."""
    model = parse(
        "g (float[6, 3] x, bool[6] mask) => (float[a] y) { z = Compress<axis = 0>(x, mask)"
        f" m = ReduceMean<{axes}keepdims = 0>(z) shape = Constant<value_ints = [-1]>() y = Reshape(m, shape) }}"
    )
    model.opset_import[0].version = 17
    x = random(6, 3)
    session = pytest.importorskip("onnxruntime", reason="needs onnxruntime").InferenceSession(
        model.SerializeToString()
    )
    for mask in (np.zeros(6, bool), np.arange(6) == 2, np.arange(6) > 1):
        (expected,) = session.run(None, {"x": x, "mask": mask})
        (found,) = evaluate(import_onnx(model), [x, mask]).values()
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        (found,) = compile_model(model, "cpu", wait=True).arrays([x, mask]).values()
        np.testing.assert_allclose(found, expected, rtol=1e-6)
