"""Sequences and optionals: resolved while a model is imported, against ONNX's reference; the rest refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

from kernels_hub.compiler.errors import EvaluateError, ImportFailure
from kernels_hub.compiler.importers.onnx import OnnxImportError, check_onnx, import_onnx
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.verify import verify
from kernels_hub.compiler.onnx_backend import KernelsHubBackend, PreparedModel
from tests.fuzz.harness import budget

F = np.float32


def parse(text: str, head: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18{head}]>\n{text}')


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [
        np.random.default_rng(place).standard_normal(shape).astype(F) for place, shape in enumerate(shapes)
    ]


def same(mine: Any, theirs: Any) -> None:
    """Raises AssertionError unless two outputs are the same arrays, in the same structure."""
    if isinstance(theirs, list):
        assert isinstance(mine, list)
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            same(one, other)
    elif theirs is None:
        assert mine is None
    else:
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)


def agrees(model: onnx.ModelProto, *inputs: Any) -> PreparedModel:
    """The prepared model, after it gave what ONNX's reference gives."""
    prepared = KernelsHubBackend.prepare(model)
    feeds = dict(zip([one.name for one in model.graph.input], inputs, strict=True))
    for mine, theirs in zip(
        prepared.run(list(inputs)), ReferenceEvaluator(model).run(None, feeds), strict=True
    ):
        same(mine, theirs)
    return prepared


def reason(model: onnx.ModelProto, **options: Any) -> str:
    """Why the only node that is refused is."""
    with pytest.raises(OnnxImportError) as error:
        import_onnx(model, **options)
    (one,) = error.value.unsupported
    return one.reason


def ops(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.live()]


def test_same_rejects_wrong_numbers_and_structures():
    a, b = arrays((3,), (3,))
    same([a, a], [a, a])
    for mine, theirs in (([a, b], [a, a]), ([a], [a, a]), (a, [a]), (None, a), (a, None)):
        with pytest.raises((AssertionError, AttributeError)):
            same(mine, theirs)


# -- the ops

MIXED = """
g (float[2, 3] a, float[2, 3] b, float[5] c) => (float[m, n] joined, float[p, 2, 3] stacked, int64 count,
                                               float[k] at) {
    empty = SequenceEmpty()
    first = SequenceInsert(empty, a)
    front = Constant<value_int = 0>()
    two = SequenceInsert(first, b, front)
    back = Constant<value_int = -1>()
    three = SequenceInsert(two, c, back)
    one = Constant<value_int = 1>()
    at = SequenceAt(three, one)
    left = SequenceErase(three, one)
    count = SequenceLength(left)
    again = SequenceConstruct(a, b, a)
    joined = ConcatFromSequence<axis = -1>(again)
    stacked = ConcatFromSequence<axis = 0, new_axis = 1>(left)
}
"""


def test_sequences_leave_no_trace():
    inputs = dict(zip("abc", arrays((2, 3), (2, 3), (5,)), strict=True))
    graph = verify(import_onnx(parse(MIXED)))
    assert set(ops(graph)) <= {"input", "constant", "concat", "reshape"}
    agrees(parse(MIXED), *inputs.values())


@pytest.mark.parametrize("place", [0, 2, -1, -3])
def test_a_place_that_only_a_call_tells(place: int):
    model = parse("""
    g (float[3, 4] x, int64 place) => (float[4] y) {
        all = SplitToSequence<keepdims = 0>(x)
        y = SequenceAt(all, place)
    }
    """)
    graph = verify(import_onnx(model))
    assert list(graph.inputs) == ["x", "place"]
    assert "gather" in ops(graph)
    (x,) = arrays((3, 4))
    np.testing.assert_array_equal(evaluate(graph, [x, np.array(place)])["y"], x[place])
    with pytest.raises(EvaluateError, match="out of range"):
        evaluate(graph, [x, np.array(3)])


@pytest.mark.parametrize(
    ("split", "axis", "shapes"),
    [("[2, 1, 4]", 0, [(2, 2), (1, 2), (4, 2)]), ("3", 0, [(3, 2), (3, 2), (1, 2)]), ("2", -1, [(7, 2)])],
)
def test_split_to_sequence(split: str, axis: int, shapes: list[tuple[int, ...]]):
    kind = "value_ints" if split.startswith("[") else "value_int"
    model = parse(f"""
    g (float[7, 2] x) => (seq(float[a, b]) y) {{
        split = Constant<{kind} = {split}>()
        y = SplitToSequence<axis = {axis}>(x, split)
    }}
    """)
    graph = import_onnx(model)
    assert [one.shape for one in graph.outputs.values()] == shapes
    agrees(model, *arrays((7, 2)))


def test_parts_keep_symbolic_dims():
    model = parse("""
    g (float[n, 4] x) => (seq(float[n, 2]) y) {
        two = Constant<value_int = 2>()
        y = SplitToSequence<axis = 1>(x, two)
    }
    """)
    graph = verify(import_onnx(model))
    assert [str(one.type) for one in graph.outputs.values()] == ["float32[n, 2]"] * 2
    agrees(model, *arrays((3, 4)))


REFUSED = [
    (
        "y = SplitToSequence(x)\n z = SequenceAt(y, at)",
        "the sequence has one tensor for each 1 of n: bind that dim to a number",
    ),
    ("y = SequenceConstruct(x, x)\n z = SequenceAt(y, two)", "place 2 is out of range of a sequence of 2"),
    ("y = SequenceConstruct(x, two)\n z = SequenceAt(y, two)", "element 1 of a sequence of float32 is int64[]"),
    ("y = SequenceEmpty()\n z = ConcatFromSequence<axis = 0>(y)", "the sequence is empty"),
    ("y = SequenceConstruct(x, x)\n z = ConcatFromSequence(y)", "the attribute axis must be given"),
    ("y = SequenceEmpty()\n z = SequenceErase(y)", "place -1 is out of range of a sequence of 0"),
    ("y = SequenceConstruct(x, x)\n z = Sin(y)",
     "input 0 is no tensor, but of type sequence(float32[n, 3], float32[n, 3])"),
    ("z = SequenceLength(x)", "input 0 is no sequence, but of type float32[n, 3]"),
    ("s = Sin(w)\n y = SequenceConstruct(x, s)\n z = SequenceAt(y, at)",
     "the place in a sequence of tensors of several shapes must be known when the model is imported; "  # noqa: ISC004
     "it depends on 'at': give the value (values={'at': …})"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "why"), REFUSED)
def test_refusals(nodes: str, why: str):
    body = f"two = Constant<value_int = 2>()\n {nodes}"
    model = parse(f"g (float[n, 3] x, float[2] w, int64 at) => (float[a, b] z) {{ {body} }}")
    model.graph.output[0].type.Clear()
    assert reason(model) == why


def test_sequence_map():
    """Not against the reference, which takes no tensor beside two sequences."""
    model = parse("""
    g (seq(float[n]) x, seq(float[n]) y, float[1] z) => (seq(float[n]) total, seq(int64[1]) shapes) {
        total, shapes = SequenceMap<body = each (float[n] a, float[n] b, float[1] c) => (float[n] s, int64[1] d)
            { ab = Mul(a, b) s = Add(ab, c) d = Shape(a) }>(x, y, z)
    }
    """)
    x, z = arrays((2,), (5,), (1,)), np.array([2], F)
    total, shapes = KernelsHubBackend.prepare(model).run([x, x[:], z])
    same(total, [one * one + 2 for one in x])
    same(shapes, [np.array(one.shape) for one in x])
    total, shapes = KernelsHubBackend.prepare(model).run([[], [], z])
    assert (total, shapes) == ([], [])


def test_a_body_that_takes_more_than_it_is_given():
    model = parse("""
    g (seq(float[2]) x) => (seq(float[2]) z) {
        z = SequenceMap<body = each (float[2] a, float[2] b) => (float[2] s) { s = Add(a, b) }>(x)
    }
    """)
    assert reason(model, shapes={"x": [(2,)]}) == "its element 0 takes 2 inputs, but is given 1"


def test_sequence_map_of_sequences_of_two_lengths():
    model = parse("""
    g (seq(float[2]) x, seq(float[2]) y) => (seq(float[2]) z) {
        z = SequenceMap<body = each (float[2] a, float[2] b) => (float[2] s) { s = Add(a, b) }>(x, y)
    }
    """)
    shapes = {"x": [(2,), (2,)], "y": [(2,)]}
    assert reason(model, shapes=shapes) == "input 0 is a sequence of 2, but input 1 of 1"


# -- inputs and outputs

REVERSED = """
g (seq(float[n]) x) => (seq(float[n]) y, int64 count) {
    count = SequenceLength(x)
    back = Constant<value_int = -1>()
    last = SequenceAt(x, back)
    rest = SequenceErase(x)
    zero = Constant<value_int = 0>()
    y = SequenceInsert(rest, last, zero)
}
"""


def test_an_input_is_spread_over_its_tensors():
    graph = verify(import_onnx(parse(REVERSED), shapes={"x": [(2,), ("n",), (3,)]}))
    assert [(name, str(one.type)) for name, one in graph.inputs.items()] == [
        ("x.0", "float32[2]"), ("x.1", "float32[n]"), ("x.2", "float32[3]"),
    ]  # fmt: skip
    assert list(graph.outputs) == ["y.0", "y.1", "y.2", "count"]
    a, b, c = arrays((2,), (4,), (3,))
    got = evaluate(graph, [a, b, c])
    same([got["y.0"], got["y.1"], got["y.2"], got["count"]], [c, a, b, np.array(3)])


def test_the_backend_takes_and_gives_lists_of_any_length():
    prepared = agrees(parse(REVERSED), arrays((2,), (4,), (3,)))
    for inputs in (arrays((2,)), arrays((1,), (1,)), arrays((2,), (4,), (3,))):
        listed, count = prepared.run([inputs])
        assert count == len(inputs)
        same(listed, [inputs[-1], *inputs[:-1]])
    with pytest.raises(EvaluateError, match="'x' is a ndarray; the model takes: sequence"):
        prepared.run([np.ones(2, F)])


def test_an_input_of_unknown_length_is_refused():
    assert reason(parse(REVERSED)) == (
        "it is a sequence, and only a call tells of how many tensors: give their shapes (shapes={'x': [(2, 3), …]})"
    )
    assert "give a list, with one shape or array a tensor" in reason(parse(REVERSED), shapes={"x": (2, 3)})
    assert len(check_onnx(parse(REVERSED))) == 1


def test_an_input_whose_value_is_fixed():
    a, b = arrays((2,), (3,))
    graph = import_onnx(parse(REVERSED), values={"x": [a, b]})
    assert list(graph.inputs) == []
    same(evaluate(graph, [])["y.0"], b)


def test_names_that_collide():
    model = parse("""
    g (seq(float[2]) x) => (seq(float[2]) y, float[2] other) {
        y = Identity(x)
        zero = Constant<value_int = 0>()
        other = SequenceAt(x, zero)
    }
    """)
    model.graph.output[1].name = model.graph.node[2].output[0] = "y.1"
    one, other = KernelsHubBackend.prepare(model).run([arrays((2,))])
    same([one, other], [arrays((2,)), arrays((2,))[0]])
    with pytest.raises(ImportFailure, match=r"the output 'y\.1' stands for two"):
        import_onnx(model, shapes={"x": [(2,), (2,)]})


def test_what_is_declared_must_hold():
    text = "g (float[2] x) => (float[2] y) { y = SequenceConstruct(x, x) }"
    assert reason(parse(text)) == "declared as a tensor, but it is sequence(float32[2], float32[2])"
    text = "g (float[2] x) => (seq(float[2]) y) { y = Sin(x) }"
    assert reason(parse(text)) == "declared as a sequence, but it is float32[2] (made by -> y)"
    text = "g (float[2] x) => (seq(int64[2]) y) { y = SequenceConstruct(x) }"
    assert reason(parse(text)) == "declared as int64, but it is sequence(float32[2])"


def test_sequences_of_what_is_no_tensor():
    model = parse("g (float[2] x) => (float[2] y) { y = Sin(x) }")
    one = model.graph.input.add(name="maps")
    one.type.sequence_type.elem_type.map_type.key_type = onnx.TensorProto.INT64
    assert reason(model) == "it is a sequence, of what is no tensor; the IR has tensors only"


# -- optionals

GUARDED = """
g (float[2] x, optional(float[2]) bias) => (float[2] y) {
    there = OptionalHasElement(bias)
    y = If(there)<
        then_branch = yes () => (float[2] a) { b = OptionalGetElement(bias) a = Add(x, b) },
        else_branch = no () => (float[2] c) { c = Identity(x) }
    >
}
"""


def test_an_optional_input_is_resolved():
    x, bias = arrays((2,), (2,))
    assert ops(import_onnx(parse(GUARDED), shapes={"bias": (2,)})) == ["input", "input", "add"]
    without = import_onnx(parse(GUARDED), shapes={"bias": None})
    assert (list(without.inputs), ops(without)) == (["x"], ["input"])
    assert list(import_onnx(parse(GUARDED), values={"bias": None}).inputs) == ["x"]
    prepared = agrees(parse(GUARDED), x, bias)
    same(prepared.run([x, None])[0], x)
    same(prepared.run([x, bias])[0], x + bias)
    assert reason(parse(GUARDED)) == (
        "it is optional, and only a call tells whether it is given: say it by its shape (shapes={'bias': …}), or by None"
    )


def test_an_empty_optional_is_no_output():
    model = parse("""
    g (optional(seq(float[2])) x) => (optional(seq(float[2])) y, bool there) {
        y = Identity(x)
        there = OptionalHasElement(x)
    }
    """)
    prepared = KernelsHubBackend.prepare(model)
    nothing, there = prepared.run([None])
    assert (nothing, bool(there)) == (None, False)
    listed, there = prepared.run([arrays((2,), (2,))])
    same(listed, arrays((2,), (2,)))
    assert bool(there)
    empty, there = prepared.run([[]])
    assert (empty, bool(there)) == ([], True)


def test_the_element_of_an_empty_optional():
    model = parse("g (optional(float[2]) x) => (float[2] y) { y = OptionalGetElement(x) }")
    assert reason(model, shapes={"x": None}) == "the optional value is empty"


# -- subgraphs and functions

BRANCHES = """
g (bool go, float[2] x, float[3] w) => (seq(float[n]) y) {
    y = If(go)<
        then_branch = yes () => (seq(float[n]) a) { b = Sin(x) a = SequenceConstruct(b, w) },
        else_branch = no () => (seq(float[n]) c) { c = SequenceConstruct(x, w) }
    >
}
"""


def test_if_gives_a_sequence_whichever_way_it_goes():
    graph = verify(import_onnx(parse(BRANCHES)))
    assert "if" in ops(graph)
    assert list(graph.outputs) == ["y.0", "y.1"]
    x, w = arrays((2,), (3,))
    for go in (True, False):
        got = evaluate(graph, [np.array(go), x, w])
        same([got["y.0"], got["y.1"]], [np.sin(x) if go else x, w])
        agrees(parse(BRANCHES), np.array(go), x, w)


def test_if_of_sequences_of_two_lengths_needs_the_condition():
    text = BRANCHES.replace("SequenceConstruct(x, w)", "SequenceConstruct(x)")
    found = reason(parse(text))
    assert "give the value (values={'go': …})" in found
    assert "one branch gives sequence(float32[2], float32[3]), the other sequence(float32[2])" in found
    x, w = arrays((2,), (3,))
    for go in (True, False):
        agrees(parse(text), np.array(go), x, w)


GROWING = """
g (int64 trips, float[n] x) => (seq(float[n]) y, float[n] last) {
    go = Constant<value = bool {1}>()
    empty = SequenceEmpty()
    last, y = Loop(trips, go, x, empty)<body = trip (int64 i, bool c, float[n] v, seq(float[n]) s) =>
        (bool d, float[n] w, seq(float[n]) t) { d = Identity(c) w = Sin(v) t = SequenceInsert(s, w) }>
}
"""


@pytest.mark.parametrize("trips", [0, 1, 3, 40])
def test_a_loop_that_makes_a_sequence_is_written_out(trips: int):
    graph = verify(
        import_onnx(parse(GROWING.replace("last, y =", "last, y =")), values={"trips": np.array(trips)})
    )
    assert len(graph.outputs) == trips + 1
    assert ops(graph).count("sin") == trips
    agrees(parse(GROWING), np.array(trips), *arrays((3,)))


def test_a_loop_of_unknown_length_that_makes_a_sequence():
    found = reason(parse(GROWING))
    assert "the number of trips must be known when the model is imported; it depends on 'trips'" in found
    assert "a carried value is sequence(no float32) before and sequence(float32[n]) after a trip" in found
    assert reason(parse(GROWING), values={"trips": np.array(1025)}).startswith(
        "its 1025 trips are more than the 1024 that are written out, and as an op: a carried value is sequence("
    )


def test_a_sequence_of_fixed_length_goes_through_a_loop_that_stays_one():
    model = parse("""
    g (int64 trips, float[2] x, float[3] w) => (float[2] y, float[3] z) {
        go = Constant<value = bool {1}>()
        first = SequenceConstruct(x, w)
        last = Loop(trips, go, first)<body = trip (int64 i, bool c, seq(float[n]) s) => (bool d, seq(float[n]) t)
            { zero = Constant<value_int = 0>() one = Constant<value_int = 1>() d = Identity(c)
              a = SequenceAt(s, zero) b = SequenceAt(s, one) sa = Sin(a) cb = Cos(b) t = SequenceConstruct(sa, cb) }>
        zero = Constant<value_int = 0>()
        one = Constant<value_int = 1>()
        y = SequenceAt(last, zero)
        z = SequenceAt(last, one)
    }
    """)
    graph = verify(import_onnx(model))
    assert "loop" in ops(graph)
    assert list(graph.inputs) == ["trips", "x", "w"]
    for trips in (0, 1, 5):
        agrees(model, np.array(trips), *arrays((2,), (3,)))


def test_an_optional_sequence_that_a_loop_fills():
    """As the official case test_loop16_seq_none, whose result the runner cannot compare."""
    model = parse("""
    g (optional(seq(float)) first) => (seq(float) y) {
        five = Constant<value_int = 5>()
        go = Constant<value = bool {1}>()
        y = Loop(five, go, first)<body = trip (int64 i, bool c, optional(seq(float)) s) => (bool d, seq(float) t) {
            d = Identity(c)
            there = OptionalHasElement(s)
            known = If(there)<
                then_branch = yes () => (seq(float) a) { a = OptionalGetElement(s) },
                else_branch = no () => (seq(float) b) { z = Constant<value_float = 0.5>() b = SequenceConstruct(z) }
            >
            f = Cast<to = 1>(i)
            t = SequenceInsert(known, f)
        }>
    }
    """)
    prepared = KernelsHubBackend.prepare(model)
    for first, start in ((None, [0.5]), ([], []), ([np.array(7, F)], [7])):
        (listed,) = prepared.run([first])
        same(listed, [np.array(one, F) for one in (*start, 0, 1, 2, 3, 4)])


def test_functions_take_and_give_sequences():
    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 18, "local" : 1]>
    g (float[2] x, float[3] w) => (seq(float[n]) y, float[3] z) {
        a = SequenceConstruct(x, w)
        y, z = local.swap(a)
    }
    <domain: "local", opset_import: ["" : 18]>
    swap (s) => (t, last) {
        zero = Constant<value_int = 0>()
        one = Constant<value_int = 1>()
        last = SequenceAt(s, one)
        rest = SequenceErase(s, one)
        t = SequenceInsert(rest, last, zero)
    }
    """)
    agrees(model, *arrays((2,), (3,)))


def test_subgraphs_take_sequences_from_outside():
    model = parse("""
    g (bool go, int64 trips, float[4, 2] x, float[2] w) => (float[2] y, float[2] z, float[4, 2] scanned) {
        pair = SequenceConstruct(w, x)
        zero = Constant<value_int = 0>()
        one = Constant<value_int = 1>()
        keep = Constant<value = bool {1}>()
        y = If(go)<
            then_branch = yes () => (float[2] a) { a = SequenceAt(pair, zero) },
            else_branch = no () => (float[2] b) { c = SequenceAt(pair, one) b = ReduceSum<keepdims = 0>(c, axes) }
        >
        axes = Constant<value_ints = [0]>()
        z = Loop(trips, keep, w)<body = trip (int64 i, bool c, float[2] v) => (bool d, float[2] u)
            { d = Identity(c) f = SequenceAt(pair, zero) s = Sin(v) u = Add(s, f) }>
        scanned = Scan<num_scan_inputs = 1, body = each (float[2] row) => (float[2] out)
            { first = SequenceAt(pair, zero) out = Mul(row, first) }>(x)
    }
    """)
    graph = verify(import_onnx(model))
    assert {"if", "loop"} <= set(ops(graph))
    x, w = arrays((4, 2), (2,))
    for go, trips in ((True, 0), (False, 3)):
        got = evaluate(graph, [np.array(go), np.array(trips), x, w])
        same(got["y"], w if go else x.sum(0))
        z = w
        for _ in range(trips):
            z = np.sin(z) + w
        same(got["z"], z)
        same(got["scanned"], x * w)


# -- any program of sequence ops is what it is on Python's lists

STEPS = st.lists(
    st.tuples(st.sampled_from(["insert", "append", "erase", "pop", "take", "repeat"]), st.integers(-4, 4)),
    max_size=8,
)


@settings(max_examples=budget(20, 200), deadline=None)
@given(STEPS, st.integers(0, 3))
def test_programs_of_sequence_ops(steps: list[tuple[str, int]], length: int):
    x = np.arange(2.0, dtype=F)
    nodes = [
        helper.make_node("SequenceConstruct", ["x"] * length, ["s"])
        if length
        else helper.make_node("SequenceEmpty", [], ["s"])
    ]
    wanted, current, names = [x] * length, "s", (f"n{i}" for i in itertools.count())
    for op, place in steps:
        size, after = len(wanted), next(names)
        at = next(names)
        nodes.append(helper.make_node("Constant", [], [at], value_int=place))
        fits = -size <= place < size
        if op in {"insert", "append"} and (op == "append" or -size <= place <= size):
            fresh, more = next(names), next(names)
            nodes.append(helper.make_node("Constant", [], [more], value_float=float(len(nodes))))
            nodes.append(helper.make_node("Add", ["x", more], [fresh]))
            wanted.insert(size if op == "append" else place, x + F(len(nodes) - 2))
            nodes.append(
                helper.make_node(
                    "SequenceInsert", [current, fresh, *([at] if op == "insert" else [])], [after]
                )
            )
        elif op in {"erase", "pop"} and size and (op == "pop" or fits):
            del wanted[-1 if op == "pop" else place]
            nodes.append(
                helper.make_node("SequenceErase", [current, *([at] if op == "erase" else [])], [after])
            )
        elif op == "take" and fits:
            one = next(names)
            nodes.append(helper.make_node("SequenceAt", [current, at], [one]))
            nodes.append(helper.make_node("SequenceConstruct", [one, "x"], [after]))
            wanted = [wanted[place], x]
        elif op == "repeat" and wanted:
            joined = next(names)
            nodes.append(helper.make_node("ConcatFromSequence", [current], [joined], axis=0, new_axis=1))
            nodes.append(helper.make_node("SplitToSequence", [joined], [after], axis=0, keepdims=0))
        else:
            continue
        current = after
    nodes.append(helper.make_node("SequenceLength", [current], ["count"]))
    nodes.append(helper.make_node("Identity", [current], ["y"]))
    info = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    graph = helper.make_graph(nodes, "g", [info], [onnx.ValueInfoProto(name=one) for one in ("y", "count")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    listed, count = KernelsHubBackend.prepare(model).run([x])
    same(listed, wanted)
    assert count == len(wanted)
