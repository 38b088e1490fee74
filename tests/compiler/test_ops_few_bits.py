"""Weights of few bits: every engine against sums of spelled-out numbers, in all dtypes; what stays packed, and where."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from kernels_hub.compiler import compile as compile_graph
from kernels_hub.compiler.errors import CompilerError, ShapeError, TypeRuleError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.ops.few_bits import packed, unpacked
from kernels_hub.compiler.rewrite.pipeline import rewrite
from kernels_hub.compiler.rewrite.rule import Options
from kernels_hub.compiler.schedule.inlining import refused

RANDOM = np.random.default_rng(0)
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def weight(rows: int, depth: int, bits: int, block: int, dtype: str, zeros: str | None):
    """Bytes, scales and zero points, and what they are in float64 (K, N)."""
    blocks = -(-depth // block)
    w = RANDOM.integers(0, 256, (rows, blocks, block * bits // 8), np.uint8)
    scales = (RANDOM.random((rows, blocks)) * 0.1 + 0.01).astype(DTYPES[dtype])
    parts, offsets = [w, scales], np.full((rows, blocks), 1 << (bits - 1), np.float64)
    if zeros is not None:
        given = RANDOM.random((rows, blocks)) * (1 << bits)
        parts.append(given.astype(np.uint8 if zeros == "uint8" else DTYPES[dtype]))
        offsets = parts[-1].astype(np.float64)
    shifts = np.arange(0, 8, bits)
    numbers = ((w[..., None] >> shifts) & ((1 << bits) - 1)).reshape(rows, blocks, block)
    wide = (numbers - offsets[..., None]) * scales.astype(np.float64)[..., None]
    return parts, wide.reshape(rows, -1)[:, :depth].T


def layer(
    parts, depth: int, bits: int, dtype: str, *, rank: int = 2, given: bool = False, op="matmul_few_bits"
):
    """A product of rows with a weight, which is one or (given) comes with each call."""
    graph = Graph("layer")
    x = graph.input("x", (*"bcd"[: rank - 2], "m", depth), dtype)
    make = graph.input if given else graph.parameter
    values = []
    for place, part in enumerate(parts):
        data = {} if given else {"data": part}
        values.append(make(f"w{place}", part.shape, str(part.dtype), **data))
    if op == "matmul_few_bits":
        graph.output("y", graph.apply(op, x, *values, bits=bits))
    else:
        graph.output("y", x.matmul(graph.apply("dequantize", *values, bits=bits, depth=depth).transpose()))
    return graph


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.live()]


CASES = [
    (4, 32, "float32", None),
    (4, 16, "float16", "uint8"),
    (8, 32, "bfloat16", "float"),
    (2, 16, "float32", "float"),
]


@pytest.mark.parametrize(("bits", "block", "dtype", "zeros"), CASES)
def test_every_engine_multiplies(bits, block, dtype, zeros):
    parts, wide = weight(70, 100, bits, block, dtype, zeros)
    graph = layer(parts, 100, bits, dtype)
    run = {
        engine: compile_graph(graph, "cpu", engines=(engine,), rewrite=False) for engine in ("cpp", "library")
    }
    unit = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    for rows in (1, 11):
        x = RANDOM.standard_normal((rows, 100)).astype(DTYPES[dtype])
        exact = x.astype(np.float64) @ wide
        bound = unit * (np.abs(x.astype(np.float64)) @ np.abs(wide))
        oracle = evaluate(graph, [x])["y"]
        assert (np.abs(oracle.astype(np.float64) - exact) <= bound).all()
        for compiled in run.values():
            assert (np.abs(compiled.arrays([x])["y"].astype(np.float64) - exact) <= 2 * bound).all()


def test_weights_that_come_with_a_call():
    parts, _ = weight(20, 40, 4, 16, "float32", "uint8")
    graph = layer(parts, 40, 4, "float32", given=True)
    x = RANDOM.standard_normal((3, 40)).astype(np.float32)
    found = compile_graph(graph, "cpu", engines=("cpp",)).arrays([x, *parts])["y"]
    np.testing.assert_allclose(found, evaluate(graph, [x, *parts])["y"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("bits", "zeros"), [(2, None), (4, "uint8"), (8, "float")])
def test_a_weight_is_made_floats_by_any_target(bits, zeros):
    parts, wide = weight(20, 40, bits, 16, "float16", zeros)
    graph = layer(parts, 40, bits, "float16", given=True, op="matmul")
    x = np.eye(40, dtype=np.float16)
    found = compile_graph(graph, "cpu", engines=("cpp",)).arrays([x, *parts])["y"]
    np.testing.assert_array_equal(found, wide.astype(np.float16))
    assert not set(refused(graph, frozenset({types.FLOAT16})))


def test_numbers_are_packed_and_unpacked():
    for bits in (2, 4, 8):
        numbers = RANDOM.integers(0, 1 << bits, (3, 8), np.uint8)
        np.testing.assert_array_equal(unpacked(packed(numbers, bits), bits), numbers)
    assert unpacked(np.array([0x21], np.uint8), 4).tolist() == [1, 2]


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_a_product_takes_the_weight_as_it_is(rank):
    parts, _ = weight(24, 64, 4, 32, "float32", "uint8")
    graph = layer(parts, 64, 4, "float32", rank=rank, op="matmul")
    packed_graph = rewrite(graph).graph
    assert "matmul_few_bits" in names(packed_graph)
    assert not {"matmul", "dequantize"} & set(names(packed_graph))
    assert {value.dtype.name for value in packed_graph.parameters.values()} == {"uint8", "float32"}
    x = RANDOM.standard_normal((*range(2, rank), 3, 64)).astype(np.float32)
    found = evaluate(packed_graph, [x])["y"]
    np.testing.assert_allclose(found, evaluate(graph, [x])["y"], rtol=1e-5, atol=1e-5)


def test_other_uses_get_floats():
    parts, wide = weight(24, 64, 4, 32, "float32", None)
    graph = layer(parts, 64, 4, "float32", op="matmul")
    for options in (Options(few_bits=False), Options(rounding=False)):
        plain = rewrite(graph, options=options).graph
        assert "matmul" in names(plain)
        assert "matmul_few_bits" not in names(plain)
        (only,) = plain.parameters.values()
        assert only.dtype.name == "float32"
        np.testing.assert_allclose(plain.weight(only.attrs["name"]), wide.T, rtol=1e-6)
    turned = Graph("turned")  # a product along the columns
    values = [
        turned.parameter(f"w{place}", one.shape, str(one.dtype), one) for place, one in enumerate(parts)
    ]
    x = turned.input("x", ("m", 24))
    turned.output("y", x.matmul(turned.apply("dequantize", *values, bits=4, depth=64)))
    assert "matmul_few_bits" not in names(rewrite(turned).graph)
    moving = layer(parts, 64, 4, "float32", given=True, op="matmul")
    assert "matmul_few_bits" not in names(rewrite(moving).graph)


def test_what_no_kernel_is_for_stays_a_product():
    run = compile_graph(layer(weight(24, 64, 4, 32, "float32", None)[0], 64, 4, "float32", op="matmul"), "cpu",
                        engines=("library",))  # fmt: skip
    assert "matmul" in names(run.graph)


def test_refusals():
    graph = Graph("refused")
    x, w = graph.input("x", ("m", 64)), graph.input("w", (8, 2, 16), "uint8")
    s, z = graph.input("s", (8, 2)), graph.input("z", (8, 2), "int32")

    def refused(error: type[CompilerError], text: str, *operands, **attrs) -> None:
        with pytest.raises(error, match=text):
            graph.apply("matmul_few_bits", *operands, **{"bits": 4, **attrs})

    refused(TypeRuleError, "2, 4 or 8 bits, not 3", x, w, s, bits=3)
    refused(TypeRuleError, "of bytes, uint8, not float32", x, s.reshape((8, 2, 1)), s)
    refused(TypeRuleError, "zero points .* are uint8 or float32", x, w, s, z)
    refused(TypeRuleError, "scales .* are floats, not int32", x, w, z)
    refused(TypeRuleError, "a product of floats", x.cast("int32"), w, s)
    refused(ShapeError, "blocks of 32 of 70 numbers", graph.input("y", ("m", 70)), w, s)
    refused(ShapeError, "dim 1 of the scales", x, w, s.slice(1, 0, 1))
    refused(ShapeError, "no multiple of 32 bits", x, w.slice(2, 0, 3), s)
