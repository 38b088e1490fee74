"""Views, reductions, contractions, pooling, resizing and indexing against torch and NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kernels_hub.compiler import Graph, evaluate, verify
from kernels_hub.compiler.errors import EvaluateError, ShapeError, TypeRuleError
from kernels_hub.compiler.ir.types import DTYPES
from tests.compiler.oracle import array, assert_same, run, to_torch

FLOATS = ("float16", "bfloat16", "float32", "float64")


# -- views

VIEWS = {
    "reshape": (lambda v: v.reshape(4, -1), lambda x: x.reshape(4, -1)),
    "reshape to nothing smaller": (lambda v: v.reshape(-1), lambda x: x.reshape(-1)),
    "permute": (lambda v: v.permute(2, 0, 1), lambda x: x.transpose(2, 0, 1)),
    "permute twice": (lambda v: v.permute(2, 0, 1).permute(1, 2, 0), lambda x: x),
    "transpose": (lambda v: v.transpose(), lambda x: np.swapaxes(x, -1, -2)),
    "flip": (lambda v: v.flip(0, -1), lambda x: np.flip(x, (0, 2))),
    "slice": (lambda v: v.slice(2, 1, -1, 2), lambda x: x[:, :, 1:-1:2]),
    "slice far": (lambda v: v.slice(1, -100, 100), lambda x: x[:, -100:100]),
    "slice nothing": (lambda v: v.slice(1, 3, 1), lambda x: x[:, 3:1]),
    "slice back": (lambda v: v.slice(2, None, None, -2), lambda x: x[:, :, ::-2]),
    "slice back from": (lambda v: v.slice(2, -2, 0, -1), lambda x: x[:, :, -2:0:-1]),
    "slice back far": (lambda v: v.slice(2, 100, -100, -3), lambda x: x[:, :, 100:-100:-3]),
    "unsqueeze": (lambda v: v.unsqueeze(0, -1), lambda x: x[None, ..., None]),
    "squeeze": (lambda v: v.unsqueeze(1).squeeze(), lambda x: x),
    "flatten": (lambda v: v.flatten(1), lambda x: x.reshape(x.shape[0], -1)),
    "broadcast": (lambda v: v.unsqueeze(1).broadcast_to(7, 2, 5, 3, 4), lambda x: np.broadcast_to(x[:, None], (7, 2, 5, 3, 4))),
    "broadcast by axes": (lambda v: v.broadcast((2, 9, 3, 4), (0, 2, 3)), lambda x: np.broadcast_to(x[:, None], (2, 9, 3, 4))),
    "windows": (lambda v: v.windows(2, 2, 2), lambda x: np.lib.stride_tricks.sliding_window_view(x, 2, 2)[:, :, ::2]),
    "diagonal": (
        lambda v: v.graph.apply("strided", v, shape=(2, 3), strides=(12, 5)),
        lambda x: np.diagonal(x, axis1=1, axis2=2),
    ),
    "split": (lambda v: v.split([1, 3], 2), lambda x: np.split(x, [1], 2)),
}  # fmt: skip


@pytest.mark.parametrize(
    "dtype", ["float32", "int8", "bool", "bfloat16", "float8_e4m3fn", "complex64", "int4"]
)
@pytest.mark.parametrize("name", VIEWS)
def test_views(name, dtype):
    build, expected = VIEWS[name]
    x = array(2, 3, 4, dtype="float32").astype(DTYPES[dtype].numpy)
    got, wanted = run(build, x), expected(x)
    for one, other in zip(got, wanted, strict=True) if isinstance(got, list) else [(got, wanted)]:
        assert one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap", "constant"])
@pytest.mark.parametrize("padding", [((1, 2), (0, 0), (3, 1)), ((0, 0), (5, 7), (0, 9)), ((0, 0),) * 3])
def test_pad(mode, padding):
    x = array(2, 3, 4)
    more = {"constant_values": 7} if mode == "constant" else {}
    assert_same(run(lambda v: v.pad(padding, 7.0, mode=mode), x), np.pad(x, padding, mode, **more))


def test_pad_of_one_element_and_of_none():
    one, none = array(1), array(0)
    assert_same(run(lambda v: v.pad([(2, 3)], mode="reflect"), one), np.full(6, one[0]))
    assert_same(run(lambda v: v.pad([(1, 2)], 3.0), none), np.full(3, 3, np.float32))
    with pytest.raises(ShapeError, match="nothing to pad with"):
        run(lambda v: v.pad([(1, 2)], mode="edge"), none)


def test_concat():
    x, y, z = array(2, 3), array(2, 0), array(2, 1, seed=1)
    assert_same(run(lambda *v: v[0].graph.apply("concat", *v, axis=1), x, y, z), np.concatenate([x, y, z], 1))


# -- reductions

AXES = [None, (0,), (1,), (0, 2), (), (-1, -2)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("kind", ["sum", "mean", "prod", "max", "min"])
def test_reductions(kind, axes, dtype):
    x = array(2, 3, 4, dtype=dtype)
    x[1, 1, 1] = np.nan if kind != "prod" else 2
    function = {"max": np.max, "min": np.min, "sum": np.sum, "mean": np.mean, "prod": np.prod}[kind]
    expected = function(x.astype(np.float64), axes).astype(x.dtype)
    assert_same(run(lambda v: v.reduce(kind, axes), x), expected)
    kept = function(x.astype(np.float64), axes, keepdims=True).astype(x.dtype)
    assert_same(run(lambda v: v.reduce(kind, axes, keepdims=True), x), kept)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "int64"])
def test_integer_reductions(dtype):
    x = array(5, 7, dtype=dtype, low=0, high=25)
    for kind, function in {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}.items():
        expected = function(x, 1, dtype=dtype) if kind in {"sum", "prod"} else function(x, 1)
        assert_same(run(lambda v, k=kind: v.reduce(k, 1), x), expected)


def test_reductions_of_nothing():
    x = array(3, 0)
    assert run(lambda v: v.sum(1), x).tolist() == [0] * 3
    assert run(lambda v: v.reduce("prod", 1), x).tolist() == [1] * 3
    assert run(lambda v: v.max(1), x).tolist() == [-np.inf] * 3
    assert run(lambda v: v.min(1), x.astype(np.int8)).tolist() == [127] * 3
    assert np.isnan(run(lambda v: v.mean(1), x)).all()
    assert run(lambda v: v.reduce("any", 1), x.astype(bool)).tolist() == [False] * 3
    assert run(lambda v: v.reduce("all", 1), x.astype(bool)).tolist() == [True] * 3
    with pytest.raises(EvaluateError, match="there is no element"):
        run(lambda v: v.along("argmax", 1), x)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint8"])
def test_arg_reductions_sort_and_topk(dtype, descending, axis):
    x = array(4, 9, dtype=dtype, low=0, high=1.5)
    if dtype in FLOATS:
        x[1, 4] = np.nan
    wide = x.astype(np.float64)
    assert_same(run(lambda v: v.along("argmax", axis), x), np.argmax(wide, axis))
    assert_same(run(lambda v: v.along("argmin", axis), x), np.argmin(wide, axis))
    expected = torch.sort(to_torch(x), dim=axis, stable=True, descending=descending)
    values, order = run(lambda v: v.sort(axis, descending=descending), x)
    assert_same(values, expected.values)
    assert_same(order, expected.indices)
    values, order = run(lambda v: v.topk(3, axis, largest=descending), x)
    assert_same(values, expected.values.narrow(axis, 0, 3))
    assert_same(order, expected.indices.narrow(axis, 0, 3))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_and_scans(axis, dtype):
    x = array(3, 4, 5, dtype=dtype)
    wide = to_torch(x.astype(np.float64))
    back = lambda t: t.numpy().astype(x.dtype)  # noqa: E731
    assert_same(run(lambda v: v.softmax(axis), x), back(wide.softmax(axis)))
    assert_same(run(lambda v: v.along("log_softmax", axis), x), back(wide.log_softmax(axis)))
    assert_same(run(lambda v: v.along("cumsum", axis), x), back(wide.cumsum(axis)))
    assert_same(run(lambda v: v.along("cumprod", axis), x), back(wide.cumprod(axis)))
    assert_same(run(lambda v: v.along("cummax", axis), x), back(wide.cummax(axis).values))
    assert_same(run(lambda v: v.along("cummin", axis), x), back(wide.cummin(axis).values))


def test_scans_exclusive_and_reverse():
    x = np.array([1, 2, 3, 4], np.int32)
    assert run(lambda v: v.cumulate("sum", 0, exclusive=True), x).tolist() == [0, 1, 3, 6]
    assert run(lambda v: v.cumulate("sum", 0, reverse=True), x).tolist() == [10, 9, 7, 4]
    assert run(lambda v: v.cumulate("sum", 0, exclusive=True, reverse=True), x).tolist() == [9, 7, 4, 0]
    assert run(lambda v: v.cumulate("prod", 0, exclusive=True), x).tolist() == [1, 1, 2, 6]


def test_softmax_of_large_numbers_and_of_nothing():
    x = np.array([[1e4, 1e4, -np.inf]], np.float32)
    assert run(lambda v: v.softmax(), x).tolist() == [[0.5, 0.5, 0]]
    assert run(lambda v: v.softmax(), array(2, 0)).shape == (2, 0)


# -- contractions

MATMULS = [((2, 3), (3, 4)), ((3,), (3,)), ((5, 2, 3), (3, 4)), ((5, 1, 2, 3), (6, 3, 1)), ((3,), (5, 3, 2)),
           ((2, 3), (3,)), ((0, 3), (3, 2)), ((2, 0), (0, 3)), ((0, 1, 3), (0, 3, 2))]  # fmt: skip


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "complex64"])
@pytest.mark.parametrize(("a", "b"), MATMULS)
def test_matmul(a, b, dtype):
    x, y = array(*a, dtype=dtype), array(*b, dtype=dtype, seed=1)
    if dtype in FLOATS:
        expected = np.matmul(x.astype(np.float64), y.astype(np.float64)).astype(x.dtype)
    else:
        expected = np.matmul(x, y)
    assert_same(run(lambda p, q: p @ q, x, y), np.asarray(expected))


def test_matmul_of_mixed_dtypes():
    x, y = array(3, 5, dtype="int8", low=-30, high=30), array(5, 2, dtype="uint8", low=0, high=60, seed=1)
    expected = np.matmul(x.astype(np.int32), y.astype(np.int32))
    assert_same(run(lambda a, b: a.matmul(b, to="int32"), x, y), expected)
    half, wide = array(3, 5, dtype="float8_e4m3fn"), array(5, 2, dtype="bfloat16")
    got = run(lambda a, b: a.matmul(b, to="float32"), half, wide)
    assert_same(got, half.astype(np.float32) @ wide.astype(np.float32))
    with pytest.raises(TypeRuleError, match="say the result's dtype"):
        run(lambda a, b: a @ b, x, y)
    with pytest.raises(TypeRuleError, match="mixes kinds"):
        run(lambda a, b: a.matmul(b, to="float32"), x, y)


@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
@pytest.mark.parametrize("ends", [[2, 2, 7], [0, 7, 7], [0, 0, 5], [7, 7, 7]])
def test_grouped_matmul(ends, dtype):
    x, w = array(7, 5, dtype=dtype), array(3, 5, 4, dtype=dtype, seed=1)
    starts = [0, *ends]
    expected = np.zeros((7, 4), x.dtype)
    for group, end in enumerate(ends):
        expected[starts[group] : end] = run(lambda a, b: a @ b, x[starts[group] : end], w[group])
    found = run(lambda a, b, c: a.graph.apply("grouped_matmul", a, b, c), x, w, np.array(ends, np.int32))
    assert_same(found, expected)


def test_grouped_matmul_refuses():
    x, w, ends = array(7, 5), array(3, 5, 4, seed=1), np.array([2, 2, 7])
    apply = lambda a, b, c: a.graph.apply("grouped_matmul", a, b, c)  # noqa: E731
    with pytest.raises(ShapeError, match="number of groups"):
        run(apply, x, w, ends[:2])
    with pytest.raises(ShapeError, match="dim 1 of operand 0"):
        run(apply, x[:, :4], w, ends)
    with pytest.raises(TypeRuleError, match="are integers, not float64"):
        run(apply, x, w, ends.astype(np.float64))


CONVS = [
    # spatial, kernel, channels (in, out), groups, strides, dilations, padding
    ((7,), (3,), (2, 4), 1, (1,), (1,), ((0, 0),)),
    ((8,), (3,), (4, 6), 2, (2,), (2,), ((1, 3),)),
    ((6, 7), (3, 2), (3, 5), 1, (1, 2), (1, 1), ((1, 1), (0, 2))),
    ((9, 9), (3, 3), (4, 8), 4, (2, 3), (2, 1), ((2, 0), (1, 4))),
    ((5, 6), (1, 1), (3, 2), 1, (2, 2), (1, 1), ((0, 0), (0, 0))),
    ((4, 5, 6), (2, 3, 2), (2, 4), 2, (1, 2, 1), (1, 1, 2), ((0, 1), (1, 0), (2, 2))),
    ((3, 3), (3, 3), (2, 2), 1, (1, 1), (1, 1), ((0, 0), (0, 0))),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CONVS, ids=str)
def test_conv(case, dtype):
    spatial, kernel, (inputs, outputs), groups, strides, dilations, padding = case
    x, w = (
        array(2, inputs, *spatial, dtype=dtype),
        array(outputs, inputs // groups, *kernel, dtype=dtype, seed=1),
    )
    flat = [one for pair in reversed(padding) for one in pair]
    function = (F.conv1d, F.conv2d, F.conv3d)[len(spatial) - 1]
    wide = F.pad(to_torch(x.astype(np.float64)), flat)
    expected = (
        function(wide, to_torch(w.astype(np.float64)), None, strides, 0, dilations, groups)
        .numpy()
        .astype(x.dtype)
    )
    attrs = {"strides": strides, "dilations": dilations, "padding": padding, "groups": groups}
    assert_same(run(lambda a, b: a.graph.apply("conv", a, b, **attrs), x, w), expected)


@pytest.mark.parametrize("output_padding", [0, 1])
@pytest.mark.parametrize("case", CONVS, ids=str)
def test_conv_transpose(case, output_padding):
    spatial, kernel, (outputs, inputs), groups, strides, dilations, padding = case
    rank = len(spatial)
    if any(output_padding >= max(s, d) for s, d in zip(strides, dilations, strict=True)):
        output_padding = 0
    x, w = array(2, inputs, *spatial), array(inputs, outputs // groups, *kernel, seed=1)
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    full = function(
        to_torch(x).double(), to_torch(w).double(), None, strides, 0, output_padding, groups, dilations
    )
    crop = tuple(slice(low, full.shape[2 + i] - high) for i, (low, high) in enumerate(padding))
    attrs = {"strides": strides, "dilations": dilations, "padding": padding, "groups": groups}
    attrs["output_padding"] = (output_padding,) * rank
    expected = full[(..., *crop)].float()
    assert_same(run(lambda a, b: a.graph.apply("conv_transpose", a, b, **attrs), x, w), expected)


def test_conv_of_integers_and_of_nothing():
    x, w = array(1, 2, 5, dtype="int8"), array(3, 2, 3, dtype="uint8", low=0, seed=1)
    attrs = {"strides": (1,), "dilations": (1,), "padding": ((0, 0),)}
    got = run(lambda a, b: a.graph.apply("conv", a, b, dtype="int32", **attrs), x, w)
    assert_same(got, F.conv1d(to_torch(x).double(), to_torch(w).double()).to(torch.int32))
    assert run(lambda a, b: a.graph.apply("conv", a, b, **attrs), array(0, 2, 5), array(3, 2, 3)).shape == (
        0,
        3,
        3,
    )
    with pytest.raises(ShapeError, match="smaller than the kernel"):
        run(lambda a, b: a.graph.apply("conv", a, b, **attrs), array(1, 2, 1), array(3, 2, 3))


# -- pooling

POOLS = [
    # spatial, kernel, strides, padding, dilations, ceil
    ((8,), (3,), (2,), (0,), (1,), False),
    ((8,), (3,), (2,), (1,), (1,), True),
    ((7, 9), (3, 2), (2, 2), (1, 1), (1, 1), True),
    ((7, 9), (3, 3), (3, 2), (1, 0), (2, 3), False),
    ((6, 6), (2, 3), (3, 4), (1, 1), (1, 1), True),
    ((4, 5, 6), (2, 2, 3), (1, 2, 3), (1, 0, 1), (1, 1, 1), True),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("case", POOLS, ids=str)
def test_max_pool(case, dtype):
    spatial, kernel, strides, padding, dilations, ceil = case
    x = array(2, 3, *spatial, dtype=dtype)
    if dtype != "int32":
        x[0, 0].flat[3] = np.nan
    attrs = {
        "kernel": kernel,
        "strides": strides,
        "padding": [(p, p) for p in padding],
        "dilations": dilations,
        "ceil": ceil,
    }
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(spatial) - 1]
    values, places = function(
        to_torch(x).double(), kernel, strides, padding, dilations, ceil, return_indices=True
    )
    got = run(lambda v: [v.graph.apply(op, v, **attrs) for op in ("max_pool", "argmax_pool")], x)
    assert_same(got[0], values.numpy().astype(x.dtype))
    assert_same(got[1][1:], places[1:])


@pytest.mark.parametrize("count", ["inside", "padded"])
@pytest.mark.parametrize("case", [case for case in POOLS if set(case[4]) == {1}], ids=str)
def test_avg_pool(case, count):
    spatial, kernel, strides, padding, _, ceil = case
    x = array(2, 3, *spatial)
    attrs = {
        "kernel": kernel,
        "strides": strides,
        "padding": [(p, p) for p in padding],
        "dilations": (1,) * len(spatial),
    }
    function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(spatial) - 1]
    expected = function(to_torch(x).double(), kernel, strides, padding, ceil, count == "padded").float()
    assert_same(run(lambda v: v.graph.apply("avg_pool", v, ceil=ceil, count=count, **attrs), x), expected)


def test_sum_pool():
    x = array(1, 2, 7, 8)
    attrs = {"kernel": (3, 2), "strides": (2, 2), "padding": ((0, 0), (0, 0)), "dilations": (1, 1)}
    got = run(lambda v: v.graph.apply("sum_pool", v * v, **attrs).sqrt(), x)
    assert_same(got, F.lp_pool2d(to_torch(x), 2, (3, 2), (2, 2)))


# -- resize

INTERPOLATIONS = [
    ("nearest", "linear", "asymmetric", "floor", {"mode": "nearest"}),
    ("nearest-exact", "nearest", "half_pixel", "round_prefer_ceil", {"mode": "nearest-exact"}),
    ("bilinear", "linear", "half_pixel", "floor", {"mode": "bilinear", "align_corners": False}),
    ("bilinear corners", "linear", "align_corners", "floor", {"mode": "bilinear", "align_corners": True}),
    ("bicubic", "cubic", "half_pixel", "floor", {"mode": "bicubic", "align_corners": False}),
    ("bicubic corners", "cubic", "align_corners", "floor", {"mode": "bicubic", "align_corners": True}),
]


@pytest.mark.parametrize("size", [(5, 7), (9, 4), (12, 14), (1, 1)])
@pytest.mark.parametrize("case", INTERPOLATIONS, ids=lambda case: case[0])
def test_resize(case, size):
    name, mode, coordinates, rounding, options = case
    mode = "nearest" if name == "nearest" else mode
    x = array(2, 3, 6, 7)
    attrs = {"shape": (2, 3, *size), "mode": mode, "coordinates": coordinates, "nearest": rounding}
    expected = F.interpolate(to_torch(x).double(), size, **options).float()
    assert_same(run(lambda v: v.graph.apply("resize", v, **attrs), x), expected)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_with_antialias(mode):
    x = array(1, 2, 9, 12)
    name = {"linear": "bilinear", "cubic": "bicubic"}[mode]
    expected = F.interpolate(to_torch(x).double(), (4, 5), mode=name, antialias=True).float()
    attrs = {"shape": (1, 2, 4, 5), "mode": mode, "antialias": True, "exclude_outside": True, "cubic_a": -0.5}
    assert_same(run(lambda v: v.graph.apply("resize", v, **attrs), x), expected)


# -- indexing


@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16", "bool"])
def test_gather(dtype):
    x, index = array(4, 5, dtype=dtype), np.array([[0, -1, 2], [3, 3, -4]])
    assert_same(run(lambda v, i: v.gather(i, 1), x, index), np.take(x, index, 1))
    assert_same(
        run(lambda v, i: v.gather_elements(i, 0), x, index[:, :3]), np.take_along_axis(x[:, :3], index % 4, 0)
    )
    assert_same(run(lambda v, i: v.gather(i.reshape(()), 0), x, np.array([2])), x[2])


def test_gather_nd():
    x = array(2, 3, 4, 5)
    index = np.array([[[0, 1], [-1, 3]], [[2, 0], [1, -4]]])
    nd = lambda v, i, b: v.graph.apply("gather_nd", v, i, batch_dims=b)  # noqa: E731
    assert_same(
        run(lambda v, i: nd(v, i, 1), x, index),
        np.stack([x[b][index[b, :, 0], index[b, :, 1]] for b in (0, 1)]),
    )
    short = np.array([[0, 1], [1, 2]])
    assert_same(run(lambda v, i: nd(v, i, 0), x, short), x[[0, 1], [1, 2]])
    assert_same(run(lambda v, i: nd(v, i, 0), x, np.zeros((2, 0), np.int64)), np.stack([x, x]))


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter(reduction):
    x, updates = array(4, 5), array(2, 3, seed=1)
    index = np.array([[0, 3, 2], [0, 1, 2]]) if reduction != "none" else np.array([[0, 3, 2], [1, -2, 3]])
    name = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}.get(reduction)
    t, i, u = to_torch(x), torch.from_numpy(index % 4), to_torch(updates)
    expected = t.scatter(0, i, u) if name is None else t.scatter_reduce(0, i, u, name)
    scatter = lambda a, b, c: a.graph.apply("scatter_elements", a, b, c, axis=0, reduction=reduction)  # noqa: E731
    assert_same(run(scatter, x, index, updates), expected)


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_scatter_nd(reduction):
    x, updates, index = (
        array(4, 5),
        array(3, 5, seed=1),
        np.array([[0], [2], [-1 if reduction == "none" else 0]]),
    )
    expected = x.copy()
    if reduction == "none":
        expected[index[:, 0]] = updates
    else:
        {"add": np.add, "max": np.maximum}[reduction].at(expected, index[:, 0], updates)
    scatter = lambda a, b, c: a.graph.apply("scatter_nd", a, b, c, reduction=reduction)  # noqa: E731
    assert_same(run(scatter, x, index, updates), expected)


def test_an_index_out_of_range_is_named():
    for index in (4, -5):
        with pytest.raises(EvaluateError, match=rf"gather.*index {index} is out of range of a dim of 4"):
            run(lambda v, i: v.gather(i, 0), array(4, 5), np.array([0, index]))


def test_nothing_is_indexed():
    assert run(lambda v, i: v.gather(i, 0), array(0, 5), np.zeros((0,), np.int64)).shape == (0, 5)


# -- sources


def test_iota_and_full():
    assert_same(run(lambda g: g.iota(5, "float16")), np.arange(5, dtype=np.float16))
    assert_same(run(lambda g: g.full((2, 0, 3), 7, "int8")), np.full((2, 0, 3), 7, np.int8))


def test_random_bits_are_philox():
    """The vectors of Random123 for counter 0 and key 0, and Triton's own randint."""
    got = run(lambda g: g.apply("random_bits", g.random_key(0), shape=(4,)))
    assert got[0] == 0x6627E8D5
    other = run(lambda g: g.apply("random_bits", g.random_key(1), shape=(1000,)))
    again = run(lambda g: g.apply("random_bits", g.random_key(1), shape=(10, 100)))
    assert np.array_equal(other, again.reshape(-1)) and len(set(other.tolist())) == 1000
    assert abs(other.mean() / 2**32 - 0.5) < 0.05


def test_shapes_that_contradict_are_both_named():
    cases = {
        r"dim 2 of operand 0 \[2, 3, 4\] is 4, but dim 1 of operand 1 \[2, 5, 6\] is 5": lambda: run(
            lambda a, b: a @ b, array(2, 3, 4), array(2, 5, 6)
        ),
        r"\[2, 3\] and \[4, 3\] do not broadcast: 2 against 4": lambda: run(
            lambda a, b: a + b, array(2, 3), array(4, 3)
        ),
        r"number of elements of \[2, 3\] is 6, but that of \[4, 2\] is 8": lambda: run(
            lambda a: a.reshape(4, 2), array(2, 3)
        ),
        r"reshape|does not split": lambda: run(lambda a: a.reshape(4, -1), array(2, 3)),
        r"operand 0 without dim 0.*operand 1": lambda: run(
            lambda a, b: a.graph.apply("concat", a, b, axis=0), array(2, 3), array(2, 4)
        ),
    }
    for match, case in cases.items():
        with pytest.raises(ShapeError, match=match):
            case()


@pytest.mark.parametrize("axes", [(3,), (-4,), (0, 0), (0, -4), (1, 5)])
def test_new_dims_at_places_that_there_are_not(axes):
    value = Graph("g").input("x", (2, 3))
    with pytest.raises(
        ShapeError, match=f"are no {len(axes)} different axes of a result of rank {2 + len(axes)}"
    ):
        value.unsqueeze(*axes)


def test_every_combination_of_axes_of_a_permute():
    x = array(2, 3, 4)
    for order in itertools.permutations(range(3)):
        assert_same(run(lambda v, o=order: v.permute(*o), x), x.transpose(order))


def test_topk_of_a_dim_that_is_not_known():
    graph = Graph("g")
    values, _ = graph.input("x", ("n",)).topk(3)
    graph.output("y", values)
    assert evaluate(graph, [array(5)])["y"].shape == (3,)
    with pytest.raises(EvaluateError, match="argtopk"):
        evaluate(graph, [array(2)])
    with pytest.raises(ShapeError, match="k 3 is not within dim 0"):
        graph.input("z", (2,)).topk(3)


@pytest.mark.parametrize("op", ["max_pool", "avg_pool"])
@pytest.mark.parametrize("case", POOLS, ids=str)
def test_pooling_over_dims_that_are_not_known(case, op):
    spatial, kernel, strides, padding, dilations, ceil = case
    graph = Graph("g")
    x = graph.input("x", ("n", 3, *(f"s{i}" for i in range(len(spatial)))))
    attrs = {
        "kernel": kernel,
        "strides": strides,
        "padding": [(p, p) for p in padding],
        "dilations": dilations,
    }
    graph.output("y", graph.apply(op, x, ceil=ceil, **attrs))
    data = array(2, 3, *spatial)
    expected = run(lambda v: v.graph.apply(op, v, ceil=ceil, **attrs), data)
    assert_same(evaluate(verify(graph), [data])["y"], expected)


@pytest.mark.parametrize("op", ["conv", "conv_transpose"])
@pytest.mark.parametrize("case", CONVS, ids=str)
def test_convolution_over_dims_that_are_not_known(case, op):
    spatial, kernel, (inputs, outputs), groups, strides, dilations, padding = case
    first, second = (outputs, inputs // groups) if op == "conv" else (inputs, outputs // groups)
    attrs = {"strides": strides, "dilations": dilations, "padding": padding, "groups": groups}
    if op == "conv_transpose":
        attrs["output_padding"] = (0,) * len(spatial)
    graph = Graph("g")
    x = graph.input("x", ("n", inputs, *(f"s{i}" for i in range(len(spatial)))))
    w = graph.input("w", (first, second, *kernel))
    graph.output("y", graph.apply(op, x, w, **attrs))
    arrays = array(2, inputs, *spatial), array(first, second, *kernel, seed=1)
    expected = run(lambda a, b: a.graph.apply(op, a, b, **attrs), *arrays)
    assert_same(evaluate(verify(graph), arrays)["y"], expected)
