"""The op table: rows are complete, and one row is all that a new op takes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from kernels_hub.compiler import Graph, bind, evaluate, parse_graph, print_graph, rebuild, verify
from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.importers import onnx_node
from kernels_hub.compiler.importers.aten_ops import HANDLERS
from kernels_hub.compiler.importers.onnx_ops import DOMAINS, enter_domains
from kernels_hub.compiler.ir.op import Formulas, Op, Pull, Trait, spelled
from kernels_hub.compiler.ir.ops import FAMILIES, OPS, add_op
from kernels_hub.compiler.ir.ops.pointwise import elementwise, pointwise
from kernels_hub.compiler.ir.types import FLOAT32, FLOAT64, INT8
from tests.compiler.oracle import array


@pytest.mark.parametrize("row", OPS.values(), ids=str)
def test_a_row_is_complete(row):
    assert row.doc and callable(row.numpy)
    assert (row.signature is None) == (row.dtype is not None and row.shape is not None)
    names = [attr.name for attr in row.attrs]
    assert len(names) == len(set(names))
    for attr in row.attrs:
        if attr.default is not None and "REQUIRED" not in repr(attr.default):
            assert attr.kind.normalise(attr.default) == attr.default
    if Trait.ASSOCIATIVE in row.traits:
        assert row.identity is not None
    if row.torch or row.onnx:
        assert isinstance(row.arity, int), "importers know no other operands"
        assert Trait.POINTWISE in row.traits or not row.onnx, "attributes of ONNX have names of their own"
    if row.derivative is not None:
        assert isinstance(row.derivative, Formulas) == (Trait.POINTWISE in row.traits)
        assert isinstance(row.derivative, Pull) or len(row.derivative.operands) == row.arity
    if row.defines:
        assert row.attr(row.defines).kind.name == "symbol"


def overruled(rows: Iterable[Op]) -> list[str]:
    """What rows say they import, and an importer does first that makes no node of theirs."""
    enter_domains(DOMAINS)
    importers: dict[str, list[Callable[..., object]]] = {name: [one] for name, one in HANDLERS.items()}
    for (domain, name), versions in onnx_node._IMPORTERS.items():
        if not domain:
            importers[name] = [one for _, one in versions]
    return [
        name
        for row in rows
        for name in (*row.torch, *row.onnx)
        if name in importers and not any(f'"{row.name}"' in inspect.getsource(one) for one in importers[name])
    ]


def test_what_a_row_imports_has_no_other_importer():
    assert overruled(OPS.values()) == []
    sinc = pointwise(
        "sinc", "sin(pi x) / (pi x)", np.sinc, ("float",), torch=("sinc.default",), onnx=("Softsign",)
    )
    assert overruled([sinc]) == ["sinc.default", "Softsign"]


def test_families_make_up_the_table():
    assert sum(len(family.ROWS) for family in FAMILIES) == len(OPS)
    with pytest.raises(TypeRuleError, match="there is an op 'add' already"):
        add_op(pointwise("add", "another", np.add, ("float",), arity=2))


IDENTITIES = [
    (row, dtype)
    for row in OPS.values()
    if row.identity and row.bounds == (2, 2)
    for dtype in (FLOAT32, FLOAT64, INT8)
    if not (dtype.is_float and row.name.startswith("bit"))
]


@pytest.mark.parametrize(("row", "dtype"), IDENTITIES, ids=str)
def test_an_identity_changes_nothing(row, dtype):
    graph = Graph("g")
    special = [-0.0, 0.0, 1.0, -3.5, math.inf, -math.inf]
    x = np.array(special, dtype.numpy) if dtype.is_float else np.arange(-128, 128).astype(np.int8)
    graph.output("y", graph.input("x", x.shape, dtype).binary(row.name, row.identity(dtype)))
    assert evaluate(graph, [x])["y"].tobytes() == x.tobytes()


COMMUTING = [row for row in OPS.values() if Trait.COMMUTATIVE in row.traits]


@pytest.mark.parametrize("row", COMMUTING, ids=str)
def test_commutative_ops_commute(row):
    dtype = "int8" if row.name.startswith("bit") else "float32"
    x, y = array(50, dtype=dtype), array(50, dtype=dtype, seed=1)
    graph = Graph("g")
    a, b = graph.input("a", (50,), dtype), graph.input("b", (50,), dtype)
    graph.output("ab", a.binary(row.name, b)), graph.output("ba", b.binary(row.name, a))
    result = evaluate(graph, [x, y])
    assert np.array_equal(result["ab"], result["ba"])


def test_a_new_elementwise_op_is_one_row(monkeypatch):
    row = pointwise(
        "lgamma", "log |gamma(x)|", elementwise(math.lgamma), ("float",),
        spellings=spelled(triton="libdevice.lgamma({0})", cpp="std::lgamma({0})"), source="C",
    )  # fmt: skip
    monkeypatch.setitem(OPS, row.name, row)

    graph = Graph("g")
    x = graph.input("x", ("n", 2), "bfloat16")
    graph.output("y", x.unary("lgamma") + x.unary("lgamma").mean(-1, keepdims=True))
    assert [node.op.name for node in graph.nodes].count("lgamma") == 1, "hash-consed"
    text = print_graph(verify(graph))
    assert "bfloat16[n, 2] = lgamma(%0)" in text
    again = bind(rebuild(parse_graph(text)).graph, {"n": 3})
    data = graph.dummy_inputs(0, {"n": 3})
    result = evaluate(again, data, debug=True)
    first = np.array([[math.lgamma(v) for v in r] for r in data["x"].astype(float)]).astype(data["x"].dtype)
    expected = first + first.astype(np.float32).mean(-1, keepdims=True).astype(first.dtype)
    assert np.array_equal(result["y"], expected.astype(first.dtype))
    assert "lgamma" in result.report.totals
    assert row.spell("cpp", "float").format("x3") == "std::lgamma(x3)"
    with pytest.raises(TypeRuleError, match="takes float, not int64"):
        graph.constant(3).unary("lgamma")
