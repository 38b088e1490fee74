"""Graphs: hash-consing, what builders refuse, signatures, calls, rebuilding."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler import Graph, bind, evaluate, extract, rebuild, verify
from kernels_hub.compiler.errors import DimError, EvaluateError, GraphError, ShapeError, TypeRuleError
from kernels_hub.compiler.ir import op as op_module
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.ir.op import Float


def graph_of(*shapes, dtype="float32"):
    graph = Graph("g")
    return graph, *(graph.input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes))


def test_the_same_op_on_the_same_operands_is_one_node():
    graph, x, y = graph_of((2, 3), (2, 3))
    assert (x + y) is (x + y)
    assert (x + y) is not (y + x)
    assert x.sum(1) is x.sum(-1) and x.sum(1) is not x.sum(0)
    assert (x * 2.0) is (x * 2)
    before = len(graph.nodes)
    x.softmax(), x.softmax(1)
    assert len(graph.nodes) == before + 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_constants_are_compared_by_their_bytes(dtype):
    graph = Graph("g")
    nan, zero = graph.constant(float("nan"), dtype), graph.constant(0.0, dtype)
    assert graph.constant(float("nan"), dtype) is nan
    assert graph.constant(-0.0, dtype) is not zero and graph.constant(0.0, dtype) is zero
    assert graph.constant(np.zeros((1,), zero.dtype.numpy)) is not zero
    assert graph.constant(np.zeros((), np.int16)) is not graph.constant(np.zeros((), np.float16))
    other = np.array([0x7FC00001], np.uint32).view(np.float32)
    assert graph.constant(other) is not graph.constant(np.array([np.nan], np.float32))


def test_float_attributes_are_compared_by_their_bits():
    assert Float(float("nan")) == Float(float("nan")) and Float(0.0) != Float(-0.0)
    graph, x = graph_of((1, 1, 4, 4))
    resize = lambda value: graph.apply("resize", x, shape=(1, 1, 2, 2), extrapolation=value)  # noqa: E731
    assert resize(float("nan")) is resize(float("nan")) and resize(0.0) is not resize(-0.0)


def test_a_constant_out_of_range_overflows_as_its_format_does():
    graph = Graph("g")
    assert graph.constant(1e6, "float16").array == np.inf
    assert graph.constant(np.array([-1e39, 1.0]), "float32").array.tolist() == [-np.inf, 1]


def test_a_constant_is_a_copy_that_nobody_can_change():
    graph, mine = Graph("g"), np.arange(3.0)
    value = graph.constant(mine)
    mine[0] = 7
    assert value.array[0] == 0
    with pytest.raises(ValueError):
        value.array[0] = 1
    view = mine[:2]
    view.flags.writeable = False
    other = graph.constant(view)
    mine[1] = 9
    assert other.array.tolist() == [7, 1]


def test_random_bits_are_one_only_for_one_key():
    graph = Graph("g")
    a, b = graph.random_key(), graph.random_key()
    assert a is not b and graph.random_key(7) is graph.random_key(7)
    bits = [graph.apply("random_bits", key, shape=(4,)) for key in (a, b, a)]
    assert bits[0] is bits[2] and bits[0] is not bits[1]
    again = rebuild(_with_outputs(graph, *bits)).graph
    assert again.random_key() not in {value for node in again.live() for value in node.results}


def _with_outputs(graph, *values):
    for i, value in enumerate(values):
        graph.output(f"y{i}", value)
    return graph


def test_views_are_built_in_normal_form():
    graph, x = graph_of(("n", 4, 6))
    assert (
        x.reshape("n", 4, 6) is x and x.permute(0, 1, 2) is x and x.slice(1) is x and x.cast("float32") is x
    )
    assert x.reshape(-1).reshape("n", 24) is x.reshape("n", 24)
    assert x.reshape(-1).reshape("n", 4, 6) is x
    assert x.permute(2, 0, 1).permute(1, 2, 0) is x
    assert x.sum(1, keepdims=True).broadcast_to("n", 4, 6) is x.sum(1).broadcast(("n", 4, 6), (0, 2))
    assert x.broadcast_to(5, "n", 4, 6).broadcast_to(2, 5, "n", 4, 6) is x.broadcast_to(2, 5, "n", 4, 6)
    assert x.pad([(0, 0)] * 3) is x


def test_scalars_are_seen_through_views():
    graph, x = graph_of((2, 3))
    assert graph.constant(2.5).broadcast_to(2, 3).transpose().scalar == 2.5
    assert graph.full((2,), 3, "int8").scalar == 3
    assert x.scalar is None and graph.constant([1.0, 1.0]).scalar is None


def test_symbolic_shapes():
    graph = Graph("g")
    n = graph.symbol("n", 1, 64)
    x = graph.input("x", (n, "2*m", 8))
    assert str(x.reshape("n*m", -1).type) == "float32[m*n, 16]"
    assert str(x.flatten(0, 1).type) == "float32[2*m*n, 8]"
    odd = x.slice(1, 1, None, 2).shape[1]
    assert [substitute(odd, {"m": m}) for m in range(4)] == [len(range(2 * m)[1::2]) for m in range(4)]
    assert x.slice(0, 0, 1).shape[0] == 1
    assert x.reshape("n", "m", 2, 8).permute(0, 2, 1, 3).shape[2] == graph.symbol("m")
    conv = graph.apply(
        "conv",
        x.transpose(1, 2),
        graph.constant(np.zeros((4, 8, 3), np.float32)),
        strides=(2,),
        dilations=(1,),
        padding=((1, 1),),
    )
    assert str(conv.type) == "float32[n, 4, m]"
    with pytest.raises(GraphError, match=r"n in 1\.\.64 of graph g is elsewhere n >= 0"):
        graph.symbol("n", 0)
    with pytest.raises(ShapeError, match="nothing says that it equals"):
        x.reshape("n", "k", 8)


REFUSED = {
    "float32 and operand 1 is int32": (TypeRuleError, lambda g, x: x + g.input("i", (2, 3), "int32")),
    "0.5 is no int32": (TypeRuleError, lambda g, x: x.cast("int32") + 0.5),
    "300 is out of range of int8": (TypeRuleError, lambda g, x: x.cast("int8") + 300),
    "takes bool": (TypeRuleError, lambda g, x: x.unary("bitnot")),
    "no op is called 'gelu'": (TypeRuleError, lambda g, x: x.unary("gelu")),
    "softmax has no attribute 'axes'": (TypeRuleError, lambda g, x: g.apply("softmax", x, axes=1)),
    "softmax needs the attribute 'axis'": (TypeRuleError, lambda g, x: g.apply("softmax", x)),
    "'axis' takes int, got 1.5": (TypeRuleError, lambda g, x: g.apply("softmax", x, axis=1.5)),
    "add takes 2 operands, got 1": (TypeRuleError, lambda g, x: g.apply("add", x)),
    "axis 2 is not in 0..1": (ShapeError, lambda g, x: g.apply("softmax", x, axis=2)),
    "axis 5 is not one of": (ShapeError, lambda g, x: x.softmax(5)),
    "has an input 'x0' already": (GraphError, lambda g, x: g.input("x0", ())),
    "no value of a graph": (GraphError, lambda g, x: g.apply("neg", 3)),
    "of graph other, not of g": (GraphError, lambda g, x: x + Graph("other").input("y", (2, 3))),
    "neither true nor false": (TypeRuleError, lambda g, x: x if x > 0 else -x),
    "no permutation": (ShapeError, lambda g, x: x.permute(0, 0)),
    "do not make up dim 1": (ShapeError, lambda g, x: x.split([1, 1], 1)),
    "'2*' is no dim": (DimError, lambda g, x: g.input("y", ("2*",))),
    "dim 0 of [-1] is negative|is negative": (ShapeError, lambda g, x: g.input("y", (-1,))),
    "no dtype is called 'f32'": (TypeRuleError, lambda g, x: x.cast("f32")),
    "already": (GraphError, lambda g, x: [g.output("y", x), g.output("y", x)]),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message):
    graph, x = graph_of((2, 3))
    error, build = REFUSED[message]
    nodes = len(graph.nodes)
    with pytest.raises(error, match=message.replace("[", r"\[").replace("*", r"\*")):
        build(graph, x)
    verify(graph)
    assert len(graph.nodes) <= nodes + 3


def test_users_and_uses():
    graph, x = graph_of((2, 3))
    y = x * x
    z = y + x
    graph.output("z", z), graph.output("again", z), graph.output("y", y)
    assert [user.op.name for user in x.users] == ["mul", "add"]
    assert graph.uses(x) == 3 and graph.uses(y) == 2 and graph.uses(z) == 2 and graph.is_output(y)


def test_origins():
    graph, x = graph_of((2,))
    with graph.origin("layer.0"):
        y = x.exp()
    assert y.node.origin == "layer.0" and x.node.origin == ""
    graph.output("y", y)
    assert rebuild(graph).graph.outputs["y"].node.origin == "layer.0"


def test_weights_are_loaded_when_they_are_needed(tmp_path):
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "w.npy", numbers)
    loads = []
    graph = Graph("g")
    w = graph.parameter("w", (2, 3), data=lambda: loads.append(1) or np.load(tmp_path / "w.npy"))
    v = graph.parameter("v", (2, 3), data=np.load(tmp_path / "w.npy", mmap_mode="r"))
    graph.output("y", w + v)
    copied = bind(rebuild(graph).graph, {})
    assert not loads
    assert np.array_equal(evaluate(copied)["y"], numbers * 2) and loads == [1]
    graph.parameter("none", (2,)), graph.parameter("wrong", (2,), data=np.zeros(3, np.float32))
    with pytest.raises(EvaluateError, match="no array for the parameter 'none'"):
        graph.weight("none")
    with pytest.raises(ShapeError, match="'wrong'.*is 2.*is 3"):
        graph.weight("wrong")


def test_call_binds_the_callees_symbols():
    inner = Graph("inner")
    a = inner.input("a", ("n", 4))
    inner.output("rows", a.sum(1)), inner.output("flat", a.reshape(-1))
    outer, x, y = graph_of(("batch", 4), (3, 4))
    rows, flat = outer.call(inner, x)
    assert str(rows.type) == "float32[batch]" and str(flat.type) == "float32[4*batch]"
    assert outer.call(inner, y)[0].shape == (3,)
    verify(outer)
    with pytest.raises(ShapeError, match="input 'a' of inner is float32"):
        outer.call(inner, rows)
    with pytest.raises(GraphError, match="takes 1 inputs, got 2"):
        outer.call(inner, x, y)


def test_call_shares_parameters_by_name():
    inner = Graph("inner")
    w = inner.parameter("w", (4,), data=np.ones(4, np.float32))
    inner.output("y", inner.input("x", (4,)) * w)
    outer, x = graph_of((4,))
    (y,) = outer.call(inner, x)
    (z,) = outer.call(inner, y)
    outer.output("z", z)
    assert list(outer.parameters) == ["w"]
    assert evaluate(outer, [np.full(4, 2, np.float32)])["z"].tolist() == [2] * 4
    other = Graph("other")
    other.output("y", other.parameter("w", (4,), data=np.zeros(4, np.float32)))
    with pytest.raises(GraphError, match="one array here and another there"):
        outer.call(other)


def test_rebuild_replaces_and_drops_what_died():
    graph, x = graph_of(("n", 4))
    w = graph.parameter("w", (4,), data=np.ones(4, np.float32))
    graph.output("y", (x * 1.0 + 0.5) * 2.0)
    graph.output("z", (x - w.broadcast_to("n", 4)).exp())

    def drop_ones_and_exp(new, node, operands):
        if node.op.name == "mul" and operands[1].scalar == 1.0:
            return operands[0]
        if node.op.name == "exp":
            return new.full(node.results[0].shape, 1.0)
        return None

    result = rebuild(graph, drop_ones_and_exp)
    assert result.replaced == 2
    assert [node.op.name for node in verify(result.graph).nodes].count("mul") == 1
    assert not result.graph.parameters and not result.graph.weights
    assert result.values[x].graph is result.graph and w not in result.values
    assert verify(graph).parameters, "the old graph stays as it was"
    with pytest.raises(GraphError, match=r"is replaced by .* another type"):
        rebuild(graph, lambda new, node, operands: operands[0].sum() if node.op.name == "add" else None)


def test_bind_checks_the_facts():
    graph = Graph("g")
    graph.symbol("n", 1)
    x = graph.input("x", ("n", "n + 1"))
    graph.output("y", x)
    assert bind(graph, {"n": 3}).inputs["x"].shape == (3, 4)
    assert str(bind(graph, {"n": graph.symbol("n") * 2 + 1}).inputs["x"].type) == "float32[2*n + 1, 2*n + 2]"
    with pytest.raises(DimError, match="n = 0 contradicts n >= 1"):
        bind(graph, {"n": 0})


def test_extract_needs_its_inputs():
    graph, x, y = graph_of((2,), (2,))
    z = x + y
    with pytest.raises(GraphError, match="input 'x1'"):
        extract(graph, {"a": x}, {"z": z})


def test_dummy_inputs_depend_on_seed_and_name_and_fit():
    graph = Graph("g")
    table = graph.parameter("t", (7, 3), data=np.zeros((7, 3), np.float32))
    ids, x = graph.input("ids", ("n", 5), "int64"), graph.input("x", ("n", 3))
    graph.input("flag", (), "bool"), graph.input("q", (100,), "float8_e4m3fn"), graph.input("z", (0,), "int4")
    graph.output("y", table.gather(ids.reshape(-1).cast("int32"), 0))
    first, again, other = (graph.dummy_inputs(seed, {"n": 4}) for seed in (0, 0, 1))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["x"], other["x"])
    assert first["ids"].shape == (4, 5) and 0 <= first["ids"].min() and first["ids"].max() < 7
    assert evaluate(graph, first)["y"].shape == (20, 3)
    assert {types.dtype(a.dtype) for a in first.values()} >= {types.BOOL, types.INT4, types.FLOAT8_E4M3FN}
    with pytest.raises(DimError, match="bind n"):
        graph.dummy_inputs(0)
    assert x is not None


def test_an_index_is_limited_by_the_dims_that_it_indexes_alone():
    graph = Graph("g")
    x, at = graph.input("x", ("n", 9, 2)), graph.input("at", ("m", 1), "int64")
    pairs = graph.input("pairs", ("m", 2), "int64")
    graph.output("y", x.apply("scatter_nd", x, at, x.gather(at.reshape(-1), 0), reduction="add"))
    graph.output("z", x.apply("gather_nd", x, pairs))
    assert (at.index_limit({"n": 50}), pairs.index_limit({"n": 50})) == (50, 9)
    assert (at.index_limit({"n": 4}), pairs.index_limit({"n": 4})) == (4, 4)


def test_shapes_that_are_equal_are_not_put_into_words(monkeypatch):
    """The words of a refusal were most of the time that a rule of an op took where nothing was refused."""

    def show(shape: object) -> str:
        raise AssertionError(shape)

    graph = Graph("case")
    x, y = (graph.input(name, ("n", 3), "float32") for name in "xy")
    with monkeypatch.context() as patched:
        patched.setattr(op_module, "show", show)
        assert (x + y).shape == x.shape
        op_module.require_equal_shapes(x.shape, y.shape, "x", "y")
    with pytest.raises(ShapeError, match=r"dim 1 of x \[n, 3\] is 3, but dim 1 of y \[n, 4\] is 4"):
        op_module.require_equal_shapes(x.shape, (x.shape[0], 4), "x", "y")
