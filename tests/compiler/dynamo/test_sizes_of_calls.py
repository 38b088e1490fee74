"""torch.compile with sizes that are symbols: views, comparisons of sizes, pooling, assertions, numbers as they are stored."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels_hub.compiler import compile, evaluate, import_torch
from kernels_hub.compiler.dynamo.backend import kernels_hub
from kernels_hub.compiler.dynamo.statistics import statistics
from kernels_hub.compiler.importers.torch_program import array_of

VIEWS = {
    "every second column": lambda x: (x[:, ::2], x + 1),
    "but the first row": lambda x: (x[1:], x + 1),
    "turned round": lambda x: (x.t(), x + 1),
    "broadcast": lambda x: (x.unsqueeze(0).expand(4, -1, -1), x + 1),
    "a column, broadcast": lambda x: (x[:, :1].expand(-1, x.shape[1]), x + 1),
    "a new column, broadcast": lambda x: ((x + 1).unsqueeze(1).expand(-1, x.shape[0] * 2, -1),),
    "a diagonal": lambda x: (torch.diagonal(x), x + 1),
    "windows": lambda x: (x.unfold(1, 2, 1), x + 1),
    "halves": lambda x: (*x.chunk(2, 1), x + 1),
    "halves of what is new": lambda x: (*(x + 1).chunk(2, 1), x + 1),
    "unequal parts of what is new": lambda x: (*(x + 1).split([1, x.shape[1] - 1], 1), x + 1),
    "several of one": lambda x: (y := x + 1, y[::2], y.t()),
}


def compiled(function, *, dynamic=None, engine="library"):
    options = {"engines": (engine,), "fallback": "error"}
    return torch.compile(function, backend=kernels_hub, dynamic=dynamic, options=options)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_views_are_those_of_eager(name, dynamic):
    """Of arguments that lie anywhere in their memory, too, and whichever shape comes next."""
    function = compiled(VIEWS[name], dynamic=dynamic)
    memory = torch.randn(400)
    with torch.no_grad():
        for start, shape in ((0, (6, 8)), (7, (6, 8)), (16, (10, 4))):
            x = memory[start : start + shape[0] * shape[1]].view(shape)
            for actual, expected in zip(function(x), VIEWS[name](x), strict=True):
                torch.testing.assert_close(actual, expected)
                assert actual.stride() == expected.stride()
                of_argument = expected.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
                assert not of_argument or actual.data_ptr() == expected.data_ptr()


COMPARED = {
    "at least": lambda x: (torch.full((1,), x.shape[0] >= 4), x + 1),
    "equal, and not": lambda x: (torch.full((2,), x.shape[0] == 6), torch.full((1,), x.shape[0] != 6)),
    "between": lambda x: (x.sum() + torch.full((2,), 3 < x.shape[0] * 2 < 9),),
    "a quotient": lambda x: (torch.full((1,), x.shape[0] / 2 > 2.5),),
}


@pytest.mark.parametrize("name", COMPARED)
def test_comparisons_of_sizes_are_values(name):
    """They are computed at each call: a program that was made for one truth would be wrong for others."""
    function = compiled(COMPARED[name], dynamic=True)
    for rows in (6, 3, 4, 9):
        x = torch.randn(rows)
        for actual, expected in zip(function(x), COMPARED[name](x), strict=True):
            torch.testing.assert_close(actual, expected)


class Compares(torch.nn.Module):
    def forward(self, x):
        return torch.full((1,), x.shape[0] >= 4), x + 1


def test_comparisons_of_sizes_in_an_exported_module():
    rows = torch.export.Dim("rows", min=2, max=100)
    run = compile((Compares(), (torch.randn(6),)), "cpu", dims={"x": {0: rows}})
    for count in (6, 3, 4):
        large, added = run(torch.ones(count))
        assert large.item() is (count >= 4) and added.tolist() == [2.0] * count


@pytest.mark.parametrize(
    ("pool", "shapes"),
    [
        (lambda x: F.adaptive_avg_pool2d(x, (6, 7)), ((2, 3, 23, 31), (1, 3, 40, 9))),
        (lambda x: F.adaptive_max_pool1d(x, 5, return_indices=True), ((2, 3, 13), (1, 3, 40))),
        (lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True), ((2, 3, 23, 31), (1, 3, 40, 9))),
        (
            lambda x: F.adaptive_max_pool3d(x, (2, 3, 2), return_indices=True),
            ((2, 3, 5, 7, 4), (1, 3, 4, 8, 5)),
        ),
    ],
)
def test_adaptive_pooling_of_any_image(pool, shapes):
    function = compiled(pool, dynamic=True)
    for shape in shapes:
        x = torch.randn(shape)
        torch.testing.assert_close(function(x), pool(x))


def checked_labels(labels):
    torch._assert_async((labels < 5).all(), "labels are below 5")
    return F.one_hot(labels, 5)


def test_an_assertion_on_data_raises_what_pytorch_raises():
    function = compiled(checked_labels)
    labels = torch.tensor([0, 4, 2])
    assert torch.equal(function(labels), F.one_hot(labels, 5))
    with pytest.raises(RuntimeError, match="below 5"):
        function(torch.tensor([0, 7, 2]))
    assert str(statistics).startswith("1 of 1 graphs compiled")


NUMBERS = {
    "floats in integers": lambda x: (
        torch.full((3,), 7.77, dtype=torch.int32), torch.full_like(x, -2.5, dtype=torch.int8),
        torch.arange(0.9, 8.1, 1.9, dtype=torch.int64), torch.arange(-0.9, 8.1, 1, dtype=torch.int64),
    ),
    "decimals": lambda x: (torch.round(x, decimals=2), torch.round(x * 100, decimals=-1), torch.round(x.double(), decimals=3)),
    "the sign of bools": lambda x: (torch.sign(x > 0),),
    "views as copies": lambda x: (torch.permute_copy(x[None], (1, 0)), torch.unsqueeze_copy(x, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_as_they_are_stored(name):
    x = torch.tensor([1.2345, -2.5, 0.125, 1e30, float("inf"), float("nan"), -0.0])
    for actual, expected in zip(compiled(NUMBERS[name])(x), NUMBERS[name](x), strict=True):
        torch.testing.assert_close(actual, expected, equal_nan=True, rtol=1e-6, atol=0)


def test_two_operands_of_other_ranks():
    def function(x, y):
        return torch.copysign(x, y[0]), torch.hypot(x[None], y)

    x, y = torch.randn(3, 4), torch.randn(4)
    torch.testing.assert_close(compiled(function)(x, y), function(x, y))


DTYPES = (torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)


def bits_as_others(x):
    return tuple((x + 1).view(to).flip(0) for to in DTYPES)


class Bits(torch.nn.Module):
    def forward(self, x):
        return bits_as_others(x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_as_another_dtype(dtype):
    x = (torch.randn(3, 16) * 100).to(dtype)
    found = evaluate(import_torch(Bits(), (x,)), {"x": array_of(x)})
    for actual, expected in zip(found.values(), bits_as_others(x), strict=True):
        assert actual.tobytes() == expected.view(torch.uint8).numpy().tobytes()


def test_bits_as_another_dtype_in_cpp():
    x = torch.randn(3, 16) * 100
    found = compiled(bits_as_others, engine="cpp")(x)
    torch.testing.assert_close(found, bits_as_others(x), equal_nan=True, rtol=0, atol=0)


def test_numbers_that_only_a_relation_tells_fall_back():
    """The sizes that a caller asks for hang together with those of the argument."""

    def unpool(x, places, size):
        return F.max_unpool1d(x, places, 3, stride=2, output_size=size)

    function = torch.compile(unpool, backend=kernels_hub, dynamic=True, options={"fallback": "eager"})
    for shape in ((1, 2, 7), (1, 3, 5)):
        x, places = F.max_pool1d(torch.randn(shape), 3, stride=2, return_indices=True)
        torch.testing.assert_close(function(x, places, shape), unpool(x, places, shape))
