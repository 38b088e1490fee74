"""The library engine against the oracle: every op, every dtype that it takes, special values, shapes, regions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.engines import guard
from kernels_hub.compiler.engines.library import ENGINE
from kernels_hub.compiler.engines.library_ops import kernel_of
from kernels_hub.compiler.engines.tensors import to_array, to_tensor
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir import ops, types
from kernels_hub.compiler.ir.op import Trait
from tests.compiler.engines.executed import (
    CPU,
    array,
    assert_agrees,
    assert_close,
    graph_of,
    special,
)

POINTWISE = [row.name for row in ops.OPS.values() if Trait.POINTWISE in row.traits and "cast" not in row.name]
WHOLE = [row.name for row in types.DTYPES.values() if row.bits >= 8 and row.name != "float8_e8m0fnu"]
REALS = [name for name in WHOLE if types.dtype(name).kind in {"int", "uint", "float"} and name != "uint64"]
FLOATS = [name for name in REALS if types.dtype(name).is_float]
EVERY = list(types.DTYPES)
LEFT_TO_THE_ORACLE = {"roi_align", "suppress_boxes"}


def test_every_op_of_the_table_has_a_kernel():
    regions = {row.name for row in ops.OPS.values() if Trait.REGION in row.traits}
    known = {name for name, row in ops.OPS.items() if kernel_of(row) is not None}
    assert set(ops.OPS) - regions - {"input", "parameter", "constant"} - LEFT_TO_THE_ORACLE == known


def test_a_wrong_result_is_noticed():
    good = np.array([1.0, np.inf, np.nan, 1e-3], np.float32)
    for place, wrong in ((0, 1.00002), (1, -np.inf), (2, 0.0), (3, np.nan), (3, 2e-3)):
        bad = good.copy()
        bad[place] = wrong
        with pytest.raises(AssertionError):
            assert_close(bad, good, scale=False)
    with pytest.raises(AssertionError):
        assert_close(np.array([1, 2]), np.array([1, 3]))
    with pytest.raises(AssertionError):
        assert_close(good[:2], good[:1])


# -- one op


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name):
    """Every pair of special values, in every dtype that the kernel takes and the op's rules allow."""
    tried = 0
    for dtype in sorted(kernel_of(ops.OPS[name]).dtypes or ()):
        numbers = (
            special(dtype)
            if types.dtype(dtype).bits >= 8 and dtype != "float8_e8m0fnu"
            else array((6,), dtype)
        )
        if name == "select":
            arrays = [np.arange(len(numbers)) % 2 == 0, numbers, numbers[::-1].copy()]
        else:
            arrays = [one.copy() for one in np.meshgrid(*[numbers] * ops.OPS[name].arity, indexing="ij")]
        if name == "complex":  # NumPy's a + 1j * b makes NaN of infinities
            arrays = [np.where(np.isfinite(one), one, 0) for one in arrays]
        try:
            graph = graph_of(name, arrays)
        except types.TypeRuleError:
            continue
        tried += 1
        assert_agrees(ENGINE, graph, arrays, scale=types.dtype(dtype).is_complex)
    assert tried


def test_signs_of_zeros():
    numbers = np.array([0.0, -0.0, 6.0, -6.0], np.float32)
    a, b = (one.copy() for one in np.meshgrid(numbers, np.array([3.0, -3.0], np.float32)))
    for name in ("mod", "fmod", "mul", "div", "floordiv"):
        graph = graph_of(name, [a, b])
        (actual,) = guard.compiled(ENGINE, graph, CPU).compute([to_tensor(a), to_tensor(b)])
        assert np.array_equal(np.signbit(actual.numpy()), np.signbit(evaluate(graph, [a, b])["y0"])), name


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "int64"])
@pytest.mark.parametrize("name", ["div", "floordiv", "mod", "fmod"])
def test_division_by_a_constant(name, dtype):
    x = special(dtype)
    for number in (3, 1, 0, -1, -4):
        if number < types.dtype(dtype).limits[0]:
            continue
        graph = Graph("case")
        value = graph.input("x", x.shape, dtype)
        graph.output("y", value.binary(name, number))
        assert_agrees(ENGINE, graph, [x])


def test_a_constant_divisor_needs_no_masked_arrays(monkeypatch):
    """np.unique imports numpy.ma: 6 ms of the opening of a model that divides integers."""
    monkeypatch.delattr(np, "unique")
    graph = Graph("case")
    graph.output("y", graph.input("x", (3,), "int64").binary("floordiv", 3))
    (actual,) = guard.compiled(ENGINE, graph, CPU).compute([to_tensor(np.array([7, -7, 2]))])
    assert actual.tolist() == [2, -3, 0]


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -0.5, -1.0, 1.0, 0.0, -2.0, 2.5, math.inf, math.nan])
def test_powers_of_constants(exponent):
    for dtype in ("float32", "float64", "float16"):
        x = special(dtype)
        graph = Graph("case")
        graph.output("y", graph.input("x", x.shape, dtype) ** exponent)
        assert_agrees(ENGINE, graph, [x], scale=False)


def cast_numbers(row):
    if row.bits <= 8 and row.is_float:
        codes = np.arange(1 << row.bits, dtype=np.uint8)
        return codes.view(row.numpy)
    if row.bits < 8:
        return array((40,), row.name)
    numbers = special(row.name)
    if row.is_float:
        random = np.random.default_rng(0)
        edges = [
            464,
            463.9,
            464.1,
            480,
            57344,
            61440,
            65519,
            65520,
            255.5,
            256,
            -0.9,
            -1.1,
            2.0**31,
            -(2.0**63),
            2.0**63,
        ]
        more = np.concatenate([edges, random.standard_normal(300), random.standard_normal(300) * 300])
        with np.errstate(all="ignore"):
            numbers = np.concatenate([numbers, more.astype(np.float32).astype(row.numpy)])
    return numbers


@pytest.mark.parametrize("source", EVERY)
def test_casts(source):
    """To every dtype, in and out of range, saturating and not: the very bits."""
    numbers = cast_numbers(types.dtype(source))
    taken = set()
    for to in EVERY:
        for saturate in (False, True):
            graph = graph_of("cast", [numbers], dtype=to, saturate=saturate)
            if not ENGINE.check(graph, CPU):
                continue
            taken.add(to)
            (actual,) = guard.compiled(ENGINE, graph, CPU).compute([to_tensor(numbers)])
            found, expected = to_array(actual, types.dtype(to)), evaluate(graph, [numbers])["y0"]
            if types.dtype(to).bits < 8:
                mask = (1 << types.dtype(to).bits) - 1
                assert np.array_equal(found.view(np.uint8) & mask, expected.view(np.uint8) & mask), to
            else:
                assert_close(found, expected, scale=False)
    assert taken >= (
        {"float32", "int64", "bool"} if source not in {"float4_e2m1fn", "float8_e8m0fnu"} else {source}
    )


MOVES = [
    ("reshape", [(2, 3, 4)], {"shape": (4, 6)}),
    ("broadcast", [(2, 4)], {"shape": (2, 3, 4, 5), "axes": (0, 2)}),
    ("permute", [(2, 3, 4)], {"order": (2, 0, 1)}),
    ("slice", [(5, 6)], {"starts": (1, 0), "stops": (4, 6), "steps": (2, 1)}),
    ("slice", [(5, 6)], {"starts": (1, 1), "stops": (1, 6), "steps": (1, 3)}),
    ("flip", [(3, 4)], {"axes": (0, 1)}),
    ("pad", [(2, 3), ()], {"padding": ((1, 0), (2, 1))}),
    ("pad", [(2, 3)], {"padding": ((1, 0), (7, 4)), "mode": "reflect"}),
    ("pad", [(2, 3)], {"padding": ((1, 0), (7, 4)), "mode": "edge"}),
    ("pad", [(2, 3)], {"padding": ((1, 0), (7, 4)), "mode": "wrap"}),
    ("concat", [(2, 3), (2, 1), (2, 0)], {"axis": 1}),
]
STRIDED = [
    {"shape": (2, 3, 2), "strides": (4, 1, 1), "offset": 1},
    {"shape": (3, 4), "strides": (-4, -1), "offset": 11},
    {"shape": (0, 4), "strides": (4, 1)},
]


@pytest.mark.parametrize("dtype", EVERY)
def test_moves(dtype):
    for op, shapes, attrs in MOVES:
        arrays = [array(shape, dtype, seed=place) for place, shape in enumerate(shapes)]
        assert_agrees(ENGINE, graph_of(op, arrays, **attrs), arrays)
    if dtype != "float8_e5m2":  # which NumPy's own as_strided does not know
        for attrs in STRIDED:
            x = array((3, 4), dtype)
            assert_agrees(ENGINE, graph_of("strided", [x], **attrs), [x])


PAIRS = np.array([[0, -1], [2, 1]])
THREE = np.array([[0, -1], [2, 1], [0, 0]])


@pytest.mark.parametrize("dtype", EVERY)
def test_gathers(dtype):
    for index in (np.int64, np.int32):
        for shape, axis in (((3, 4), 1), ((4, 3), 0)):
            for places in (PAIRS, np.array(-2), np.zeros((0, 2))):
                arrays = [array(shape, dtype), places.astype(index)]
                assert_agrees(ENGINE, graph_of("gather", arrays, axis=axis), arrays)
        arrays = [array((3, 4), dtype), PAIRS.astype(index)]
        assert_agrees(ENGINE, graph_of("gather_elements", arrays, axis=1), arrays)
        arrays = [array((3, 4, 2), dtype), PAIRS.astype(index)]
        assert_agrees(ENGINE, graph_of("gather_nd", arrays), arrays)
        arrays = [array((2, 4, 3), dtype), np.array([[[1], [-1]], [[0], [3]]], index)]
        assert_agrees(ENGINE, graph_of("gather_nd", arrays, batch_dims=1), arrays)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatters(reduction):
    """Places that are hit twice included: the last stays, or all of them count."""
    for dtype in EVERY if reduction == "none" else REALS:
        arrays = [array((3, 4), dtype), THREE, array((3, 2), dtype, seed=1)]
        assert_agrees(ENGINE, graph_of("scatter_elements", arrays, axis=1, reduction=reduction), arrays)
        arrays = [array((3, 4), dtype), np.array([[0], [-1], [0]]), array((3, 4), dtype, seed=1)]
        assert_agrees(ENGINE, graph_of("scatter_nd", arrays, reduction=reduction), arrays)
        arrays = [array((3, 4, 2), dtype), THREE.reshape(3, 1, 2) % 3, array((3, 1, 2), dtype, seed=1)]
        assert_agrees(ENGINE, graph_of("scatter_nd", arrays, reduction=reduction), arrays)


@pytest.mark.parametrize(
    ("op", "sizes", "index"),
    [
        ("gather", (3, 4), [4]),
        ("gather", (3, 4), [-5]),
        ("gather_elements", (3, 4), [[4]]),
        ("gather_nd", (3, 4), [[0, 4]]),
    ],
)
def test_an_index_out_of_range_is_an_error_that_names_the_node(op, sizes, index):
    arrays = [array(sizes, "float32"), np.array(index)]
    graph = graph_of(op, arrays, **({} if op == "gather_nd" else {"axis": 1}))
    with pytest.raises(EngineError, match=rf"library.*%2 = {op}\(%0, %1\) of float32"):
        guard.compiled(ENGINE, graph, CPU).compute([to_tensor(one) for one in arrays])


def test_a_place_out_of_range_is_not_written():
    arrays = [array((3, 4), "float32"), np.array([[0, 4]]), array((1,), "float32")]
    with pytest.raises(EngineError, match="out of range"):
        guard.compiled(ENGINE, graph_of("scatter_nd", arrays), CPU).compute(
            [to_tensor(one) for one in arrays]
        )


def unruly(dtype):
    """Equal rows, NaN, infinities, both zeros."""
    x = array((4, 6), dtype, -3, 3)
    if types.dtype(dtype).is_float:
        x[0, 1] = x[0, 4] = np.nan
        if "e4m3" not in dtype:
            x[1, 2], x[3, 1] = np.inf, -np.inf
    x[2] = x[2, 0]
    return x


@pytest.mark.parametrize("dtype", REALS)
def test_order(dtype):
    x = unruly(dtype)
    cases = [(name, {"axis": axis}) for name in ("argmax", "argmin") for axis in (0, 1)]
    cases += [("argsort", {"axis": axis, "descending": down}) for axis in (0, 1) for down in (False, True)]
    cases += [
        ("argtopk", {"k": k, "axis": 1, "largest": largest}) for k in (1, 3) for largest in (True, False)
    ]
    for name, attrs in cases:
        assert_agrees(ENGINE, graph_of(name, [x], **attrs), [x])


@pytest.mark.parametrize("dtype", [*WHOLE[: -0 or None]])
def test_reductions(dtype):
    kind = types.dtype(dtype).kind
    names = {
        "bool": ["any", "all"],
        "float": ["sum", "mean", "prod", "max", "min"],
        "complex": ["sum", "mean", "prod"],
    }
    for name in names.get(kind, ["sum", "prod", "max", "min"]):
        for shape in ((3, 4, 5), (3, 0, 5)):
            for axes in ((), (1,), (0, 2), (0, 1, 2)):
                x = array(shape, dtype, -3, 3)
                graph = graph_of(f"reduce_{name}", [x], axes=axes)
                if ENGINE.check(graph, CPU):
                    assert_agrees(ENGINE, graph, [x])
                else:
                    assert dtype == "uint64"


@pytest.mark.parametrize("dtype", REALS)
def test_reductions_and_scans_of_special_values(dtype):
    x = unruly(dtype)
    for name in ("reduce_max", "reduce_min"):
        assert_agrees(ENGINE, graph_of(name, [x], axes=(1,)), [x])
    if types.dtype(dtype).is_float:
        for name in ("softmax", "log_softmax"):
            assert_agrees(ENGINE, graph_of(name, [x], axis=1), [x])
    if "float8" not in dtype:
        for name in ("cummax", "cummin", "cumsum", "cumprod"):
            assert_agrees(ENGINE, graph_of(name, [x], axis=1), [x])


# -- contractions, pools, resize


@pytest.mark.parametrize("dtype", [*REALS, "complex64", "complex128"])
def test_matmul(dtype):
    for left, right in (((2, 3, 5, 7), (2, 3, 7, 4)), ((5, 7), (7, 4)), ((5, 0), (0, 4))):
        arrays = [array(left, dtype), array(right, dtype, seed=1)]
        assert_agrees(ENGINE, graph_of("matmul", arrays), arrays)


@pytest.mark.parametrize("dtype", REALS)
def test_grouped_matmul(dtype):
    arrays = [array((7, 5), dtype), array((3, 5, 4), dtype, seed=1), np.array([2, 2, 6], np.int32)]
    assert_agrees(ENGINE, graph_of("grouped_matmul", arrays), arrays)


MIXED = [
    ("int8", "uint8", "int32", None), ("uint8", "uint8", "int32", None), ("bfloat16", "bfloat16", "float32", None),
    ("float16", "bfloat16", "float32", None), ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float32"),
    ("float16", "float16", "float16", "float16"), ("float32", "float64", "float64", None), ("int16", "int32", "int64", None),
    ("int8", "int8", "int8", None), ("uint8", "int8", "int16", "int32"), ("float32", "float32", "bfloat16", "float32"),
    ("float16", "float16", "float16", "float32"),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right", "result", "sums"), MIXED)
def test_mixed_dtypes(left, right, result, sums):
    attrs = {"dtype": result, "accumulate": sums}
    arrays = [array((3, 5, 70), left, -128, 255), array((3, 70, 4), right, -128, 255, seed=1)]
    assert_agrees(ENGINE, graph_of("matmul", arrays, **attrs), arrays)
    attrs |= {"strides": (1, 1), "dilations": (1, 1), "padding": ((0, 0), (0, 0))}
    arrays = [array((2, 8, 5, 5), left, -128, 255), array((4, 8, 3, 3), right, -128, 255, seed=1)]
    assert_agrees(ENGINE, graph_of("conv", arrays, **attrs), arrays)


CONVOLVED = [
    (dtype, rank)
    for dtype in ("float32", "float64", "bfloat16", "int8", "int64", "complex64")
    for rank in (1, 2, 3)
]


@pytest.mark.parametrize(("dtype", "rank"), [*CONVOLVED, ("float32", 4), ("int64", 4)])
def test_convolutions(dtype, rank):
    spatial = (6, 5, 4, 3)[:rank]
    ones, twos = (1,) * rank, (2,) * rank
    odd = {"strides": (2, *ones[1:]), "dilations": ones, "padding": ((1, 0), *((1, 1),) * (rank - 1))}
    cases = [
        ("conv", (6, 2, *twos), odd | {"groups": 2}),
        ("conv", (6, 4, *twos), {"strides": ones, "dilations": (2, *ones[1:]), "padding": ((1, 1),) * rank}),
        ("conv", (6, 4, *spatial), {"strides": ones, "dilations": ones, "padding": ((0, 0),) * rank}),
        ("conv_transpose", (4, 3, *twos), odd | {"groups": 2, "output_padding": (3, *(0,) * (rank - 1))}),
        ("conv_transpose", (4, 3, *(3,) * rank),
         {"strides": twos, "dilations": ones, "padding": ((1, 1),) * rank, "output_padding": ones}),
    ]  # fmt: skip
    for op, kernel, attrs in cases:
        arrays = [array((2, 4, *spatial), dtype), array(kernel, dtype, seed=1)]
        assert_agrees(ENGINE, graph_of(op, arrays, **attrs), arrays)
    arrays = [array((0, 4, *spatial), dtype), array((6, 4, *twos), dtype)]
    assert_agrees(ENGINE, graph_of("conv", arrays, **cases[1][2]), arrays)


WINDOWS = [
    {"kernel": (2, 3), "strides": (2, 2), "dilations": (1, 1), "padding": ((0, 0), (1, 1))},
    {"kernel": (3, 2), "strides": (2, 1), "dilations": (1, 2), "padding": ((1, 1), (0, 0))},
    {"kernel": (3, 2), "strides": (2, 3), "dilations": (1, 1), "padding": ((2, 0), (1, 2)), "ceil": True},
    {"kernel": (3, 2), "strides": (2, 3), "dilations": (1, 1), "padding": ((1, 1), (0, 0)), "ceil": True},
]


@pytest.mark.parametrize("dtype", REALS)
def test_pools(dtype):
    x = array((2, 3, 7, 6), dtype)
    if types.dtype(dtype).is_float:
        x[0, 0, 2, 2] = np.nan
        if "float8" not in dtype:
            x[0, 1] = -np.inf
    for window in WINDOWS:
        for op in ("max_pool", "argmax_pool", "sum_pool"):
            assert_agrees(ENGINE, graph_of(op, [x], **window), [x])
        for count in ("inside", "padded") if types.dtype(dtype).is_float else ():
            assert_agrees(ENGINE, graph_of("avg_pool", [x], count=count, **window), [x])
    for rank in (1, 3, 4):
        window = {
            "kernel": (2,) * rank,
            "strides": (2,) * rank,
            "dilations": (1,) * rank,
            "padding": ((1, 1),) * rank,
        }
        y = array((2, 3, *(5,) * rank), dtype)
        for op in ("max_pool", "argmax_pool", *(("avg_pool",) if types.dtype(dtype).is_float else ())):
            assert_agrees(ENGINE, graph_of(op, [y], **window), [y])


@pytest.mark.parametrize(
    "place", ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
)
def test_resize(place):
    for scales in ((), (1.0, 1.0, 1.7, 0.55)):
        attrs = {"shape": (2, 3, 11, 3), "scales": scales, "coordinates": place}
        for dtype in ("float32", "uint8", "bfloat16"):
            for how in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
                x = array((2, 3, 7, 6), dtype)
                assert_agrees(ENGINE, graph_of("resize", [x], nearest=how, **attrs), [x])
        for dtype in ("float32", "float64", "float16"):
            x = array((2, 3, 7, 6), dtype)
            for mode, more in (("linear", {}), ("cubic", {"cubic_a": -0.5}), ("linear", {"antialias": True}),
                               ("cubic", {"exclude_outside": True})):  # fmt: skip
                assert_agrees(ENGINE, graph_of("resize", [x], mode=mode, **attrs, **more), [x])


def test_sources():
    graph = Graph("case")
    key = graph.input("key", (), "uint64")
    n = graph.input("n", ("n",))
    graph.output("bits", key.graph.apply("random_bits", key, shape=(3, 5)))
    graph.output("count", graph.iota("n", "float16"))
    graph.output("size", graph.size("n"))
    graph.output("n", n)
    assert_agrees(ENGINE, graph, [np.array(2**63 + 12345678901, np.uint64), array((4,), "float32")])
