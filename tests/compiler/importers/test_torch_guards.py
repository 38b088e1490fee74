"""Sizes that a forward compares: what torch.export decided for the example holds for all calls, or is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import sympy
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._sympy.value_ranges import ValueRanges

from kernels_hub.compiler import evaluate
from kernels_hub.compiler.errors import DimError, ImportFailure, ShapeError
from kernels_hub.compiler.importers.torch_export import import_torch, import_torch_program
from kernels_hub.compiler.importers.torch_sizes import Sizes
from kernels_hub.compiler.ir.dims import Expr
from kernels_hub.compiler.ir.graph import Graph

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export's own


class Chosen(nn.Module):
    """One thing where a condition on the lengths holds, another where it does not."""

    def __init__(self, condition: Callable[[int, int], bool]) -> None:
        super().__init__()
        self.condition = condition

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        holds = self.condition(a.shape[0], b.shape[0])
        return a.sum(0) - b.sum(0) if holds else a.sum(0) * b.sum(0)


class Joined(nn.Module):
    """As FLUX places its text and its image: two lengths in all, told by four inputs."""

    def forward(self, text: Tensor, image: Tensor, text_at: Tensor, image_at: Tensor) -> Tensor:
        return torch.cat([text, image]) * torch.cat([text_at, image_at])


def free(module: nn.Module, *lengths: int) -> Graph:
    given = tuple(torch.randn(length, 3) for length in lengths)
    return import_torch(module, given, dynamic_shapes=({0: Dim.AUTO},) * len(given))


@pytest.mark.parametrize(
    ("condition", "lengths"),
    [
        (lambda a, b: a != b, (3, 7)),
        (lambda a, b: a % 4 == 0, (8, 3)),
        (lambda a, b: a % 4 == 0, (7, 3)),
    ],
)
def test_what_other_sizes_decide_otherwise_is_refused(condition, lengths):
    with pytest.raises(ImportFailure, match="what it computes depends on whether"):
        free(Chosen(condition), *lengths)


@pytest.mark.parametrize(
    "condition", [lambda a, b: a + b > 3, lambda a, b: a * b >= 4, lambda a, b: a + b != 1]
)
def test_what_holds_for_all_sizes_is_not(condition):
    graph = free(Chosen(condition), 3, 7)
    assert all(isinstance(value.shape[1], int) for value in graph.inputs.values())
    given = {name: torch.randn(5, 3).numpy() for name in graph.inputs}
    first, second = given.values()
    torch.testing.assert_close(
        torch.from_numpy(evaluate(graph, given)["output"]), torch.from_numpy(first.sum(0) - second.sum(0))
    )


def test_whether_a_size_computed_is_one_is_not_asked():
    module = nn.Sequential(nn.Conv1d(3, 4, 4, 2, 1), nn.Conv1d(4, 2, 3, padding=1))
    graph = import_torch(module, (torch.randn(2, 3, 40),), dynamic_shapes=({0: Dim.AUTO, 2: Dim.AUTO},))
    assert not any(isinstance(dim, int) for dim in next(iter(graph.inputs.values())).shape[::2])


@pytest.mark.parametrize(
    "condition",
    [
        lambda a, b: 8 * a * (b // 2) != 8 * a,
        lambda a, b: a * ((b - 3) // 2) + a != a,
        lambda a, b: a % (a * (b // 2)) != 0,
    ],
)
def test_whether_a_size_is_one_is_not_asked_of_strides_either(condition):
    """As feature extractors of audio models go on: strides of n * size and of n alone are compared."""
    graph = free(Chosen(condition), 3, 9)
    assert all(isinstance(value.shape[0], Expr) for value in graph.inputs.values())


def test_sums_that_are_equal_are_one():
    """The last length follows from the others, and is compared with the shape of a call."""
    graph = free(Joined(), 3, 5, 3, 5)
    *given, last = (value.shape[0] for value in graph.inputs.values())
    assert last == given[0] + given[1] - given[2]
    for lengths in ((3, 5, 3, 5), (2, 7, 4, 5)):
        args = tuple(torch.randn(length, 3) for length in lengths)
        found = evaluate(graph, dict(zip(graph.inputs, (one.numpy() for one in args), strict=True)))
        torch.testing.assert_close(torch.from_numpy(found["output"]), Joined()(*args))


def test_sizes_that_are_equal_times_others_are_one():
    """As nn.MultiheadAttention views its keys by the batch of its queries: n * a == n * b."""
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    auto = {0: Dim.AUTO, 1: Dim.AUTO}
    query, key = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    graph = import_torch(module, (query, key, key), dynamic_shapes=(auto, auto, auto))
    assert len({dim for value in graph.inputs.values() for dim in value.shape if isinstance(dim, Expr)}) == 3
    query, key = torch.randn(4, 2, 8), torch.randn(4, 7, 8)
    wanted = module(query, key, key)
    found = evaluate(graph, {"query": query.numpy(), "key": key.numpy(), "value": key.numpy()})
    for one, other in zip(found.values(), wanted, strict=True):
        torch.testing.assert_close(torch.from_numpy(one), other)
    with pytest.raises(ShapeError):
        evaluate(graph, {"query": query[:3].numpy(), "key": key.numpy(), "value": key.numpy()})


class PaddedWindows(nn.Module):
    """As models cut what is no multiple of a window's length."""

    def forward(self, x: Tensor) -> Tensor:
        missing = -x.shape[0] % 4
        padded = nn.functional.pad(x, (0, 0, 0, missing))
        return padded.view((x.shape[0] + missing) // 4, 4, -1).mean(1)


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x, dim=0) * 2, n=x.shape[0], dim=0)


@pytest.mark.parametrize("length", [13, 12, 3])
def test_padded_windows_are_of_every_length(length):
    graph = free(PaddedWindows(), length)
    for size in (2, 3, 4, 5, 8, 13, 40):
        x = torch.randn(size, 3)
        (found,) = evaluate(graph, {"x": x.numpy()}).values()
        torch.testing.assert_close(torch.from_numpy(found), PaddedWindows()(x))


class CountedWindows(nn.Module):
    """One thing for some numbers of windows, another for the rest."""

    def __init__(self, condition: Callable[[int], bool]) -> None:
        super().__init__()
        self.condition = condition

    def forward(self, x: Tensor) -> Tensor:
        windows = PaddedWindows()(x)
        return windows.cumsum(0) * 3 if self.condition(windows.shape[0]) else windows * 2


@pytest.mark.parametrize("condition", [lambda n: n > 1, lambda n: n >= 3, lambda n: n == 1, lambda n: n < 20])
@pytest.mark.parametrize("length", [3, 4, 13])
def test_lengths_on_the_other_side_of_a_condition_do_not_fit(length, condition):
    module, sizes = CountedWindows(condition), (2, 3, 4, 5, 8, 9, 12, 13, 40, 76, 77, 90)
    graph = free(module, length)
    fit = []
    for size in sizes:
        x = torch.randn(size, 3)
        try:
            (found,) = evaluate(graph, {"x": x.numpy()}).values()
        except (DimError, ShapeError):
            continue
        fit.append(size)
        torch.testing.assert_close(torch.from_numpy(found), module(x))
    side = condition(-(-length // 4))
    assert all(condition(-(-size // 4)) is side for size in fit)
    assert {size for size in sizes if condition(-(-size // 4)) is side and (size > 4) is (length > 4)} <= {
        *fit
    }


def test_what_fixed_sizes_would_do_says_so():
    """Under the mapping `compiled` it is compiled for the sizes of a call then."""
    module, x = Spectrum(), torch.randn(13, 3)
    with pytest.raises(ImportFailure) as refused:
        free(module, 13)
    assert refused.value.of_sizes
    graph = import_torch(module, (x,))
    (found,) = evaluate(graph, {"x": x.numpy()}).values()
    torch.testing.assert_close(torch.from_numpy(found), module(x))


@pytest.mark.parametrize("low", [0, 2])
def test_a_factor_that_may_be_none_is_no_reason_where_calls_are_checked(low):
    n, a, b = sympy.symbols("n a b", integer=True)
    for are_checked in (False, True):
        ranges = {symbol: ValueRanges(low, 100) for symbol in (n, a, b)}
        sizes = Sizes(Graph("sizes"), ranges)
        sizes.order = dict.fromkeys("nab")
        sizes.guard([sympy.Eq(6 * n * a, 6 * n * b)], are_checked=are_checked)
        assert bool(sizes.solved) is (low > 0 or not are_checked)


@pytest.mark.parametrize(
    ("condition", "lengths", "others"),
    [
        (lambda a, b: a < b, (3, 7), (7, 3)),
        (lambda a, b: a < b, (3, 7), (5, 5)),
        (lambda a, b: a <= b, (3, 7), (8, 7)),
        (lambda a, b: a < b, (7, 3), (3, 7)),
        (lambda a, b: a > b + 1, (7, 3), (4, 3)),
        (lambda a, b: 2 * a > b, (3, 7), (3, 5)),
    ],
)
def test_calls_where_another_size_is_less_do_not_fit(condition, lengths, others):
    module = Chosen(condition)
    graph = free(module, *lengths)

    def given(*lengths: int) -> dict[str, Tensor]:
        return {name: torch.randn(length, 3) for name, length in zip(graph.inputs, lengths, strict=True)}

    for each in (lengths, (2 * lengths[0], 2 * lengths[1])):
        tensors = given(*each)
        found = evaluate(graph, {name: one.numpy() for name, one in tensors.items()})["output"]
        torch.testing.assert_close(torch.from_numpy(found), module(*tensors.values()))
    with pytest.raises(ShapeError):
        evaluate(graph, {name: one.numpy() for name, one in given(*others).items()})


def test_orders_that_the_sizes_of_inputs_do_not_tell_are_refused():
    """b = a + x and 2 * a = b + y: neither a nor b tells x or y."""
    with pytest.raises(ImportFailure, match="what it computes depends on whether"):
        free(Chosen(lambda a, b: a < b and 2 * a > b), 5, 7)


class Ordered(nn.Module):
    """Which of three lengths are less than which."""

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        lengths = [one.shape[0] for one in (a, b, c)]
        ranks = [sum(one > other for other in lengths) for one in lengths]
        return a.sum(0) * (1 + ranks[0]) + b.sum(0) * (1 + ranks[1]) - c.sum(0) * (1 + ranks[2])


@pytest.mark.parametrize("lengths", list(itertools.permutations((3, 5, 8))))
def test_orders_of_three_sizes(lengths):
    module = Ordered()
    graph = free(module, *lengths)
    wrong = []
    for others in itertools.product((2, 4, 6), repeat=3):
        tensors = [torch.randn(length, 3) for length in others]
        given = dict(zip(graph.inputs, (one.numpy() for one in tensors), strict=True))
        try:
            found = torch.from_numpy(evaluate(graph, given)["output"])
        except ShapeError:
            assert (
                sorted(range(3), key=others.__getitem__) != sorted(range(3), key=lengths.__getitem__)
                or len(set(others)) < 3
            )
            continue
        if not torch.allclose(found, module(*tensors), atol=1e-5):
            wrong.append(others)
    assert not wrong


class Cut(nn.Module):
    """A slice as long as another input, which ends where its own does."""

    def forward(self, table: Tensor, x: Tensor) -> Tensor:
        return table[: x.shape[0]].sum(0) + x.sum(0)


def test_slices_as_long_as_others_are():
    graph = free(Cut(), 9, 4)
    for lengths in ((9, 4), (6, 6), (5, 8)):
        tensors = [torch.randn(length, 3) for length in lengths]
        given = dict(zip(graph.inputs, (one.numpy() for one in tensors), strict=True))
        try:
            found = evaluate(graph, given)["output"]
        except ShapeError:
            assert lengths[1] > lengths[0]
        else:
            torch.testing.assert_close(torch.from_numpy(found), Cut()(*tensors))


class Bounded(nn.Module):
    """Of the longer input there may be so many rows."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        if b.shape[0] > 8:
            return a.sum(0)
        return a.sum(0) + b.sum(0) if a.shape[0] < b.shape[0] else b.sum(0)


def test_the_bound_of_a_size_that_follows_another_is_kept():
    with pytest.raises(ImportFailure, match="what it computes depends on whether"):
        free(Bounded(), 3, 7)


class One(nn.Module):
    """Something else of one row, or of none."""

    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x)


@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize(
    ("compute", "smallest"),
    [
        (lambda x: x * 2 if x.shape[0] == 1 else x * 3, 2),
        (lambda x: x * 2 if x.shape[0] > 1 else x * 3, 2),
        (lambda x: x * 2 if x.numel() == 3 else x * 3, 2),
        (lambda x: x.squeeze(0) * 2, 2),
        (lambda x: x.squeeze() * 2, 2),
        (lambda x: x.sum(0) if x.shape[0] > 0 else torch.ones(3), 1),
        (lambda x: nn.functional.normalize(x * torch.ones(x.shape[0], 1)), 0),
        (lambda x: x.reshape(-1).softmax(0).view(x.shape).expand(x.shape[0], 3), 0),
    ],
)
def test_sizes_of_one_and_none_fit_where_they_decide_nothing(compute, smallest, least):
    module = One(compute)
    graph = import_torch(module, (torch.randn(4, 3),), dynamic_shapes=({0: Dim("n", min=least)},))
    for length in (0, 1, 2, 5):
        x = torch.randn(length, 3)
        if length < max(smallest, least):
            with pytest.raises(ShapeError):
                evaluate(graph, [x.numpy()])
        else:
            found = torch.from_numpy(evaluate(graph, [x.numpy()])["output"])
            torch.testing.assert_close(found, module(x))


class Windows(nn.Module):
    """Windows of 7 x 7: of fewer rows there is none, and nothing is divided by their number."""

    def forward(self, x: Tensor) -> Tensor:
        rows, columns, channels = x.shape
        windows = (
            x.view(rows // 7, 7, columns // 7, 7, channels).permute(0, 2, 1, 3, 4).reshape(-1, 49, channels)
        )
        apart = windows.softmax(1).view(rows // 7, columns // 7, 7, 7, channels)
        return apart.permute(0, 2, 1, 3, 4).reshape(rows, columns, channels)


def test_what_divides_by_no_size_is_refused_for_its_sizes():
    x = torch.ones(14, 21, 3)
    with pytest.raises(ImportFailure, match="what it computes depends on whether") as caught:
        import_torch(Windows(), (x,), dynamic_shapes={"x": dict.fromkeys(range(3), Dim.AUTO)})
    assert caught.value.of_sizes
    found = evaluate(import_torch(Windows(), (x,)), {"x": x.numpy()})["output"]
    torch.testing.assert_close(torch.from_numpy(found), Windows()(x))


def _halves(x: Tensor) -> Tensor:
    return x.view(x.shape[0], x.shape[1] // 2, 2, 6).sum(2)


@pytest.mark.parametrize(
    ("compute", "fits", "others"),
    [
        (lambda x: x[:, :2] + x[:, -2:], (2, 3, 7), (1, 0)),
        (lambda x: x[:, 1:] - x[:, :-1], (1, 2, 3, 7), (0,)),
        (lambda x: x[:, : x.shape[1] // 2] * 2, (1, 2, 3, 7), ()),
        (lambda x: x.narrow(1, 1, 3), (4, 5), (1, 2)),
        (lambda x: x[:, :4].split(2, 1)[1], (5, 7), (1, 3)),
        (lambda x: sum(part.sum(1) for part in x.chunk(2, 1)), (2, 3, 7), (1, 0)),
        (lambda x: sum(part.sum(1) for part in x.chunk(3, 1)), (5, 6, 7), (2, 4)),
        (lambda x: torch.cat(x.chunk(2, 1), -1), (2, 8), (1, 3)),
        (_halves, (2, 4, 8), (1, 7)),
        (lambda x: x.unflatten(1, (2, -1)).sum(1), (2, 4, 8), (1, 7)),
        (lambda x: x * 2 if x.shape[1] % 3 == 0 else x * 3, (3, 6), (1, 4)),
        (lambda x: x * 2 if x.shape[1] != 3 else x * 3, (4, 6), (3,)),
    ],
)
def test_what_decides_no_value_is_not_asked_and_what_does_is_seen_at_the_call(compute, fits, others):
    """Slices, chunks and groups of a length with a name: strides are not compared, what has to hold is."""
    linear = nn.Linear(6, 6)
    module = One(lambda x: compute(linear(x)))
    shapes = ({0: Dim("batch"), 1: Dim("length")},)
    graph = import_torch(module, (torch.randn(2, 6, 6),), dynamic_shapes=shapes)
    for length in fits:
        for batch in (1, 3):
            x = torch.randn(batch, length, 6)
            found = torch.from_numpy(evaluate(graph, [x.numpy()])["output"])
            torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-5)
    for length in others:
        with pytest.raises(ShapeError):
            evaluate(graph, [torch.randn(3, length, 6).numpy()])


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x * 2 if x.shape[1] != 30 else x * 3,
        lambda x: x * 2 if x.shape[0] * x.shape[1] % 5 else x * 3,
    ],
)
def test_what_decides_values_is_asked(compute):
    module = One(compute)
    shapes = ({0: Dim("batch"), 1: Dim("length")},)
    with pytest.raises(ImportFailure):
        import_torch(module, (torch.randn(2, 6, 3),), dynamic_shapes=shapes)


def test_ops_that_look_for_a_size_have_no_other_of_it():
    """`torch.cross` is along the first dim of size 3."""
    module = One(lambda x: torch.cross(x, 2 - x.flip(-1)))
    shapes = ({0: Dim("batch"), 1: Dim("length")},)
    graph = import_torch(module, (torch.randn(5, 6, 3),), dynamic_shapes=shapes)
    x = torch.randn(4, 5, 3)
    found = torch.from_numpy(evaluate(graph, [x.numpy()])["output"])
    torch.testing.assert_close(found, module(x))
    for sizes in ((5, 3, 3), (3, 5, 3)):
        with pytest.raises(ShapeError):
            evaluate(graph, [torch.randn(*sizes).numpy()])


def test_a_product_raises_the_bounds_of_its_sizes_where_that_is_all_it_asks():
    """As torch 2.13 asks whether a result is empty."""
    unbounded = ValueRanges(sympy.Integer(0), sympy.Integer(1 << 62))
    batch, length = sympy.symbols("s0 s1", integer=True)
    sizes = Sizes(Graph("guards"), {batch: unbounded, length: unbounded})
    sizes.guard([3 * batch * length >= 1])
    assert sizes.ranges == {"s0": (1, None), "s1": (1, None)}
    with pytest.raises(ImportFailure, match="s0\\*s1 >= 4"):
        sizes.guard([batch * length >= 4])
    assert sizes.ranges == {"s0": (1, None), "s1": (1, None)}


def test_a_condition_on_a_power_of_a_size_is_told():
    module = Chosen(lambda a, b: b < 10.0 * a**0.145)
    shapes = ({0: Dim("rows")}, {0: Dim("others")})
    with pytest.raises(ImportFailure, match="depends on whether"):
        import_torch(module, (torch.randn(4, 3), torch.randn(6, 3)), dynamic_shapes=shapes)


class Chunks(nn.Module):
    """As a gated delta rule: rows padded to whole chunks of 8, a step in Python for each."""

    def forward(self, x: Tensor) -> Tensor:
        batch, heads, length, width = x.shape
        padded = nn.functional.pad(x, (0, 0, 0, (8 - length % 8) % 8))
        chunks = padded.reshape(batch, heads, -1, 8, width)
        state, found = torch.zeros_like(chunks[:, :, 0, 0]), torch.zeros_like(chunks)
        for number in range(padded.shape[2] // 8):
            found[:, :, number] = chunks[:, :, number] + state.unsqueeze(2)
            state = state + chunks[:, :, number].sum(2)
        return found.reshape(batch, heads, padded.shape[2], width)[:, :, :length]


def test_chunks_of_one_count_are_of_every_length_in_them():
    """A size divided by a count that bounds leave at one is what it was, of a batch that is free, too."""
    module = Chunks()
    shapes = ({0: Dim.AUTO, 2: Dim.AUTO},)
    graph = import_torch(module, (torch.randn(3, 2, 5, 4),), dynamic_shapes=shapes)
    (value,) = graph.inputs.values()
    assert [isinstance(dim, int) for dim in value.shape] == [False, True, False, True]
    for size in ((2, 2, 7, 4), (4, 2, 3, 4)):
        x = torch.randn(*size)
        (found,) = evaluate(graph, [x.numpy()]).values()
        torch.testing.assert_close(torch.from_numpy(found), module(x))


class Subsampled(nn.Module):
    """Speech: convolutions over time and features, and a linear layer of the features that they leave."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 3, 3, 2)
        self.linear = nn.Linear(3 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        found = self.convolution(x[:, None]).relu()
        batch, channels, steps, features = found.shape
        return self.linear(found.transpose(1, 2).contiguous().view(batch, steps, channels * features))


def test_a_size_that_one_number_alone_does_for_is_fixed_where_it_may_be():
    module, x = Subsampled(), torch.randn(2, 21, 9)
    shapes = (dict.fromkeys(range(3), Dim.AUTO),)
    with pytest.raises(ImportFailure, match="what it computes depends on whether"):
        import_torch(module, (x,), dynamic_shapes=shapes)
    graph = import_torch_program(module, (x,), dynamic_shapes=shapes, may_fix=True).graph
    (value,) = graph.inputs.values()
    assert [isinstance(dim, int) for dim in value.shape] == [False, False, True]
    for size in ((4, 8, 9), (3, 30, 9)):
        x = torch.randn(*size)
        (found,) = evaluate(graph, [x.numpy()]).values()
        torch.testing.assert_close(torch.from_numpy(found), module(x))


def test_a_size_with_a_name_is_never_fixed():
    x, shapes = torch.randn(2, 21, 9), ({0: Dim.AUTO, 1: Dim.AUTO, 2: Dim("features")},)
    with pytest.raises(ImportFailure):
        import_torch_program(Subsampled(), (x,), dynamic_shapes=shapes, may_fix=True)
