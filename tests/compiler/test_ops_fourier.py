"""Fourier transforms: every engine, and the form as products, against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler import compile as compile_graph
from kernels_hub.compiler.engines.library import refusal
from kernels_hub.compiler.errors import ShapeError, TypeRuleError
from kernels_hub.compiler.ir.cost import Costs
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.schedule.expand import expanded
from tests.combinations import all_but, every_value

ENGINES = ("cpp", "library", "reference")
LENGTHS = (
    1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 15, 16, 17, 31, 32, 34, 64, 67, 100, 127, 128, 243, 360, 400, 441, 512, 1000, 1009,
    1024, 2039, 2053, 4096,
)  # fmt: skip
UNITS = 12
"""The largest error that is allowed, in units of the last place of the largest magnitude."""


def close(found: np.ndarray, expected: np.ndarray) -> None:
    """Off by a few units in the last place of the largest magnitude."""
    assert found.shape == expected.shape
    unit = np.finfo(found.dtype if found.dtype.kind == "f" else found.real.dtype).eps
    error = np.abs(found - expected).max(initial=0)
    assert error <= UNITS * unit * np.abs(expected).max(initial=0), f"{error}"


def whole(pairs: np.ndarray) -> np.ndarray:
    return pairs.view(np.complex64 if pairs.dtype == np.float32 else np.complex128)


def forms(graph: Graph, real, imaginary, axis: int, length: int):
    """Every form of a transform of parts of an input, each with its name and how often the result is scaled."""
    half = length // 2 + 1
    named = {"axis": axis}
    first = [part.slice(axis, 0, half) for part in (real, imaginary)]
    yield "complex", graph.apply("fourier", real, imaginary, **named)
    yield "inverse", graph.apply("fourier", real, imaginary, inverse=True, scale=1 / length, **named)
    yield "of_real", graph.apply("fourier", real, scale=0.5, **named)
    yield "inverse_of_real", graph.apply("fourier", real, inverse=True, **named)
    yield "half", graph.apply("fourier", real, form="half", **named)
    yield "samples", graph.apply("fourier", *first, form="real", length=length, scale=1 / length, **named)


def expected_of(real: np.ndarray, imaginary: np.ndarray, axis: int, length: int) -> dict[str, np.ndarray]:
    x = real.astype(np.float64) + 1j * imaginary
    half = np.take(x, np.arange(length // 2 + 1), axis)
    return {
        "complex": np.fft.fft(x, axis=axis),
        "inverse": np.fft.ifft(x, axis=axis),
        "of_real": np.fft.fft(x.real, axis=axis) / 2,
        "inverse_of_real": np.fft.ifft(x.real, axis=axis, norm="forward"),
        "half": np.fft.rfft(x.real, axis=axis),
        "samples": np.fft.irfft(half, length, axis),
    }


def graph_of(shape: tuple[int | str, ...], axis: int, length: int, dtype: str) -> Graph:
    graph = Graph("transforms")
    parts = [graph.input(name, shape, dtype) for name in ("real", "imaginary")]
    for name, value in forms(graph, *parts, axis, length):
        graph.output(name, value)
    return graph


def inputs_of(shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    random = np.random.default_rng(sum(shape))
    return [random.standard_normal(shape).astype(dtype) for _ in range(2)]


def check(found, real: np.ndarray, imaginary: np.ndarray, axis: int, length: int) -> None:
    for name, expected in expected_of(real, imaginary, axis, length).items():
        close(found[name] if name == "samples" else whole(found[name]), expected)


@every_value(length=LENGTHS, dtype=["float32", "float64"])
def test_the_runtime_against_numpy(length: int, dtype: str):
    run = compile_graph(graph_of(("rows", length), 1, length, dtype), "cpu", engines=("cpp",))
    for rows in (1, 3, 17) if length < 2000 else (1, 17):
        given = inputs_of((rows, length), dtype)
        check(run.arrays(given), *given, 1, length)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("length", all_but([1, 2, 7, 12, 100, 127], 2, 7, 100))
def test_engines_and_axes(engine: str, length: int):
    for sizes, axis in (((), 0), ((19,), 0), ((2, 3), 1), ((2, 3, 18), 1), ((2, 3, 4), 0)):
        shape = (*sizes[:axis], length, *sizes[axis:])
        run = compile_graph(graph_of(shape, axis, length, "float32"), "cpu", engines=(engine,))
        given = inputs_of(shape, "float32")
        check(run.arrays(given), *given, axis, length)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_rows(engine: str):
    run = compile_graph(graph_of(("rows", 8), 1, 8, "float32"), "cpu", engines=(engine,))
    found = run.arrays([np.zeros((0, 8), np.float32)] * 2)
    assert {name: one.shape for name, one in found.items()} == {
        name: (0, {"half": 10, "samples": 8}.get(name, 16)) for name in found
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("length", [40, 127])
def test_operands_in_strides(engine: str, length: int):
    """Pairs that lie together, transposed ones, every other sample: read where they lie."""
    for rows in (1, 5, 33):
        graph = Graph("strides")
        pairs = graph.input("pairs", (rows, length, 2))
        parts = [pairs.slice(-1, part, part + 1).squeeze(-1) for part in (0, 1)]
        outputs = {
            "along": graph.apply("fourier", *parts, axis=1),
            "back": graph.apply("fourier", *parts, axis=1, inverse=True),
            "across": graph.apply("fourier", *(part.permute(1, 0) for part in parts), axis=0),
            "apart": graph.apply("fourier", parts[0].slice(0, 0, None, 2), axis=1, form="half"),
            "turned": graph.apply("fourier", *(part.flip(1) for part in parts), axis=1),
        }
        chained = outputs["along"].parts()
        outputs["both"] = graph.apply("fourier", *chained, axis=0, inverse=True) * 2.0
        for name, value in outputs.items():
            graph.output(name, value)
        run = compile_graph(graph, "cpu", engines=(engine,))
        given = np.random.default_rng(rows).standard_normal((rows, length, 2)).astype(np.float32)
        x = given.astype(np.float64).view(np.complex128)[..., 0]
        found = {name: whole(one) for name, one in run.arrays([given]).items()}
        close(found["along"], np.fft.fft(x))
        close(found["back"], np.fft.ifft(x, norm="forward"))
        close(found["across"], np.fft.fft(x.T, axis=0))
        close(found["apart"], np.fft.rfft(x.real[::2]))
        close(found["turned"], np.fft.fft(x[:, ::-1]))
        close(found["both"], np.fft.ifft(np.fft.fft(x), axis=0, norm="forward") * 2)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("length", [24, 67])
def test_what_is_not_finite_stays_in_its_row(engine: str, length: int):
    run = compile_graph(graph_of((20, length), 1, length, "float32"), "cpu", engines=(engine,))
    real, imaginary = inputs_of((20, length), "float32")
    real[3, 5], real[7, 2] = np.nan, np.inf
    for found in run.arrays([real, imaginary]).values():
        rows = found if found.shape[1] == length else np.abs(whole(found))
        assert not np.isfinite(rows[[3, 7]]).any()
        assert np.isnan(rows[3]).all()
        assert np.isfinite(np.delete(rows, [3, 7], 0)).all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("length", [8, 9])
def test_imaginary_parts_that_count_as_zero(engine: str, length: int):
    graph = Graph("samples")
    parts = [graph.input(name, (2, length // 2 + 1)) for name in ("real", "imaginary")]
    graph.output("y", graph.apply("fourier", *parts, axis=1, form="real", length=length))
    real, imaginary = inputs_of((2, length // 2 + 1), "float32")
    run = compile_graph(graph, "cpu", engines=(engine,))
    before = run.arrays([real, imaginary])["y"]
    imaginary[:, 0] = 100
    if length % 2 == 0:
        imaginary[:, -1] = -100
    np.testing.assert_allclose(run.arrays([real, imaginary])["y"], before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 9, 30, 127, 600, 1125])
def test_in_products(length: int):
    for shape, axis in (((3, length), 1), ((length, 2), 0)):
        graph = graph_of(shape, axis, length, "float64")
        products = expanded(graph)
        assert "fourier" not in {node.op.name for node in products.live()}
        real, imaginary = inputs_of(shape, "float64")
        found = evaluate(products, [real, imaginary])
        for name, expected in expected_of(real, imaginary, axis, length).items():
            got = found[name] if name == "samples" else whole(np.ascontiguousarray(found[name]))
            assert np.abs(got - expected).max() <= 1e-11 * max(np.abs(expected).max(), 1e-3), name


def test_which_are_no_products():
    """A prime factor whose matrix would be too large; and C++ has the op itself."""
    graph = graph_of((1, 2 * 4099), 1, 2 * 4099, "float32")
    assert "fourier" in {node.op.name for node in expanded(graph).live()}
    small = expanded(graph_of((1, 8), 1, 8, "float32"), cpu=True)
    assert "fourier" in {node.op.name for node in small.live()}
    assert all(refusal(node, "cuda") is None for node in graph.live())


def test_operands_that_are_refused():
    graph = Graph("transforms")
    x, open_size = graph.input("x", (3, 8)), graph.input("o", (3, "n"))
    for operands, attrs, why in (
        ((x.cast("float16"),), {}, "float32, or of float64, not of float16"),
        ((x, x.cast("float64")), {}, "not of float32, float64"),
        ((x, x), {"form": "half"}, "2 operands of a transform of the form 'half'"),
        ((x,), {"form": "half", "inverse": True}, "has one direction"),
        ((open_size,), {}, "of how many is known: n"),
        ((x.slice(1, 0, 0),), {}, "of one sample or more"),
    ):
        with pytest.raises(TypeRuleError, match=why):
            graph.apply("fourier", *operands, axis=1, **attrs)
    for attrs, why in (
        ({"axis": 2}, "axis 2 is not in 0..1"),
        ({"axis": 1, "form": "real", "length": 9}, "the frequencies of 9 real samples"),
    ):
        with pytest.raises(ShapeError, match=why):
            graph.apply("fourier", x, x, **attrs)


def test_flops():
    graph = graph_of((3, 1024), 1, 1024, "float32")
    counted = {name: Costs({}).of(value.node).flops for name, value in graph.outputs.items()}
    assert counted["complex"] == 3 * 5 * 1024 * 10
    assert counted["half"] == counted["samples"] == counted["complex"] // 2


def test_the_comparison_rejects_what_is_off():
    right = np.ones(3, np.float32)
    close(right, np.ones(3))
    with pytest.raises(AssertionError):
        close(right, np.array([1, 1, 1 + 1e-5]))
    with pytest.raises(AssertionError):
        close(np.array([1, np.nan, 1], np.float32), np.ones(3))
