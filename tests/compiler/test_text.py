"""The printed form, pinned; what the parser refuses, with the line."""

from __future__ import annotations

import re

import numpy as np
import pytest

from kernels_hub.compiler import Graph, parse_graph, print_graph, verify
from kernels_hub.compiler.errors import ParseError
from kernels_hub.compiler.ir.printer import large_constants
from kernels_hub.compiler.ir.types import DTYPES

TEXT = """\
graph "mlp \\"é\\"" {
  symbols batch >= 1, "seq len" in 1..512
  %0: float32[batch, "seq len", 8] = input(name="x")
  %1: float32[8, 4] = parameter(name="w.0")
  %2: float32[batch, 8, 4] = broadcast(%1, axes=[1, 2]) @"layers.0"
  %3: float32[batch, "seq len", 4] = matmul(%0, %2) @"layers.0"
  %4: float32[] = constant(value=[-0.0])
  %5: float32[batch, "seq len", 4] = broadcast(%4, axes=[])
  %6: float32[batch, "seq len", 4] = maximum(%3, %5)
  %7: float32[batch, "seq len", 4] = slice(%6, starts=[0, 0, 0], stops=[batch, "seq len", 4], steps=[1, 1, 1])
  %8: float32[3] = constant(value=[nan, inf, -inf])
  %9: float16[3] = cast(%8, saturate=true)
  return "y" = %7, "z" = %9
}"""


def test_the_text_is_what_it_is():
    graph = parse_graph(TEXT)
    assert str(graph) == TEXT
    verify(graph)
    assert graph.symbols["seq len"].only_symbol.max == 512
    assert np.signbit(graph.values[4].array)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("count", [0, 3, 40])
def test_constants_of_every_dtype_come_back_as_they_were(dtype, count):
    bits = np.random.default_rng(0).integers(0, 256, (count, dtype.numpy.itemsize), np.uint8)
    if dtype.bits < 8:
        bits = bits % (1 << dtype.bits)
    if dtype.kind == "bool":
        bits = bits % 2
    graph = Graph("g")
    graph.output("y", graph.constant(bits.reshape(-1).view(dtype.numpy)))
    again = parse_graph(print_graph(graph, data=True))
    assert again.outputs["y"].attrs["value"] == graph.outputs["y"].attrs["value"]
    assert str(parse_graph(str(graph), constants=large_constants(graph))) == str(graph)


def _regions():
    body = Graph("body")
    i, total, x = body.input("i", (), "int64"), body.input("total", ()), body.input("x", ())
    body.output("on", i < 2), body.output("sum", total + x), body.output("each", total)
    graph = Graph("outer")
    on, start, step = graph.constant(True), graph.constant(0.0), graph.input("x", ())
    loop = graph.add("loop", [graph.constant(5), on, start, step], {"body": body, "carried": 1, "count": 3})
    graph.output("sum", loop.results[0]), graph.output("each", loop.results[1])
    return graph


def test_regions_are_nested_blocks():
    graph = _regions()
    text = print_graph(graph)
    again = verify(parse_graph(text))
    assert print_graph(again) == text
    assert re.search(
        r'  %4: float32\[\], %5: float32\[3\] = loop\(.*body="body" \{\n    %0: int64\[\] = input', text
    )


WRONG = {
    r"line 1: expected 'graph', got 'hello'": "hello",
    r"line 3: expected a value that stands above, got '%7'": 'graph "g" {\n%0: float32[] = input(name="x")\n%1: float32[] = neg(%7)\n}',
    r"line 2: neg gives float32\[2\], not float32\[3\]": 'graph "g" { %0: float32[2] = input(name="x")\n%1: float32[3] = neg(%0)\nreturn }',
    r"line 1: there is a %0 already": 'graph "g" { %0: float32[2] = input(name="x") %0: float32[2] = neg(%0) return }',
    r"line 1: graph g has an input 'x' already": 'graph "g" { %0: float32[2] = input(name="x") %1: float32[2] = input(name="x") return }',
    r"line 1: expected a value or an attribute of neg, got 'axis'": 'graph "g" { %0: float32[2] = input(name="x") %1: float32[2] = neg(%0, axis=1) return }',
    r"line 2: '\$' is nothing|line 2: .*nothing that a graph is written with": 'graph "g" {\n$ }',
    r"the constant @0{32} is not given": 'graph "g" { %0: float32[9] = constant(value=@00000000000000000000000000000000) return }',
    r"these bytes are no float32\[2\]": 'graph "g" { %0: float32[2] = constant(value="AAAA") return }',
    r"line 1: expected 'return', got 'the end'": 'graph "g" { ',
    r"expected the end": 'graph "g" { return } more',
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_no_graph_says_where(message):
    with pytest.raises(ParseError, match=message):
        parse_graph(WRONG[message])


def test_a_constant_that_is_another_is_refused():
    graph = Graph("g")
    graph.output("y", graph.constant(np.arange(20.0)))
    (digest,) = large_constants(graph)
    with pytest.raises(ParseError, match="is another"):
        parse_graph(str(graph), constants={digest: np.arange(21.0)})
