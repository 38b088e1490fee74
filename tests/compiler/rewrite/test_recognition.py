"""What is recognised, in several spellings; near misses; and that no number changes by more than rounding."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate, verify
from kernels_hub.compiler.rewrite import activations, affine, attention, gated, norms, rotary, softmax
from kernels_hub.compiler.rewrite.engine import Rules, apply_rules
from kernels_hub.compiler.rewrite.explain import explain_rule
from kernels_hub.compiler.rewrite.outline import composite, operand
from kernels_hub.compiler.rewrite.pipeline import SIMPLIFY, rewrite
from kernels_hub.compiler.rewrite.rule import Options
from tests.compiler.strategies import assert_same_outputs

TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "float16": 2e-2, "bfloat16": 1e-1}
RULES = {
    rule.name: rule
    for rule in (
        *norms.NORMS, *activations.ACTIVATIONS, *softmax.SOFTMAX, *gated.GATED, *rotary.ROTARY,
        *attention.SCALES, *attention.ATTENTION.rules, *softmax.DIVIDED.rules, *softmax.SHIFTED.rules,
        *affine.AFFINE,
    )
}  # fmt: skip
GROWTHS = (attention.ATTENTION, softmax.DIVIDED, softmax.SHIFTED)


def composites(graph: Graph) -> Counter[str]:
    return Counter(name for node in graph.nodes for one in node.results if (name := composite(one)))


def check(build, *shapes, dtype="float32", rounding=True, special=False) -> Graph:
    """The graph of build(*inputs) rewritten: verified after each pass, numbers kept (bits, without rounding)."""
    graph = Graph("case")
    graph.output("y", build(*(graph.input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes))))
    result = rewrite(graph, options=Options(rounding=rounding), after=lambda _, one: verify(one)).graph
    inputs = graph.dummy_inputs(0, {"n": 3})
    if special:
        first = inputs["x0"] = inputs["x0"].copy()
        first.reshape(-1)[:4] = [np.nan, np.inf, -np.inf, -0.0]
    expected, actual = (evaluate(one, inputs) for one in (graph, result))
    assert_same_outputs(actual, expected, TOLERANCE[dtype] if rounding else 0.0)
    return result


def layer_norm(x, w, b):
    c = x - x.mean(-1, keepdims=True)
    return c / ((c * c).mean(-1, keepdims=True) + 1e-5).sqrt() * w + b


def layer_norm_inverse(x, w, b):
    c = x - x.sum(-1, keepdims=True) / 8
    return b + w * (c * (1 / ((c**2).sum(-1, keepdims=True) / 8 + 1e-5).sqrt()))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("rounding", [True, False])
@pytest.mark.parametrize("build", [layer_norm, layer_norm_inverse])
def test_layer_norm(build, dtype, rounding):
    result = check(build, ("n", 4, 8), (8,), (8,), dtype=dtype, rounding=rounding, special=True)
    assert composites(result) == {"layer_norm": 1}
    found = result.outputs["y"]
    assert operand(found, "eps").scalar == pytest.approx(1e-5, rel=1e-2)
    assert operand(found, "weight") is result.inputs["x1"] and operand(found, "bias") is result.inputs["x2"]


def rms_norm(x, w):
    return x * ((x * x).mean(-1, keepdims=True) + 1e-6).rsqrt() * w


def rms_norm_wide(x, w):
    wide = x.cast("float32")
    return w * (wide * ((wide**2).mean(-1, keepdims=True) + 1e-6).rsqrt()).cast(x.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("build", [rms_norm, rms_norm_wide])
def test_rms_norm(build, dtype):
    result = check(build, ("n", 4, 8), (8,), dtype=dtype, rounding=False, special=True)
    assert composites(result) == {"rms_norm": 1}
    assert result.outputs["y"].operands[0] is result.inputs["x0"]


GELUS = {
    "gelu": [
        lambda x: x * 0.5 * (1 + (x / math.sqrt(2)).erf()), lambda x: 0.5 * (x * (1 + (x * math.sqrt(0.5)).erf())),
        lambda x: x * (0.5 * (1 + (x / math.sqrt(2)).erf())), lambda x: x / 2 * ((x / math.sqrt(2)).erf() + 1),
    ],
    "gelu_tanh": [
        lambda x: 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh()),
        lambda x: 0.5 * x * (1 + ((x + x * x * x * 0.044715) * 0.7978845608).tanh()),
        lambda x: 0.5 * x * (1 + (x * 0.7978845608 * (1 + 0.044715 * x * x)).tanh()),
        lambda x: 0.5 * (x * (1 + (0.7978845608 * (x * (1 + 0.044715 * (x * x)))).tanh())),
    ],
    "silu": [lambda x: x * x.sigmoid(), lambda x: x / (1 + (-x).exp()), lambda x: 1 / ((-x).exp() + 1) * x],
    "gelu_quick": [lambda x: x * (1.702 * x).sigmoid()],
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", GELUS)
def test_activations(name, dtype):
    for build in GELUS[name]:
        assert composites(check(build, ("n", 8), dtype=dtype, special=True)) == {name: 1}
        wide = {"float32": "float64", "bfloat16": "float32"}[dtype]
        cast = lambda x: build(x.cast(wide)).cast(x.dtype)  # noqa: E731, B023 (called at once)
        narrow = check(cast, ("n", 8), dtype=dtype, special=True)
        assert composites(narrow) == {name: 1} and not any(node.op.name == "cast" for node in narrow.nodes)
        gated = check(lambda x, y: build(x) * y, ("n", 8), ("n", 8), dtype=dtype)  # noqa: B023 (called at once)
        assert composites(gated) == {f"gated_{name}": 1}


def test_softmax():
    def build(x):
        e = (x - x.max(1, keepdims=True)).exp()
        return e / e.sum(1, keepdims=True)

    result = check(build, ("n", 5, 3), special=True)
    assert [node.op.name for node in result.nodes] == ["input", "softmax"]
    assert "softmax" not in {node.op.name for node in check(build, ("n", 5, 3), rounding=False).nodes}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax_that_is_divided_behind_a_product(dtype):
    """Attention that divides its results, not its weights, is attention."""

    def build(q, k, v):
        scores = q @ k.transpose() * 0.25
        e = (scores - scores.max(-1, keepdims=True)).exp()
        return (e @ v) / e.sum(-1, keepdims=True)

    heads = ("n", 2, 5, 16)
    assert composites(check(build, heads, heads, heads, dtype=dtype)) == {"attention": 1}
    assert not composites(check(build, heads, heads, heads, dtype=dtype, rounding=False))

    def weights_alone(x, v):
        e = (x - x.max(1, keepdims=True)).exp()
        return (e @ v) / e.sum(1, keepdims=True)

    found = check(weights_alone, ("n", 5), (5, 3), dtype=dtype)
    assert [node.op.name for node in found.nodes if node.op.name != "input"] == ["softmax", "matmul"]


def turn(x, cos, sin):
    turned = x.graph.apply("concat", -x.slice(-1, 4), x.slice(-1, 0, 4), axis=x.rank - 1)
    return x * cos + turned * sin


def turn_pairs(x, cos, sin):
    last = x.rank - 1
    odd, even = (x.slice(last, start, 8, 2).unsqueeze(x.rank) for start in (1, 0))
    return x * cos + x.graph.apply("concat", -odd, even, axis=x.rank).reshape(x.shape) * sin


TURNS = {"rotary": turn, "rotary_pairs": turn_pairs}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", TURNS)
def test_rotary(name, dtype):
    result = check(TURNS[name], ("n", 2, 5, 8), (5, 8), (5, 8), dtype=dtype, rounding=False, special=True)
    assert composites(result) == {name: 1}
    assert list(result.outputs["y"].operands) == list(result.inputs.values())


@pytest.mark.parametrize("first", [0, 4])
@pytest.mark.parametrize("name", TURNS)
def test_rotary_of_a_part(name, first):
    def build(x, cos, sin):
        part = TURNS[name](x.slice(3, first, first + 8), cos, sin)
        return x.graph.apply("concat", part, x.slice(3, 12 - first, 16 - first), axis=3)

    result = check(build, ("n", 2, 5, 16), (5, 8), (5, 8), rounding=False, special=True)
    assert composites(result) == {name: 1}
    (found,) = (node.results[0] for node in result.nodes if node.op.name == "call")
    assert operand(found, "x").op_name == "slice" and operand(found, "x").shape[3] == 8


def attend(q, k, v, mask=None):
    scores = (q @ k.transpose()) * 0.25
    return (scores if mask is None else scores + mask).softmax(-1) @ v


def in_groups(q, k, v):
    k, v = (one.broadcast(("n", 2, 3, 5, 8), (0, 1, 3, 4)).reshape("n", 6, 5, 8) for one in (k, v))
    return attend(q, k, v)


def test_attention():
    heads = [("n", 2, 5, 8)] * 3
    for mask in ([], [(5, 5)], [("n", 1, 1, 5)]):
        result = check(attend, *heads, *mask, rounding=False)
        assert composites(result) == {"attention": 1}
        assert [node.op.name for node in result.nodes if "softmax" in node.op.name] == []
    assert operand(result.outputs["y"], "scale").scalar == 0.25
    result = check(in_groups, ("n", 6, 5, 8), ("n", 2, 5, 8), ("n", 2, 5, 8), rounding=False)
    assert result.outputs["y"].operands[:3] == tuple(result.inputs.values())

    def chosen(q, k, v, bits):
        return (bits < 0).select((q @ k.transpose()) / 8, -1e9).softmax(-1) @ v

    assert composites(check(chosen, *heads, (5, 5), rounding=False)) == {"attention": 1}


def parameters(graph, *names, size=6):
    random = np.random.default_rng(0)
    return [
        graph.parameter(name, (size,), "float32", random.uniform(0.5, 1.5, size).astype(np.float32))
        for name in names
    ]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("padding", [((0, 0), (0, 0)), ((1, 0), (2, 2))])
def test_batch_norm_goes_into_the_convolution(groups, padding):
    def build(x):
        graph = x.graph
        data = np.random.default_rng(1).standard_normal((6, 4 // groups, 3, 3)).astype(np.float32)
        w = graph.parameter("w", data.shape, "float32", data)
        y = graph.apply("conv", x, w, strides=(2, 1), dilations=(1, 2), padding=padding, groups=groups)
        mean, variance, gamma, beta = (
            one.broadcast(y.shape, (1,)) for one in parameters(graph, "mean", "variance", "gamma", "beta")
        )
        return ((y - mean) / (variance + 1e-5).sqrt() * gamma + beta).relu()

    left = Counter(node.op.name for node in check(build, ("n", 4, 9, 9)).nodes)
    assert left["conv"] == left["add"] == left["maximum"] == 1
    assert not {"mul", "div", "sub", "sqrt"} & set(left)
    assert check(build, ("n", 4, 9, 9), rounding=False)


def test_scales_go_into_the_matmul():
    def build(x):
        a, b, c = parameters(x.graph, "a", "b", "c")
        w = x.graph.parameter("w", (8, 6), "float32", np.ones((8, 6), np.float32))
        return (x @ w.broadcast(("n", 8, 6), (1, 2)) if x.rank == 3 else x @ w + a) * b * c

    left = Counter(node.op.name for node in check(build, ("n", 8)).nodes)
    assert left["matmul"] == left["add"] == 1 and not left["mul"]


def first_axis(x, *, centre):
    c = x - x.mean(0).broadcast(x.shape, (1,)) if centre else x
    return c / ((c * c).mean(0) + 1e-5).sqrt().broadcast(x.shape, (1,))


def weights(x, *shape):
    return x.graph.parameter("w", shape or (x.shape[-1],), x.dtype)


def along(x, vector, axis=-1):
    return vector.broadcast(x.shape, (axis % x.rank,))


def normal(x):
    c = x - x.mean(-1, keepdims=True)
    return c / ((c * c).mean(-1, keepdims=True) + 1e-5).sqrt()


def test_group_norm():
    def build(x, w, b):
        w, b = (one.broadcast(x.shape, (1,)) for one in (w, b))
        return normal(x.reshape(("n", 2, 3 * 5 * 4))).reshape(x.shape) * w + b

    result = check(build, ("n", 6, 5, 4), (6,), (6,), rounding=False, special=True)
    assert composites(result) == {"group_norm": 1}
    assert list(result.outputs["y"].attrs["callee"].inputs) == ["x", "eps", "weight", "bias"]
    assert result.outputs["y"].operands[0] is result.inputs["x0"]
    build = lambda x: normal(x.reshape(("n", 2, 15))).reshape(x.shape)  # noqa: E731
    assert composites(check(build, ("n", 5, 6), rounding=False)) == {"layer_norm": 1}, (
        "2 groups of 5 channels"
    )


def root_mean(x):
    return x * ((x * x).mean(-1, keepdims=True) + 1e-6).rsqrt()


def in_channels(x):
    """x (N, C, …), normalized in two groups of channels."""
    return normal(x.reshape((x.shape[0], 2, x.type.size // x.shape[0] // 2))).reshape(x.shape)


def affine_wide(x, norm, wide, narrow, axis=-1, *, shift=True):
    """As ATen does: all of it in a wider dtype."""
    w, b = (
        x.graph.input(name, (x.shape[axis],), x.dtype).cast(wide).broadcast(x.shape, (axis % x.rank,))
        for name in ("weight", "bias")
    )
    y = norm(x.cast(wide)) * w
    return (y + b if shift else y).cast(narrow)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm", "group_norm"])
def test_norms_in_a_wider_dtype(kind, dtype):
    norm = {"layer_norm": normal, "rms_norm": root_mean, "group_norm": in_channels}[kind]
    graph = Graph("wide")
    x = graph.input("x", (2, 4, 6), dtype)
    axis = 1 if kind == "group_norm" else -1
    graph.output("y", affine_wide(x, norm, "float32", dtype, axis, shift=kind != "rms_norm"))
    result = rewrite(graph, options=Options(rounding=False), after=lambda _, one: verify(one)).graph
    assert composites(result) == {kind: 1}
    assert {one.dtype.name for one in result.outputs["y"].operands[2:]} == {dtype}
    inputs = {name: array.copy() for name, array in graph.dummy_inputs(0).items()}
    inputs["x"].reshape(-1)[:3] = [np.nan, np.inf, -0.0]
    assert_same_outputs(evaluate(result, inputs), evaluate(graph, inputs))


def image(x):
    return x.graph.input("image", (2, 4, 4), x.dtype)


def gelu_of(x):
    return x * 0.5 * (1 + (x / math.sqrt(2)).erf())


BEFORE = {
    "layer_norm": ("layer_norm_", "group_norm"), "group_norm": ("group_norm_",), "rms_norm": ("rms_norm_", "layer_norm", "group_norm"),
    "layer_norm_weight": ("layer_norm_wide",), "layer_norm_bias": ("layer_norm_wide",),
    "group_norm_weight": ("group_norm_wide",), "group_norm_bias": ("group_norm_wide",),
    "rms_norm_weight": ("rms_norm_wide",),
    "gelu": ("gated_", "gelu_casts", "gelu_tanh_casts"), "silu": ("gated_", "silu_casts", "gelu_quick_casts"),
}  # fmt: skip
"""Rules that find what others build on."""

MISSES = {
    "layer_norm": (
        lambda x: root_mean(x - x.mean(0, keepdims=True)), "the mean is over axes (0,), the norm over {(1,)}"),
    "layer_norm_casts": (lambda x: normal(x.cast("float64")).cast("bfloat16"), "float32 goes in, and bfloat16"),
    "layer_norm_weight": (lambda x: normal(x) * along(x, weights(x, 4), 0), "lies along (0,) of rank 2"),
    "layer_norm_bias": (lambda x: normal(x) + along(x, weights(x)), "has 2 operands, not 3"),
    "group_norm": (lambda x: normal(x.reshape((4, 2, 4))).reshape(x.shape), "comes back as"),
    "group_norm_weight": (lambda x: in_channels(y := image(x)) * along(y, weights(y), 2), "lies along (2,) of rank 3"),
    "group_norm_bias": (lambda x: in_channels(y := image(x)) + along(y, weights(y), 1), "has 2 operands, not 3"),
    "layer_norm_wide": (lambda x: affine_wide(x, normal, "float64", "bfloat16"), "float32 goes in, and bfloat16"),
    "group_norm_wide": (
        lambda x: affine_wide(image(x), in_channels, "float64", "bfloat16", 1), "float32 goes in, and bfloat16"),
    "rms_norm_wide": (
        lambda x: affine_wide(x, root_mean, "float64", "bfloat16", shift=False), "float32 goes in, and bfloat16"),
    "rms_norm": (lambda x: first_axis(x, centre=False), "not the last"),
    "rms_norm_casts": (lambda x: root_mean(x.cast("float64")).cast("bfloat16"), "float32 goes in, and bfloat16"),
    "rms_norm_weight": (lambda x: root_mean(x) * along(x, weights(x, 4), 0), "lies along (0,) of rank 2"),
    "gelu": (lambda x: x * 0.5 * (1 + (x / 1.5).erf()), "not 1.414"),
    "gelu_tanh": (lambda x: 0.5 * x * (1 + (0.7978845608 * (x + 0.05 * x * x * x)).tanh()), "not 0.044715"),
    "silu": (lambda x: x * (x + 1).sigmoid(), "already"),
    "gelu_quick": (lambda x: x * (1.5 * x).sigmoid(), "is 1.5, not 1.702"),
    "softmax": (lambda x: (e := x.exp()) / e.sum((0, 1), keepdims=True), "over axes (0, 1), not over one"),
    "shifted_softmax": (
        lambda x: (x - x.max(0, keepdims=True)).softmax(1), "the maximum is along (0,), the softmax along 1"),
    "row_maximum": (lambda x: (x - x.max((0, 1), keepdims=True)).softmax(1), "over axes (0, 1), not over one"),
    "below_maximum": (lambda x: (x - x.exp().max(1, keepdims=True)).softmax(1), "the maximum is of"),
    "softmax_before_product": (
        lambda x: ((s := x @ x.transpose()).exp() @ s) / (s * 2.0).exp().sum(1, keepdims=True),
        "the sum is of"),
    "row_total": (
        lambda x: ((e := (x @ x.transpose()).exp()) @ x.slice(1, 0, 4)) / e.sum(0, keepdims=True), "not along the columns"),
    "gated_silu": (lambda x: gelu_of(x) * x.exp(), "is no silu"),
    "gated_gelu": (lambda x: x * x.sigmoid() * x.exp(), "is no gelu"),
    "gated_gelu_tanh": (lambda x: gelu_of(x) * x.exp(), "is no gelu_tanh"),
    "gated_gelu_quick": (lambda x: (y := gelu_of(x)) * x.exp() + y, "is no gelu_quick"),
    "rotary": (lambda x: x * 2 + x.graph.apply("concat", -x.slice(-1, 2), x.slice(-1, 0, 2), axis=1) * 3, "not the half of"),
    "rotary_pairs": (
        lambda x: x * 2 + x.graph.apply("concat", (-x.slice(1, 0, 8, 2)).unsqueeze(2), x.slice(1, 1, 8, 2).unsqueeze(2), axis=2).reshape(x.shape) * 3,
        "not the half of"),
    "gelu_casts": (lambda x: gelu_of(x.cast("float64")).cast("bfloat16"), "float32 goes in, and bfloat16"),
    "gelu_tanh_casts": (lambda x: gelu_of(x.cast("float64")).cast("float32"), "is no gelu_tanh"),
    "silu_casts": (lambda x: (y := x.cast("float64")).sigmoid().binary("mul", y).cast("bfloat16"), "float32 goes in"),
    "gelu_quick_casts": (lambda x: (y := x.cast("float64")).sigmoid().binary("mul", y).cast("float32"), "is no gelu_quick"),
    "attention": (lambda x: (x @ x.transpose()).softmax(0) @ x, "not along the keys"),
    "attention_scores": (lambda x: (x @ x.reshape((8, 4))).softmax(1), "made by reshape, not by permute"),
    "attention_scale": (lambda x: (x @ x.transpose() * 0.5 * x.graph.constant(0.25)).softmax(1), "has a scale already"),
    "attention_tanh": (lambda x: ((x @ x.transpose()).tanh() * 2.0).tanh().softmax(1), "has a cap already"),
    "attention_cap": (lambda x: ((t := (x @ x.transpose()).tanh()) * 2.0 + t).softmax(1), "is used 2 times"),
    "attention_mask": (
        lambda x: (x @ x.transpose() + x.slice(1, 4) + x.slice(1, 0, 4)).softmax(1), "has a mask already"),
    "attention_casts": (
        lambda x: (s := x @ x.transpose()).cast("float64").softmax(1) + s.exp().cast("float64"), "is used 2 times"),
    "attention_weights": (lambda x: (x @ x.transpose()).softmax(0), "not along the keys"),
    "attention_blank": (
        lambda x: (s := x @ x.transpose() + x.slice(1, 4)).max(0, keepdims=True).eq(-math.inf).broadcast_to((4, 4))
        .select(0.0, s.softmax(1)), "the rows that are made blank are not"),
    "scale_conv": (lambda x: x.exp() * x.graph.parameter("w", (8,)).broadcast(x.shape, (1,)), "made by exp"),
    "scale_matmul": (lambda x: x @ x.transpose() * x.graph.parameter("w", (4,)).broadcast((4, 4), (1,)), "depends on"),
    "scale_shifted": (lambda x: (x + x.exp()) * x.graph.parameter("w", (8,)).broadcast(x.shape, (1,)), "made by"),
    "unsqueezed_weights": (lambda x: x + weights(x, 32).reshape(x.shape), "more than to add dims"),
}  # fmt: skip


AT_MOST_ONCE = {"attention_scale", "attention_tanh", "attention_mask"}
"""Rules that decline what they have taken once already."""


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_say_why(name):
    build, reason = MISSES[name]
    graph = Graph("miss")
    graph.output("y", build(graph.input("x", (4, 8))))
    if before := [RULES[one] for one in BEFORE if name.startswith(BEFORE[one])]:
        graph = rewrite(graph, (SIMPLIFY, Rules("before", tuple(before)))).graph
    if growth := next((one for one in GROWTHS if RULES[name] in one.rules), None):
        assert growth.run(graph, Options()).graph is graph
    else:
        assert not apply_rules(graph, [RULES[name]]).fired
    found = explain_rule(graph, RULES[name])
    assert reason in str(replace(found, matches=())), str(found)
    assert not found.matches or name in AT_MOST_ONCE


def test_what_is_no_rms_norm_of_what_is_centred_says_why():
    graph = Graph("miss")
    graph.output("y", first_axis(graph.input("x", (4, 8)), centre=True))
    found = str(explain_rule(graph, RULES["layer_norm"]))
    assert "layer_norm: no match" in found and "are not the last (rms_norm)" in found


def test_an_rms_norm_of_what_is_centred_stays_where_the_mean_is_another():
    result = check(lambda x: root_mean(x - x.mean(0, keepdims=True)), (4, 8), rounding=False, special=True)
    assert composites(result) == {"rms_norm": 1}


def test_equal_parts_are_calls_of_one_graph():
    def callee(build, *shape):
        graph = Graph("norms")
        graph.output("y", build(graph.input("x", shape)))
        return rewrite(graph).graph.outputs["y"].attrs["callee"]

    norm = callee(root_mean, 4, 8)
    assert callee(lambda x: root_mean(x), 4, 8) is norm
    divided = lambda x: x / ((x * x).mean(-1, keepdims=True) + 1e-6).sqrt()  # noqa: E731
    weighted = lambda x: root_mean(x) * along(x, weights(x))  # noqa: E731
    others = [callee(root_mean, 4, 9), *(callee(build, 4, 8) for build in (normal, divided, weighted))]
    assert len({id(one) for one in (norm, *others)}) == 5


def test_every_rule_has_a_near_miss():
    by_others = {"scale_of_scores", "scales_of_scores"} | {rule.name for rule in affine.AFFINE}
    assert set(RULES) - by_others <= set(MISSES)


def test_a_value_that_is_an_output_stays():
    graph = Graph("visible")
    q, k, v = (graph.input(name, (2, 5, 8)) for name in "qkv")
    weights = (q @ k.transpose()).softmax(-1)
    graph.output("weights", weights)
    graph.output("y", weights @ v)
    assert not composites(rewrite(graph).graph)
    assert "is an output" in str(explain_rule(graph, RULES["attention"]))
