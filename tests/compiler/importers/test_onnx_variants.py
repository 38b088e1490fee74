"""OnnxVariants: what is assumed of a call, in which order, and which other calls a variant is right for."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from kernels_hub.compiler import compile as compile_model
from kernels_hub.compiler.errors import ImportFailure, ShapeError
from kernels_hub.compiler.importers.onnx import Import, import_onnx
from kernels_hub.compiler.importers.onnx_variants import OnnxVariants, divisors_of
from kernels_hub.compiler.ir.dims import symbol
from kernels_hub.compiler.ir.evaluate import evaluate


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]>\n{text}')


HALVED = """
g (float[1, 1, h] x) => (float[1, 1, k] y) {
    w = Constant<value = float[1, 1, 1] {1}>()
    half = Conv<strides = [2]>(x, w)
    sizes = Constant<value_floats = [1.0, 1.0, 2.0]>()
    empty = Constant<value = float[0] {}>()
    double = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric">(half, empty, sizes)
    y = Add(x, double)
}
"""
"""Of even sizes only."""

CHOSEN = """
g (float[n] x, int64 rate) => (float[n] y) {
    wanted = Constant<value_int = 3>()
    same = Equal(rate, wanted)
    y = If(same) <then_branch = a () => (float[n] p) { p = Neg(x) }, else_branch = b () => (float[n] q) { q = Abs(x) }>
}
"""


def first(variants: OnnxVariants, *inputs: np.ndarray):
    values = dict(zip(variants.inputs, inputs, strict=True))
    return next(variants.of([one.shape for one in inputs], values))


@pytest.mark.parametrize(
    ("dim", "divisor"),
    [("n", 1), ("n // 2", 2), ("(n // 2 + 1) // 2", 4), ("n // 2 + n // 3", 6), ("min(n % 5, 7)", 5)],
)
def test_divisors(dim, divisor):
    n = symbol("n", 1)
    found = {
        "n": n, "n // 2": n // 2, "(n // 2 + 1) // 2": (n // 2 + 1) // 2, "n // 2 + n // 3": n // 2 + n // 3,
    }.get(dim)  # fmt: skip
    if found is None:
        from kernels_hub.compiler.ir.extrema import dim_min

        found = dim_min(n % 5, 7)
    assert divisors_of([found, 3]).get("n", 1) == divisor


def test_sizes_of_one_remainder_share_a_variant():
    variants = OnnxVariants(parse(HALVED))
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 8)
    variant = first(variants, x)
    assert variant.takes([(1, 1, 8)], {})
    assert variant.takes([(1, 1, 100)], {})
    assert not variant.takes([(1, 1, 7)], {})
    longer = np.arange(6, dtype=np.float32).reshape(1, 1, 6)
    expected = longer + np.repeat(longer[..., ::2], 2, -1)
    np.testing.assert_array_equal(evaluate(variant.graph, {"x": longer})["y"], expected)


def test_sizes_that_never_fit_raise():
    variants = OnnxVariants(parse(HALVED))
    with pytest.raises(ImportFailure, match="do not broadcast: 7 against 8"):
        first(variants, np.zeros((1, 1, 7), np.float32))
    with pytest.raises(ShapeError, match=r"input 'x' float32\[1, 1, h\] got \[2, 1, 8\]"):
        first(variants, np.zeros((2, 1, 8), np.float32))


def test_values_that_decide_are_part_of_a_variant():
    variants = OnnxVariants(parse(CHOSEN))
    x = np.array([-1.0, 2.0], np.float32)
    negative = first(variants, x, np.array(3))
    assert list(negative.graph.inputs) == ["x"]
    assert list(variants.wanted) == ["rate"]
    np.testing.assert_array_equal(evaluate(negative.graph, {"x": x})["y"], -x)
    assert negative.takes([(2,), ()], {"rate": np.array(3)})
    assert negative.takes([(5,), ()], {"rate": np.array(3)})
    assert not negative.takes([(2,), ()], {"rate": np.array(4)})
    np.testing.assert_array_equal(evaluate(first(variants, x, np.array(4)).graph, {"x": x})["y"], np.abs(x))


def test_axes_without_a_name_may_differ():
    text = 'g (float["?", "?"] x) => (float[a, b] y) { y = Neg(x) }'
    model = parse(text.replace('"?", "?"', "s, t"))
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_param = "?"
    variants = OnnxVariants(model)
    assert [str(dim) for dim in variants.inputs["x"].shape] == ["x_0", "x_1"]
    assert first(variants, np.zeros((2, 3), np.float32)).takes([(4, 5)], {})


@pytest.fixture
def imports(monkeypatch) -> list[int]:
    """Grows by one at each import of a model."""
    counted: list[int] = []
    program = Import.program

    def count(one: Import):
        counted.append(1)
        return program(one)

    monkeypatch.setattr(Import, "program", count)
    return counted


ENDING = """
g (float[1, n] x) => (float[1, n] y) {
    start = Constant<value_ints = [0]>() end = Constant<value_ints = [1000000000]>() axis = Constant<value_ints = [1]>()
    part = Slice(x, start, end, axis)
    y = Add(x, part)
}
"""
"""Of all sizes up to a number that only tells the exporter's "to the end"."""


@pytest.mark.parametrize(
    ("text", "shapes", "count", "variants"),
    [
        # for all sizes, and for multiples of 2, by which "compile" sees that calls will help
        (HALVED, [(1, 1, 8), (1, 1, 100)], 2, 1),
        # the value of an input is all that is wanted: nothing is tried before a call
        (CHOSEN, [(2,), (5,)], 2, 1),
        # a number that sizes without a bound may exceed: all sizes are tried again, below one
        (ENDING, [(1, 7), (1, 8)], 3, 1),
    ],
)
def test_models_are_imported_no_more_often_than_they_change(imports, text, shapes, count, variants):
    """HALVED was imported four times: again for all sizes, and once for sizes that no call brings."""
    run = compile_model(parse(text), "cpu", engines=("library",))
    rate = [np.array(3)] if "rate" in text else []
    for shape in shapes:
        run(np.ones(shape, np.float32), *rate)
    assert (len(imports), len(run.variants)) == (count, variants)


def test_a_graph_is_given_away_once():
    """Executables change what they compile; other sizes of the same kind would get it, once it is dropped."""
    variants = OnnxVariants(parse(HALVED))
    with pytest.raises(ImportFailure) as failed:
        import_onnx(variants.file, by_value=True)
    assert variants.probe_multiples(failed.value)
    x = np.zeros((1, 1, 8), np.float32)
    assert first(variants, x).graph is not first(variants, x).graph
