"""Bounds let sums be reordered and roundings be fused, and nothing else; the judge says which element is wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.errors import CompilerError, EngineError
from kernels_hub.compiler.judging import Judge, TrapError, bounded, compare
from kernels_hub.compiler.judging.judge import norm_difference
from kernels_hub.compiler.plan.selection import Filter, create_plans
from tests.compiler.strategies import SIZES, graphs
from tests.fuzz.harness import budget


def summed(terms: int) -> Graph:
    graph = Graph("sum")
    graph.output("y", graph.input("x", (3, terms)).sum(1))
    return graph


def one_by_one(x: np.ndarray) -> np.ndarray:
    total = np.zeros(x.shape[0], np.float32)
    with np.errstate(all="ignore"):
        for column in x.T:
            total = (total + column).astype(np.float32)
    return total


@pytest.mark.parametrize(
    "order", [lambda x: x, lambda x: x[:, ::-1], lambda x: np.sort(x, 1)], ids=["as is", "back", "sorted"]
)
def test_a_sum_of_4096_terms_may_be_reordered(order):
    assert Judge(summed(4096))(lambda inputs: {"y": one_by_one(order(inputs["x"]))}) is None


def test_a_small_scale_may_not_be_dropped():
    graph = summed(4096)

    def scaled(inputs):
        return {"y": (evaluate(graph, inputs)["y"] * np.float32(1.00005)).astype(np.float32)}

    assert "of output 'y' is" in Judge(graph)(scaled)
    product = Graph("scale")
    weight = np.random.default_rng(0).standard_normal((64, 16)).astype(np.float32)
    product.output(
        "y", product.input("x", (4, 64)) @ product.parameter("w", (64, 16), "float32", weight) * 1.00005
    )
    plain = Graph("plain")
    plain.output("y", plain.input("x", (4, 64)) @ plain.parameter("w", (64, 16), "float32", weight))
    assert "error of" in Judge(product)(lambda inputs: evaluate(plain, inputs))


def test_what_is_exact_has_no_room():
    graph = Graph("exact")
    x = graph.input("x", (8,))
    graph.output("cast", x.cast("float16").cast("float32"))
    graph.output("less", x < 0.5)
    graph.output("zero", 0.0 - x)
    found = bounded(graph, {"x": np.linspace(-1, 1, 8, dtype=np.float32)})
    assert not found.bounds["cast"].any() and not found.bounds["less"].any()
    judge = Judge(graph)
    assert judge(lambda inputs: evaluate(graph, inputs)) is None
    for name, wrong in (
        ("cast", lambda x: x),
        ("less", lambda x: x <= 0.5),
        ("zero", lambda x: -x),
    ):
        reason = judge(lambda inputs, n=name, w=wrong: {**evaluate(graph, inputs), n: w(inputs["x"])})
        assert f"output '{name}'" in reason


def test_an_element_that_is_not_sure_is_not_judged():
    graph = Graph("unsure")
    x = graph.input("x", (2, 64))
    graph.output("y", (x.sum(1) < 1.0))
    inputs = np.zeros((2, 64), np.float32)
    inputs[:, 0], inputs[:, 1:8] = [1.0, 3.0], 1e-9
    found = bounded(graph, {"x": inputs})
    assert found.bounds["y"].tolist() == [1.0, 0.0]


def test_what_infinities_come_to_is_not_judged_where_sums_are_associated():
    """(x A) B has a NaN where x (A B) has an infinity, and a function of it another number."""
    graphs = []
    for second in (False, True):
        graph = Graph("associated")
        x, a, b = (
            graph.input("x", (4, 8)),
            *(
                graph.parameter(
                    name, shape, data=np.random.default_rng(3).standard_normal(shape).astype(np.float32)
                )
                for name, shape in (("a", (8, 2)), ("b", (2, 8)))
            ),
        )
        graph.output("y", (x @ (a @ b) if second else (x @ a) @ b).tanh() + x)
        graphs.append(graph)
    judge = Judge(graphs[0])
    assert judge(lambda inputs: evaluate(graphs[1], inputs)) is None
    assert Judge(graphs[1])(lambda inputs: evaluate(graphs[0], inputs)) is None
    assert judge.coverage > 0.5


@pytest.mark.parametrize(
    ("actual", "bound", "right"),
    [
        ([1.0, 2.0], [0.0, 0.0], True),
        ([1.0, 2.0 + 1e-6], [0.0, 0.0], False),
        ([1.0, 2.0 + 1e-6], [0.0, 1e-5], True),
        ([1.0, np.nan], [0.0, 1.0], False),
        ([1.0, np.nan], [0.0, np.inf], True),
        ([np.inf, 2.0], [1.0, 1.0], False),
    ],
)
def test_compare_rejects_what_is_off(actual, bound, right):
    expected = np.asarray([1.0, 2.0], np.float32)
    verdict = compare("y", np.asarray(actual, np.float32), expected, np.asarray(bound))
    assert (verdict.reason is None) is right


def test_compare_tells_zeros_nan_and_shapes_apart():
    zero, bound = np.asarray([-0.0], np.float32), np.zeros(1)
    assert compare("y", -zero, zero, bound).reason is not None
    assert compare("y", -zero, zero, bound + 1e-30).reason is None
    nan = np.asarray([np.nan], np.float32)
    assert compare("y", nan, nan, bound).reason is None
    assert compare("y", zero, nan, bound).reason is not None
    assert "expected float32[1]" in compare("y", zero.astype(np.float64), zero, bound).reason
    assert "is 3, expected 2" in compare("y", np.asarray([3]), np.asarray([2]), bound).reason


def test_inputs_that_trap_do_not_judge():
    graph = Graph("divided")
    graph.output("y", graph.input("a", (4,), "int32") / graph.input("b", (4,), "int32"))
    with pytest.raises(TrapError, match="divided by 0"):
        bounded(graph, {"a": np.ones(4, np.int32), "b": np.zeros(4, np.int32)})
    judge = Judge(graph)
    floor = Graph("floor")
    floor.output(
        "y", floor.apply("floordiv", floor.input("a", (4,), "int32"), floor.input("b", (4,), "int32"))
    )
    assert "wrong" in judge(lambda inputs: evaluate(floor, inputs))
    assert any("divided by 0" in one for one in judge.skipped)


def test_what_overflows_within_a_call_depends_on_the_order_of_its_sums():
    """Of composites, too, which a graph has after it was rewritten: tuning refused every layer with a LayerNorm."""
    inner = Graph("centred")
    x = inner.input("x", (8, 96))
    inner.output("y", (x - x.mean(1, keepdims=True)).exp())
    graph = Graph("outer")
    graph.output("y", graph.apply("call", graph.input("x", (8, 96)), callee=inner) + 1.0)
    seen = []

    def backwards(inputs):
        x = inputs["x"]
        with np.errstate(all="ignore"):
            total = np.cumsum(x[:, ::-1], 1, dtype=np.float32)[:, -1:]
            seen.append(np.exp(x - total / np.float32(96)) + np.float32(1))
        return {"y": seen[-1]}

    assert Judge(graph)(backwards) is None
    assert any(np.isnan(one).any() for one in seen)
    assert "wrong" in Judge(graph)(lambda inputs: {"y": backwards(inputs)["y"] * np.float32(1.001)})


def _pooled(v):
    attrs = {"kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1), "padding": ((1, 1), (1, 1))}
    return v.graph.apply("avg_pool", v, count="inside", **attrs)


def _resized(mode, coordinates="half_pixel", shape=(1, 4, 14, 22)):
    return lambda v: v.graph.apply("resize", v, shape=shape, mode=mode, coordinates=coordinates)


OF_PYTORCH = {
    "a mean of a window, whose sum overflows": (_pooled, lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)),
    "a mean of few": (lambda v: v.mean(1), lambda x: x.mean(1)),
    "linear": (
        _resized("linear", shape=(1, 4, 5, 8)), lambda x: F.interpolate(x, (5, 8), mode="bilinear")
    ),
    "cubic": (_resized("cubic"), lambda x: F.interpolate(x, (14, 22), mode="bicubic")),
    "linear at whole places": (
        _resized("linear", "align_corners", (1, 4, 4, 6)),
        lambda x: F.interpolate(x, (4, 6), mode="bilinear", align_corners=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OF_PYTORCH)
def test_what_pytorch_computes_of_numbers_that_are_none_is_right(case):
    """Windows next to a NaN have none, and sums that overflow are not judged: no program of these was taken."""
    make, function = OF_PYTORCH[case]
    graph = Graph("one")
    graph.output("y", make(graph.input("x", (1, 4, 7, 11))))

    def run(inputs):
        return {"y": function(torch.from_numpy(inputs["x"])).numpy()}

    assert Judge(graph)(run) is None
    assert "wrong" in Judge(graph)(lambda inputs: {"y": run(inputs)["y"] * np.float32(1.001)})


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_an_error_of_what_cancels_is_resized(mode):
    """Of a constant less its mean nothing is left but rounding, which the division by its deviation makes large."""
    graph = Graph("instance_norm")
    x = graph.input("x", (1, 4, 7, 11))
    centred = x - x.mean((2, 3), keepdims=True)
    normal = centred * ((centred * centred).mean((2, 3), keepdims=True) + 1e-5).unary("rsqrt")
    graph.output("y", _resized(mode)(normal))

    def run(inputs):
        wide = F.instance_norm(torch.from_numpy(inputs["x"]).double())
        off = torch.from_numpy(inputs["x"]).double().abs() * 2**-24 / (1e-5**0.5)
        modes = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest-exact"}
        return {"y": F.interpolate(wide + off, (14, 22), mode=modes[mode]).float().numpy()}

    constant = np.linspace(0.1, 0.4, 4, dtype=np.float32).reshape(1, 4, 1, 1) * np.ones((7, 11), np.float32)
    found = bounded(graph, {"x": constant})
    error = np.abs(run({"x": constant})["y"] - found.values["y"])
    assert error.max() > 0 and (error <= found.bounds["y"]).all()
    assert found.bounds["y"].max() < 1e-2


def test_what_a_narrower_float_rounds_a_wider_one_does_not_mend():
    """Norms are judged by the coarsest float that an output is computed in; inputs are exact, whatever they are."""
    graph = Graph("cast")
    x = graph.input("x", (40, 30))
    centred = (x - x.mean(1, keepdims=True)).cast("float64")
    graph.output("cast", centred.reshape((30, 40)))
    graph.output("computed", centred * 3.0)
    graph.output("exact", x.cast("float64") * 3.0)
    case = Judge(graph).cases[0]
    right = case.oracle.values

    x = torch.from_numpy(case.inputs.arrays["x"])
    centred = (x - x.flip(1).mean(1, keepdim=True)).double()
    torchs = {"cast": centred.reshape(30, 40).numpy(), "computed": (centred * 3.0).numpy()}
    assert not np.array_equal(torchs["cast"], right["cast"]) and case.against({**right, **torchs}) is None
    for name, share in (("cast", 1e-3), ("computed", 1e-3), ("exact", 1e-8)):
        off = {**right, name: right[name] * (1 + share)}
        assert f"output {name!r} differs" in str(norm_difference(off, right, case.tolerances))
    assert norm_difference({**right, "cast": right["cast"] * (1 + 1e-8)}, right, case.tolerances) is None


@given(graphs(dtypes=("float32", "float64", "float16", "bfloat16", "int32", "int64", "int8", "bool")))
@settings(max_examples=budget(25, 400), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_right_engine_is_not_refused(graph):
    """PyTorch rounds otherwise than the oracle, and on all inputs stays within the bounds."""
    try:
        plan = create_plans(graph, Device("cpu"), only=Filter(("library",)))[0].build()
        judge = Judge(graph, SIZES, patience=5.0)
        assert judge.cases
    except (EngineError, CompilerError):
        return
    assert judge(plan.execute) is None, str(graph)
    assert judge.coverage > 0
