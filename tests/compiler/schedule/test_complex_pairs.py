"""Complex inputs, weights and outputs as pairs of floats: what stands for them, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.schedule.complex_pairs import in_pairs, pairs_of
from kernels_hub.compiler.schedule.kernel import FourierTransform, Store
from kernels_hub.compiler.schedule.schedule import schedule


def numbers(*shape: int, dtype: str = "complex64") -> np.ndarray:
    random = np.random.default_rng(sum(shape))
    return (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(dtype)


def parts(value: Value) -> tuple[Value, Value]:
    return value.unary("real"), value.unary("imag")


def product(x: Value, y: Value) -> Value:
    (a, b), (c, d) = parts(x), parts(y)
    return (a * c - b * d).apply("complex", a * c - b * d, a * d + b * c)


def of_weight(x: Value) -> Value:
    dtype = x.dtype
    return product(x, x.graph.parameter("w", (3, 4), dtype, numbers(3, 4, dtype=dtype.name)))


def of_constant(x: Value) -> Value:
    return product(x, x.graph.constant(numbers(3, 4, dtype=x.dtype.name)))


CASES: dict[str, Callable[[Value], Value]] = {
    "a part": lambda x: x.unary("imag"),
    "a product": lambda x: product(x, x),
    "a weight": of_weight,
    "a constant": of_constant,
    "views of an input": lambda x: x.permute(1, 0).slice(0, 1, 3).flip(1),
    "views of a result": lambda x: product(x, x).reshape((2, 6)).broadcast_to(5, 2, 6),
    "the input": lambda x: x,
}


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", CASES)
def test_pairs_hold_what_complex_numbers_do(name: str, dtype: str):
    graph = Graph(name)
    graph.output("y", CASES[name](graph.input("x", (3, 4), dtype)))
    pairs = in_pairs(graph)
    assert not any(value.dtype.is_complex for node in pairs.live() for value in node.results)
    x = numbers(3, 4, dtype=dtype)
    expected = evaluate(graph, {"x": x})["y"]
    found = evaluate(pairs, {"x": pairs_of(x)})["y"]
    np.testing.assert_array_equal(found, pairs_of(expected) if expected.dtype.kind == "c" else expected)


def test_what_is_computed_of_complex_numbers_is_left():
    real, product = Graph("real"), Graph("product")
    real.output("y", real.input("x", (4,)) * 2.0)
    x = product.input("x", (4,), "complex64")
    product.output("y", x.unary("real") + (x * x).unary("real"))
    assert in_pairs(real) is real
    assert in_pairs(product) is product


def test_a_transform_reads_pairs_and_writes_pairs():
    graph = Graph("transform")
    real, imaginary = parts(graph.input("x", (3, 8), "complex64"))
    whole = real.apply("fourier", real, imaginary, axis=1).parts()
    graph.output("y", real.apply("complex", *whole))
    (kernel,) = schedule(in_pairs(graph)).kernels
    (nest,) = kernel.nests
    assert isinstance(nest.anchor, FourierTransform)


@pytest.mark.parametrize("flattened", [False, True])
def test_both_parts_are_written_in_one_turn(flattened: bool):
    graph = Graph("turned")
    x, y = (graph.input(name, (3, 8), "complex64") for name in ("x", "y"))
    real, imaginary = parts(product(x, y))
    pairs = real.paired(imaginary)
    graph.output("y", pairs.reshape((3, 16)) if flattened else pairs)
    (kernel,) = schedule(in_pairs(graph)).kernels
    (nest,) = kernel.nests
    first, second = (one for one in nest.body if isinstance(one, Store))
    assert second.place - first.place == 1
