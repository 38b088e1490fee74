"""Loops of ONNX: written out, counted, or ops of their own."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.importers.onnx import OnnxImportError, import_onnx
from kernels_hub.compiler.importers.onnx_file import OuterNames
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.verify import verify
from tests.compiler.importers.test_onnx import agrees, ops, parse, random, without_shapes

LOOP = """
g (int64 trips, float[3] x) => (float[3] y, float[t, 3] all) {
    yes = Constant<value = bool {1}>()
    y, all = Loop (trips, yes, x) <
        body = b (int64 i, bool c, float[3] s) => (bool d, float[3] u, float[3] v) {
            d = Identity(c)
            f = Cast<to = 1>(i)
            t = Mul(s, x)
            u = Add(t, f)
            v = Identity(u)
        }
    >
}"""


def test_loops_are_written_out_where_the_trips_are_known_and_few():
    x, trips = random(3), np.array(4)
    graph = agrees(without_shapes(parse(LOOP)), trips, x, values={"trips": trips})
    assert "loop" not in ops(graph)
    long = np.array(50)
    graph = agrees(without_shapes(parse(LOOP)), long, x * 0.5, values={"trips": long})
    assert "loop" in ops(graph)


COUNTING = """
g (float[t, 3] x, float[3] s) => (float[3] y, float[u, 3] all) {
    shape = Shape(x)
    zero = Constant<value = int64[1] {0}>()
    first = Gather(shape, zero)
    axis = Constant<value = int64[1] {0}>()
    size = Squeeze(first, axis)
    end = Cast<to = 1>(size)
    nothing = Constant<value = float {0}>()
    begins = Less(nothing, end)
    start = Constant<value = int32 {0}>()
    places, y, all = Loop (, begins, start, s) <
        body = b (int64 i, bool c, int32 place, float[3] before) => (bool d, int32 next, float[3] after, float[3] z) {
            one = Constant<value = int32 {1}>()
            next = Add(place, one)
            row = Gather(x, place)
            sum = Add(before, row)
            after = Tanh(sum)
            z = Identity(after)
            reached = Cast<to = 1>(next)
            d = Less(reached, end)
        }
    >
}"""


def test_a_loop_that_counts_up_to_a_size_by_its_condition():
    """As tf2onnx writes recurrent layers: the condition is a comparison of floats."""
    graph = agrees(without_shapes(parse(COUNTING)), random(5, 3), random(3))
    (node,) = (node for node in graph.live() if node.op.name == "loop")
    assert str(node.attrs["count"]) == "t" and next(iter(node.attrs["body"].outputs.values())).scalar is True
    for length in (1, 40):
        agrees(without_shapes(parse(COUNTING)), random(length, 3), random(3))


@pytest.mark.parametrize("other", ["int32 {2}", "int32 {-1}"])
def test_a_loop_that_counts_otherwise_is_not_counted(other):
    """Its trips are not the size."""
    model = without_shapes(
        parse(COUNTING.replace("one = Constant<value = int32 {1}>", f"one = Constant<value = {other}>"))
    )
    with pytest.raises(CompilerError, match="may end early"):
        import_onnx(model)


def test_a_loop_whose_trips_only_data_tell():
    model = without_shapes(
        parse(
            LOOP.replace(", float[t, 3] all", "")
            .replace("y, all", "y")
            .replace(", float[3] v", "")
            .replace("v = Identity(u)", "")
        )
    )
    graph = verify(import_onnx(model))
    assert "loop" in ops(graph)
    x = random(3)
    for trips in (0, 1, 40):
        wanted = ReferenceEvaluator(model).run(None, {"trips": np.array(trips), "x": x})[0]
        np.testing.assert_allclose(evaluate(graph, [np.array(trips), x])["y"], wanted, rtol=1e-5)
    with pytest.raises(
        OnnxImportError, match="the number of trips, which is how long the stacked results are"
    ):
        import_onnx(parse(LOOP))


def test_a_subgraph_is_read_once_however_deep_it_lies():
    """Each level of a model of nested Ifs was read again for each level above it, and at each import."""
    deep, levels = "z = Identity(x0)", 8
    for level in range(1, levels):
        deep = f"""z = If (c) <
            then_branch = g{level} () => (float[3] z{level}) {{ {deep.replace("z =", f"z{level} =", 1)} }},
            else_branch = h{level} () => (float[3] w{level}) {{ w{level} = Neg(x{level}) }}
        >"""
    outer = f"g (bool c, {', '.join(f'float[3] x{level}' for level in range(levels))}) => (float[3] z) {{ {deep} }}"
    (node,) = parse(outer).graph.node
    read = []

    class Counting(OuterNames):
        def needs(self, node):
            read.append(node)
            return super().needs(node)

    names = Counting()
    assert sorted(set(names.needs(node))) == ["c", *(f"x{level}" for level in range(levels))]
    assert len(read) == 2 * levels - 1
    read.clear()
    then = next(one.g for one in node.attribute if one.name == "then_branch")
    assert "x0" in names.of(then)
    assert not read
