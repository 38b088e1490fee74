"""What `differentiate` keeps, gives and refuses; composites; values of several uses; NaN that must not spread."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate, print_graph, rewrite
from kernels_hub.compiler.autodiff import Kept, differentiate
from kernels_hub.compiler.errors import DerivativeError, GraphError
from kernels_hub.compiler.rewrite.outline import composite
from tests.compiler.autodiff.gradcheck import gradcheck, gradients
from tests.compiler.autodiff.rule_cases import floats, whole


def _attention(graph: Graph, q, k, v, mask=None):
    scores = q.matmul(k.transpose()) * 0.5
    if mask is not None:
        scores = mask.broadcast_to(scores.shape).select(scores, -np.inf)
    soft = scores.softmax(-1)
    if mask is not None:
        soft = soft.unary("isnan").select(0.0, soft)
    return soft @ v


def _recognised(graph: Graph, *names: str) -> Graph:
    found = rewrite(graph).graph
    calls = {composite(value) for node in found.nodes for value in node.results} - {None}
    assert calls >= set(names), calls
    return found


def test_attention_keeps_its_operands_alone():
    """Neither scores nor weights are outputs of the forward; both graphs are right."""
    graph = Graph("attention")
    q, k, v = (graph.input(one, ("n", 2, "m", 4), "float64") for one in "qkv")
    graph.output("y", _attention(graph, q, k, v))
    graph = _recognised(graph, "attention")
    inputs = {one: floats(1, 2, 3, 4, seed=place) for place, one in enumerate("qkv")}
    both = gradcheck(graph, inputs)
    assert list(both.forward.outputs) == ["y"]
    assert both.kept == {one: Kept("input", one) for one in "qkv"}
    assert [node.op.name for node in both.forward.nodes if node.op.name == "call"] == ["call"]


def test_attention_with_grouped_heads():
    graph = Graph("grouped")
    q = graph.input("q", (1, 4, "m", 3), "float64")
    k, v = (graph.input(one, (1, 2, "m", 3), "float64") for one in "kv")
    wide = [
        one.reshape(1, 2, 1, "m", 3).broadcast_to(1, 2, 2, "m", 3).reshape(1, 4, "m", 3) for one in (k, v)
    ]
    graph.output("y", _attention(graph, q, *wide))
    gradcheck(
        _recognised(graph, "attention"),
        {"q": floats(1, 4, 3, 3), "k": floats(1, 2, 3, 3, seed=1), "v": floats(1, 2, 3, 3, seed=2)},
    )


@pytest.mark.parametrize("recognise", [True, False], ids=["recognised", "plain"])
def test_rows_that_are_masked_whole(recognise: bool):
    """Their result is 0 whatever the scores are, and so are gradients: no NaN of theirs reaches another row."""
    graph = Graph("masked")
    q, k, v = (graph.input(one, (1, 1, 3, 4), "float64") for one in "qkv")
    mask = graph.input("mask", (3, 3), "bool")
    graph.output("y", _attention(graph, q, k, v, mask))
    inputs = {one: floats(1, 1, 3, 4, seed=place) for place, one in enumerate("qkv")}
    inputs["mask"] = np.array([[True, False, True], [False, False, False], [True, True, True]])
    gradcheck(_recognised(graph, "attention") if recognise else graph, inputs)


def _normed(graph: Graph):
    x = graph.input("x", ("n", 5), "float64")
    weight, bias = (graph.parameter(one, (5,), "float64") for one in ("weight", "bias"))
    centred = x - x.mean(1, keepdims=True)
    variance = (centred * centred).mean(1, keepdims=True)
    return centred / (variance + 1e-5).sqrt() * weight + bias


def _rms(graph: Graph):
    x = graph.input("x", ("n", 5), "float64")
    return x * ((x * x).mean(1, keepdims=True) + 1e-6).rsqrt() * graph.parameter("weight", (5,), "float64")


def _group(graph: Graph):
    x = graph.input("x", ("n", 4, 3), "float64")
    rows = x.reshape("n", 2, 6)
    centred = rows - rows.mean(2, keepdims=True)
    normal = centred / ((centred * centred).mean(2, keepdims=True) + 1e-5).sqrt()
    weight, bias = (graph.parameter(one, (4,), "float64").unsqueeze(1) for one in ("weight", "bias"))
    return normal.reshape("n", 4, 3) * weight + bias


def _gelu(graph: Graph):
    x = graph.input("x", ("n", 5), "float64")
    return x * 0.5 * ((x * 0.5**0.5).erf() + 1.0)


def _gelu_tanh(graph: Graph):
    x = graph.input("x", ("n", 5), "float64")
    return x * 0.5 * (((x + x * x * x * 0.044715) * (2 / np.pi) ** 0.5).tanh() + 1.0)


def _gated(graph: Graph):
    gate, up = (graph.input(one, ("n", 5), "float64") for one in ("x", "up"))
    return gate * gate.sigmoid() * up


def _rotary(graph: Graph):
    x = graph.input("x", ("n", 2, 3, 4), "float64")
    cos, sin = (graph.input(one, (3, 4), "float64") for one in ("cos", "sin"))
    first, second = x.split([2, 2], 3)
    turned = graph.apply("concat", -second, first, axis=3)
    return x * cos.broadcast_to(x.shape) + turned * sin.broadcast_to(x.shape)


COMPOSITES = {
    "layer_norm": (_normed, (2, 5)), "rms_norm": (_rms, (2, 5)), "group_norm": (_group, (2, 4, 3)),
    "gelu": (_gelu, (2, 5)), "gelu_tanh": (_gelu_tanh, (2, 5)), "gated_silu": (_gated, (2, 5)),
    "rotary": (_rotary, (1, 2, 3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPOSITES)
def test_a_composite(name: str):
    build, shape = COMPOSITES[name]
    graph = Graph(name)
    graph.output("y", build(graph))
    sizes = dict(zip((str(one) for one in graph.inputs["x"].shape), shape, strict=True))
    inputs = {
        one: floats(*(sizes[str(dim)] for dim in value.shape), seed=place)
        for place, (one, value) in enumerate(graph.inputs.items())
    }
    weights = {one: floats(value.shape[0], seed=9) for one, value in graph.parameters.items()}
    both = gradcheck(_recognised(graph, name), inputs, weights=weights)
    kept = {one for one, of in both.kept.items() if of.kind == "kept"}
    assert all(both.forward.outputs[one].rank < len(shape) for one in kept), "only statistics are kept"


def test_a_value_of_several_uses_and_outputs():
    graph = Graph("several")
    x = graph.input("x", ("n", 3), "float64")
    weight = graph.parameter("w", (3, 3), "float64")
    hidden = (x @ weight).tanh()
    graph.output("hidden", hidden)
    graph.output("again", hidden)
    graph.output("y", hidden @ weight + x)
    graph.output("greatest", x.along("argmax", 1))
    both = gradcheck(graph, {"x": floats(2, 3)}, weights={"w": floats(3, 3, seed=1)})
    assert list(both.given) == ["hidden", "again", "y"]
    assert both.kept["kept.hidden"] == Kept("output", "hidden")


def test_what_is_asked_for():
    graph = Graph("asked")
    x, z = (graph.input(one, (2, 3), "float64") for one in "xz")
    i = graph.input("i", (2,), "int64")
    graph.input("idle", (2, 3), "float64")
    w = graph.parameter("w", (3, 2), "float64")
    graph.output("y", (x * z).gather(i, 0) @ w)
    assert set(differentiate(graph).gradients) == {"x", "z", "w"}
    both = differentiate(graph, ["x"])
    assert both.gradients == {"x": "grad.x"} and list(both.backward.outputs) == ["grad.x"]
    assert "x" not in both.kept  # its own gradient does not need it
    gradcheck(graph, {"x": floats(2, 3), "z": floats(2, 3, seed=1), "i": whole(2, below=2),
                      "idle": floats(2, 3)}, weights={"w": floats(3, 2, seed=2)})  # fmt: skip
    for name, message in (
        ("nothing", "has no input or parameter 'nothing'"),
        ("i", "gradients of floats alone"),
    ):
        with pytest.raises(GraphError, match=message):
            differentiate(graph, [name])
    with pytest.raises(DerivativeError, match="no output that is a float depends on 'idle'"):
        differentiate(graph, ["idle"])


def test_sizes_that_only_the_graph_s_inputs_tell():
    """The backward takes an input for its shape alone."""
    graph = Graph("shape")
    x = graph.input("x", ("n", "2*m"), "float64")
    graph.output("y", x.sum())
    both = differentiate(graph)
    assert both.kept == {"x": Kept("input", "x")}
    inputs = {"x": floats(3, 4)}
    assert (gradients(both, inputs, {"y": np.asarray(2.0)})["x"] == 2).all()


def test_the_graph_stays_as_it_is():
    graph = Graph("same")
    x = graph.input("x", (2, 3), "float64")
    graph.output("y", x.softmax() * x)
    before = print_graph(graph, data=True)
    differentiate(graph)
    assert print_graph(graph, data=True) == before


def test_narrow_floats_are_kept_narrow():
    """What is computed in float32 is kept as bfloat16 was; gradients have the dtype of what they are of."""
    graph = Graph("narrow")
    x, w = graph.input("x", ("n", 8), "bfloat16"), graph.parameter("w", (8, 8), "bfloat16")
    graph.output("y", (x @ w).cast("float32").tanh().cast("bfloat16"))
    both = differentiate(graph)
    dtypes = {value.dtype.name for value in both.backward.inputs.values()}
    assert dtypes == {"bfloat16"}
    assert {value.dtype.name for value in both.backward.outputs.values()} == {"bfloat16"}


def test_cheap_chains_are_computed_again():
    """Of a chain of pointwise ops behind a product one value is kept, whatever is used of it."""
    graph = Graph("chain")
    x, w = graph.input("x", ("n", 8)), graph.parameter("w", (8, 8))
    hidden = x @ w
    graph.output("y", (hidden * hidden.sigmoid()).tanh().exp() @ w)
    both = differentiate(graph)
    assert [one.kind for one in both.kept.values()].count("kept") == 1
    assert {one.op_name for name, one in both.forward.outputs.items() if name != "y"} == {"matmul"}


def test_all_that_has_no_derivative_is_listed():
    graph = Graph("stuck")
    x = graph.input("x", (2, 4, 4, 4), "float64")
    regions, images = graph.input("regions", (3, 4), "float64"), graph.input("images", (3,), "int64")
    with graph.origin("model.align"):
        aligned = graph.apply("roi_align", x, regions, images, height=2, width=2)
    with graph.origin("model.bits"):
        bits = x.bitcast("complex64").unary("real").sum().cast("float64")
    with graph.origin("model.unused"):
        graph.output("flat", graph.apply("roi_align", x, regions, images, height=1, width=1).eq(1.0))
    graph.output("y", aligned + bits)
    with pytest.raises(DerivativeError) as error:
        differentiate(graph)
    text = str(error.value)
    assert "float64[3, 4], int64[3]): roi_align has no derivative; from model.align" in text
    assert "real(complex64[2, 4, 4, 4]): real has no derivative; from model.bits" in text
    assert "bitcast(float64[2, 4, 4, 4]): bitcast has no derivative; from model.bits" in text
    assert "model.unused" not in text
    other = Graph("stuck")
    z = other.input("z", (4,), "float64")
    at = other.input("at", (4,), "int64")
    with other.origin("model.scatter"):
        other.output("y", other.apply("scatter_elements", z, at, z, axis=0, reduction="max"))
    with pytest.raises(DerivativeError, match="meet by 'max' is not known; from model.scatter"):
        differentiate(other)
    sized = Graph("sized")
    s = sized.input("s", (4,), "float64")
    places = sized.apply("nonzero", s, count=sized.symbol("count"))
    sized.output("y", s.gather(places.reshape("count"), 0))
    with pytest.raises(DerivativeError, match="'count' is only known from the data"):
        differentiate(sized)


def test_no_size_at_all():
    """Dims of 0 have gradients of 0 elements."""
    graph = Graph("empty")
    x, w = graph.input("x", ("n", 4), "float64"), graph.parameter("w", (4, 2), "float64")
    graph.output("y", (x @ w).softmax())
    both = differentiate(graph)
    inputs, weights = {"x": np.zeros((0, 4))}, {"w": floats(4, 2)}
    found = gradients(both, inputs, {"y": np.zeros((0, 2))}, weights)
    assert found["x"].shape == (0, 4) and not found["w"].any()
    outputs = evaluate(both.forward, inputs, weights=weights)
    assert outputs["y"].shape == (0, 2)


JUMPS = {
    "relu at 0": (lambda x: x.relu(), [0.0, -0.0, 1.0], [0, 0, 1]),
    "abs at 0": (lambda x: abs(x), [0.0, -2.0], [0, -1]),
    "bounds": (lambda x: x.clamp(0, 6), [0.0, 3.0, 6.0], [0, 1, 0]),
    "equal greatest elements": (lambda x: x.max(), [2.0, 1.0, 2.0], [0.5, 0, 0.5]),
    "equal values": (lambda x: x.maximum(x * 1.0), [2.0], [1]),
    "a pool of equal elements": (
        lambda x: x.reshape(1, 1, 4).apply("max_pool", x.reshape(1, 1, 4), kernel=(4,), strides=(4,), dilations=(1,),
                                           padding=[(0, 0)]),
        [0.0, 0.0, -1.0, 0.0], [1, 0, 0, 0],
    ),
    "a power of 0": (lambda x: x**2 + x**1, [0.0], [1]),
}  # fmt: skip


@pytest.mark.parametrize("name", JUMPS)
def test_where_a_derivative_jumps(name: str):
    """As PyTorch has it."""
    build, values, expected = JUMPS[name]
    graph = Graph("jump")
    graph.output("y", build(graph.input("x", (len(values),), "float64")))
    both = differentiate(graph)
    inputs = {"x": np.array(values)}
    ones = {"y": np.ones(evaluate(graph, inputs)["y"].shape)}
    assert gradients(both, inputs, ones)["x"].tolist() == expected
