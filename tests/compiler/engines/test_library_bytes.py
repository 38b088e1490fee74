"""Products of bytes less their zero points on the library engine: exact, and without weights in wide integers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.engines import guard
from kernels_hub.compiler.engines.library import ENGINE
from kernels_hub.compiler.engines.library_bytes import MOST_TERMS, find_byte_products
from kernels_hub.compiler.engines.tensors import to_tensor
from tests.compiler.engines.executed import CPU, assert_agrees

DEVICE = torch.device("cpu")
RNG = np.random.default_rng(0)
BOUNDS = {"uint8": (0, 255), "int8": (-128, 127)}


def numbers(shape, dtype, largest=False):
    """Random bytes, or those that are furthest from the zero point of `zeros`."""
    least, most = BOUNDS[dtype]
    return np.full(shape, most, dtype) if largest else RNG.integers(least, most + 1, shape).astype(dtype)


def zeros(shape, dtype, largest=False):
    return np.full(shape, BOUNDS[dtype][0], dtype) if largest else numbers(shape, dtype)


def centred(graph, values, zero=None, axes=()):
    """values - zero in int32."""
    wide = values.cast("int32")
    return wide if zero is None else wide - zero.cast("int32").broadcast(values.shape, axes)


def product(shapes, dtypes=("uint8", "int8"), zero_axes=((), ()), largest=False):
    graph = Graph("product")
    graph.symbol("n", 1)
    x, w = graph.input("x", shapes[0], dtypes[0]), graph.input("w", shapes[1], dtypes[1])
    operands, arrays = [], []
    for value, dtype, axes in zip((x, w), dtypes, zero_axes, strict=True):
        shape = tuple(dim if isinstance(dim, int) else 3 for dim in value.shape)
        arrays.append(numbers(shape, dtype, largest))
        zero = None
        if axes is not None:
            array = zeros(tuple(shape[axis] for axis in axes), dtype, largest)
            zero = graph.constant(array)
        operands.append(centred(graph, value, zero, axes))
    return graph, operands, arrays


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("depth", [1, MOST_TERMS, MOST_TERMS + 1, 1000])
@pytest.mark.parametrize("dtypes", [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")])
def test_products_are_exact(dtypes, depth, largest):
    graph, (a, b), arrays = product((("n", depth), (depth, 5)), dtypes, largest=largest)
    graph.output("y", a @ b)
    assert len(find_byte_products(graph, DEVICE)) == 1
    assert_agrees(ENGINE, graph, arrays)


@pytest.mark.parametrize("zero_axes", [(None, None), ((), (1,)), ((0,), (0,)), ((0, 1), None)])
def test_zero_points_of_rows_and_columns(zero_axes):
    graph, (a, b), arrays = product(((4, 600), (600, 5)), zero_axes=zero_axes)
    graph.output("y", a @ b)
    assert len(find_byte_products(graph, DEVICE)) == 1
    assert_agrees(ENGINE, graph, arrays)


def test_batches_of_one_matrix_and_of_several():
    for shapes in ((("n", 4, 300), (300, 5)), (("n", 4, 300), ("n", 300, 5))):
        graph, (a, b), arrays = product(shapes)
        graph.output("y", a @ b)
        assert len(find_byte_products(graph, DEVICE)) == 1
        assert_agrees(ENGINE, graph, arrays)


def conv(x, w, groups=1, padding=(1, 1), **options):
    graph, (a, b), arrays = product((x, w), zero_axes=((), (0,)), **options)
    rank = len(w) - 2
    around = {"strides": (2,) * rank, "dilations": (1,) * rank, "padding": (padding,) * rank}
    graph.output("y", a.apply("conv", a, b, groups=groups, **around))
    return graph, arrays


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(
    ("x", "w", "groups"),
    [
        ((2, 70, 9, 10), (6, 70, 3, 3), 1),
        (("n", 70, 9, 10), (6, 70, 3, 3), 1),
        ((1, 12, 9, 10), (6, 4, 3, 3), 3),
        ((2, 3, 600), (4, 3, 200), 1),
        ((16, 40, 12, 12), (8, 40, 3, 3), 1),
    ],
)
def test_convolutions_are_exact(monkeypatch, x, w, groups, largest, onednn):
    graph, arrays = conv(x, w, groups, largest=largest)
    assert len(find_byte_products(graph, DEVICE)) == 1
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "enabled", onednn)
        assert_agrees(ENGINE, graph, arrays)


def test_padding_of_one_side():
    graph, arrays = conv((1, 40, 9, 10), (6, 40, 3, 3), padding=(0, 1))
    assert_agrees(ENGINE, graph, arrays)


def test_an_empty_sum_is_zero():
    graph, (a, b), arrays = product(((4, 0), (0, 5)))
    graph.output("y", a @ b)
    assert_agrees(ENGINE, graph, arrays)


def test_what_may_be_larger_is_left_as_it_is():
    """A byte less one of the other kind reaches 383, kernels of many places and wide integers have longer sums."""
    graph, (a, b), _ = product(((4, 300), (300, 5)))
    other = graph.constant(np.int8(-128)).cast("int32")
    mixed = graph.inputs["x"].cast("int32") - other
    graph.output("mixed", mixed @ b)
    graph.output("doubled", (a + a) @ b)
    graph.output("wide", a.cast("int64") @ b.cast("int64"))
    assert not find_byte_products(graph, DEVICE)
    assert not find_byte_products(conv((1, 1, 20, 20), (1, 1, 17, 17))[0], DEVICE)
    assert not find_byte_products(conv((1, 60, 9, 9), (2, 30, 3, 3), groups=2)[0], DEVICE)


def test_operands_that_others_read_are_there_for_them():
    graph, (a, b), arrays = product(((4, 300), (300, 5)))
    graph.output("y", a @ b)
    graph.output("w", b)
    assert_agrees(ENGINE, graph, arrays)


class Largest(TorchDispatchMode):
    """How many elements the largest tensor has that PyTorch makes in other memory, and not of bytes."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype.itemsize > 1:
            self.elements = max(self.elements, result.untyped_storage().nbytes() // result.dtype.itemsize)
        return result


def test_no_weight_is_widened_whole():
    columns = 50
    graph, (a, b), arrays = product(((2, 4 * MOST_TERMS), (4 * MOST_TERMS, columns)))
    graph.output("y", a @ b)
    plan = guard.compiled(ENGINE, graph, CPU)
    with Largest() as largest:
        (result,) = plan.compute([to_tensor(array) for array in arrays])
    assert np.array_equal(result.numpy(), evaluate(graph, arrays)["y"])
    assert largest.elements == MOST_TERMS * columns
