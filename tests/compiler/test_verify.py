"""Each invariant, broken on purpose, is found, and the value is named."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler import Graph, verify
from kernels_hub.compiler.errors import VerifyError
from kernels_hub.compiler.ir.dims import symbol
from kernels_hub.compiler.ir.op import TensorType
from kernels_hub.compiler.ir.ops import OPS
from kernels_hub.compiler.ir.types import FLOAT16


def sound():
    graph = Graph("g")
    x = graph.input("x", ("n", 3))
    w = graph.parameter("w", (3,), data=np.zeros(3, np.float32))
    y = x + w
    graph.output("y", y.softmax(1) * graph.constant([1.0, 2.0, 3.0]))
    return graph, x, w, y


def _swap(graph):
    graph.nodes[-1], graph.nodes[-2] = graph.nodes[-2], graph.nodes[-1]


def _copy(graph, node):
    clone = type(node)(graph, len(graph.nodes), node.op, node.operands, node.attrs, "")
    value = type(node.results[0])(clone, 0, len(graph.values), node.results[0].type)
    clone.results = (value,)
    for operand in node.operands:
        operand.users.append(clone)
    graph.nodes.append(clone), graph.values.append(value)


BROKEN = {
    r"%\d+ = .*stands at": lambda g, x, w, y: _swap(g),
    r"%3 = add.* its type is float16": lambda g, x, w, y: setattr(y, "type", TensorType(FLOAT16, y.shape)),
    r"its type is float32\[4, 3\], the rules give float32\[n, 3\]": lambda g, x, w, y: setattr(y, "type", TensorType(y.dtype, (4, 3))),
    r"does not list it as a user": lambda g, x, w, y: y.users.clear(),
    r"is no value of graph g": lambda g, x, w, y: setattr(y.node, "operands", (Graph("h").input("x", ("n", 3)), y.operands[1])),
    r"is the same as %3 = add": lambda g, x, w, y: _copy(g, y.node),
    r"broadcast.*attributes are": lambda g, x, w, y: y.operands[1].attrs.update(axes=[1]),
    r"rules refuse it.*axis 7": lambda g, x, w, y: y.users[0].attrs.update(axis=7),
    r"no row of the op table": lambda g, x, w, y: setattr(y.node, "op", type(OPS["add"])("add", "", 2, None)),
    r"input 'z' of graph g is %0": lambda g, x, w, y: g.inputs.update(z=x),
    r"the input 'x' is not in the signature": lambda g, x, w, y: g.inputs.clear(),
    r"the parameter 'w' is not in the signature": lambda g, x, w, y: (g.parameters.clear(), g.weights.clear()),
    r"output 'q'.*another graph": lambda g, x, w, y: g.outputs.update(q=Graph("h").input("x", ())),
    r"array for 'v', which is no parameter": lambda g, x, w, y: g.weights.update(v=np.zeros(2)),
    r"parameter 'w' is float32\[3\], its array float64": lambda g, x, w, y: g.weights.update(w=np.zeros(3)),
    r"symbol n >= 0 is declared as n >= 1": lambda g, x, w, y: g.symbols.update(n=symbol("n", 1)),
    r"symbol n >= 0 is declared as None": lambda g, x, w, y: g.symbols.clear(),
    r"lists \d+ values": lambda g, x, w, y: g.values.append(x),
    r"can be written to": lambda g, x, w, y: _writeable(g),
}  # fmt: skip


def _writeable(graph):
    literal = next(node for node in graph.nodes if node.op.name == "constant").attrs["value"]
    object.__setattr__(literal, "array", np.array(literal.array))


def test_a_sound_graph_passes():
    graph, *_ = sound()
    assert verify(graph) is graph


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_invariant_is_found(message):
    graph, x, w, y = sound()
    BROKEN[message](graph, x, w, y)
    with pytest.raises(VerifyError, match=message):
        verify(graph)


def test_regions_are_verified_too():
    inner = Graph("inner")
    a = inner.input("a", ())
    inner.output("b", a + 1.0)
    graph = Graph("g")
    graph.output("y", graph.add("call", [graph.input("x", ())], {"callee": inner}).results[0])
    verify(graph)
    inner.outputs["b"].type = TensorType(FLOAT16, ())
    with pytest.raises(VerifyError):
        verify(graph)
