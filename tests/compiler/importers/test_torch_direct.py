"""Programs that are imported without being decomposed: what is written in place, and when that cannot be told."""

from __future__ import annotations

import operator

import pytest
import torch
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from torch import nn

from kernels_hub.compiler.importers import torch_export
from kernels_hub.compiler.importers.aten_ops import handler_of
from kernels_hub.compiler.importers.torch_direct import FRESH, IN_PLACE, functional, writes
from kernels_hub.compiler.importers.torch_trace import trace
from tests.combinations import all_but
from tests.compiler.importers.test_torch_export_ops import CASES
from tests.compiler.importers.torch_programs import Function, check, check_function
from tests.fuzz.harness import budget

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export's own

X = torch.linspace(-2, 2, 12).reshape(3, 4)


def is_direct(module, args):
    return writes(trace(module, args, {}, None, strict=False)[0]) is not None


@pytest.fixture
def only_direct(monkeypatch):
    """Decomposing is an error."""

    def refuse(*_):
        raise AssertionError("the program was decomposed")

    monkeypatch.setattr(torch_export, "decomposed", refuse)


def test_what_is_imported_directly_has_handlers():
    assert not [name for name in FRESH if handler_of(name) is None]
    assert not [name for name in map(functional, IN_PLACE) if handler_of(name) is None]


@pytest.mark.parametrize("name", all_but(CASES, *list(CASES)[1::2]))
def test_ops_decomposed(name, monkeypatch):
    monkeypatch.setattr(torch_export, "writes", lambda _: None)
    function, *args = CASES[name]
    check_function(function, *args)


@pytest.mark.parametrize(
    "name",
    [
        "arithmetic",
        "integers",
        "promotion",
        "casts",
        "slices",
        "differences",
        "activations",
        "convolutions",
        "pooling",
        "attention",
    ],
)
def test_common_ops_are_direct(name, only_direct):
    function, *args = CASES[name]
    check_function(function, *args)


class Residual(nn.Module):
    """A convolution, a norm and a sum in place, as vision models have them."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.act = (
            nn.Conv2d(4, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
        )
        nn.init.uniform_(self.norm.running_var, 0.5, 2)
        nn.init.normal_(self.norm.running_mean)

    def forward(self, x):
        y = self.norm(self.conv(x))
        y += x
        return self.act(y)


def test_a_residual_block_is_direct(only_direct):
    check(Residual().eval(), (torch.randn(2, 4, 5, 5),))


def test_batch_norm_in_training_is_decomposed():
    module = Residual().train()
    program = torch_export.import_torch_program(module, (torch.randn(2, 4, 5, 5),), mutations="outputs")
    assert program.mutated


def in_turn(x):
    y = x * 2
    before = y + 1
    z = y.add_(1)
    z.mul_(3)
    return before, y, z, y.relu_()


def masked(x):
    y = x * 1.0
    y.masked_fill_(x > 0, 7.0)
    return y.clamp_(-1, 5)


def read_before(x):
    y = x - 1
    return torch.exp(y), y.add_(y)


def through_a_view(x):
    y = x + 1
    y[0].add_(1)
    return y


def beside_a_view(x):
    y = x + 1
    view = y.view(-1)
    return y.add_(1), view


def beside_itself(x):
    y = x + 1
    same = nn.functional.dropout(y, 0.5, False)
    y.add_(1)
    return same, y, same.detach().mul_(2)


def seen_for_its_shape(x):
    y = x @ x.t()
    mask = (x[:1, :1] > 0).expand_as(y)
    return y.masked_fill_(mask, 3.0)


def shares(x):
    best, places = x.softmax(-1).topk(2)
    best /= best.sum(-1, keepdim=True)
    return torch.zeros_like(x).scatter_(1, places, best)


def counted(x):
    counts = torch.zeros(5, dtype=torch.int64)
    places = (x.abs() * 2).long()
    counts.index_put_((places,), torch.ones_like(places), accumulate=True)
    counts += 1
    return counts, torch.full((3, 4), 2.0).index_add_(0, torch.tensor([2, 0, 2]), x)


def of_whole_numbers(x):
    y = x * 1.0
    y += torch.arange(4)
    y.neg_().pow_(2).tril_()
    return y, torch.arange(4).mul_(2)


def a_view_that_says_nothing(x):
    y = (x + 1).contiguous()
    z = torch.ops.aten._unsafe_view(y, [4, 3])
    return y.add_(1), z


def a_part_of_what_is_over(x):
    y = torch.cat([x, x * 2], 1)[:, :5]
    y += 1
    return y * y


def halves(x):
    a, b = (x * 2).chunk(2, 1)
    return a.mul_(b).add_(1)


def a_view_that_is_over(x):
    y = x + 1
    total = y.view(-1).sum()
    return y.mul_(total).sqrt_()


def a_view_between_writes(x):
    y = x + 1
    y.mul_(2)
    view = y.view(-1)
    return view, y.sigmoid_()


def a_view_behind_a_view(x):
    y = (x + 1).t()
    row = y[0]
    y.add_(1)
    return y, row


def both_halves(x):
    a, b = (x * 2).chunk(2, 1)
    a.mul_(b)
    return a, b


def rows_in_turn(x):
    y, row = torch.zeros_like(x), x[0]
    for place in range(len(x)):
        row = row * 0.5 + x[place]
        y[place] = row
    return y, y.sum(0)


def parts_of_parts(x):
    y = x + 1
    y[1, 2:] = x[0, 2:]
    y[..., 0] += 1
    y[0, 0] = y[1, 1]
    y[::2] = x[::2] * 3
    y[-1:, -2] = 5.0
    y[-9:2, 3:99] = 7.0
    return y * y


def a_part_twice(x):
    y = x * 2
    part = y[:, 1:3]
    part.add_(1).mul_(x[:, :2])
    y.add_(x)
    return y


def a_part_read_later(x):
    y = x * 2
    part = y[0]
    part.add_(1)
    y.mul_(2)
    return part + 1, y


def a_part_seen_before(x):
    y = x * 2
    part = y[0]
    y[0, 1] = 3.0
    return part + 1, y


def a_part_of_an_argument(x):
    y = x.view(4, 3)
    y[0] = 1.0
    return y * 2


def a_part_of_another_shape(x):
    y = x.exp()
    y[1:] = x[0]
    y[0] = x[1, :1]
    return y


def a_part_of_a_transpose(x):
    y = x.exp()
    y.t()[0] = 2.0
    return y


def no_part(x):
    y = x.exp()
    y[2:2] = 1.0
    y[:] = y * 2
    y[7:] = x[:0]
    return y


def a_part_of_another_dtype(x):
    y = torch.zeros(3, 4, dtype=torch.int64)
    y[1] = x[1] * 3
    z = torch.zeros(3, 4, dtype=torch.float64)
    z[0] = y[1]
    return y, z


def a_part_from_itself(x):
    y = x.exp()
    y[1:] = y[:-1] * 2
    y[0] = y[0] + y[1]
    return y


def a_part_of_what_was_padded(x):
    y, z = nn.functional.pad(x, (0, 0)), nn.functional.pad(x, (0, 0, 1, -1))
    y[0] = 1.0
    z[:, 1] = x[:, 0]
    return y, z, x + 1


IN_PLACE_PROGRAMS = {
    "a part of what is over": (a_part_of_what_is_over, True),
    "a half and the other": (halves, True),
    "a view that is over": (a_view_that_is_over, True),
    "a view between writes": (a_view_between_writes, False),
    "a view behind a view": (a_view_behind_a_view, False),
    "halves that go on": (both_halves, False),
    "a view of an argument": (lambda x: x.t().add_(1) * 2, False),
    "seen for its shape": (seen_for_its_shape, True),
    "one of several results": (shares, True),
    "where indices say": (counted, True),
    "floats and whole numbers": (of_whole_numbers, True),
    "whole numbers and floats": (lambda x: torch.arange(4).mul_(2).add(x), True),
    "a part of a split": (lambda x: (x + 1).split(2)[0].add_(1), True),
    "a view that says nothing": (a_view_that_says_nothing, False),
    "the names of one tensor see all that is written": (in_turn, True),
    "masked": (masked, True),
    "with itself": (lambda x: (x + 1).add_(x).mul_(2.0), True),
    "a read before": (read_before, True),
    "an argument": (lambda x: x.add_(1) + 1, False),
    "through a view": (through_a_view, True),
    "rows in turn": (rows_in_turn, True),
    "parts of parts": (parts_of_parts, True),
    "a part twice": (a_part_twice, True),
    "a part that is read later": (a_part_read_later, False),
    "a part seen before": (a_part_seen_before, False),
    "a part of an argument": (a_part_of_an_argument, False),
    "a part of another shape": (a_part_of_another_shape, True),
    "a part of a transpose": (a_part_of_a_transpose, False),
    "no part": (no_part, True),
    "a part of another dtype": (a_part_of_another_dtype, True),
    "a part from itself": (a_part_from_itself, True),
    "a part of what was padded": (a_part_of_what_was_padded, True),
    "what has a view": (beside_a_view, False),
    "another dtype": (lambda x: (x + 1).add_(x.double()), False),
    "dropout gives its argument": (beside_itself, True),
}


@pytest.mark.parametrize("name", IN_PLACE_PROGRAMS)
def test_writes_in_place(name):
    function, direct = IN_PLACE_PROGRAMS[name]
    assert is_direct(Function(function), (X.clone(),)) == direct
    if name in {"an argument", "a part of an argument", "a view of an argument"}:
        program = torch_export.import_torch_program(Function(function), (X.clone(),), mutations="outputs")
        assert program.mutated
    else:
        check_function(function, X.clone())


def test_a_part_that_is_written_behind_autograds_back_is_decomposed():
    def function(x):
        y = x * 2
        with torch.no_grad():
            y[0] = 1.0
        return y

    with torch.enable_grad():
        assert not is_direct(Function(function), (X.clone().requires_grad_(),))
    check_function(function, X.clone())


EQUATIONS = {
    "a product of matrices": ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    "attention's scores": ("bqhd,bkhd->bhqk", (2, 3, 4, 5), (2, 6, 4, 5)),
    "no index summed": ("bi,bj->jbi", (2, 3), (2, 4)),
    "element by element": ("ij,ji->ij", (3, 4), (4, 3)),
    "one operand": ("bij->ji", (2, 3, 4)),
    "three operands": ("ab,bc,cd->da", (2, 3), (3, 4), (4, 5)),
    "a diagonal": ("bii,bi->b", (2, 3, 3), (2, 3)),
    "an ellipsis": ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)),
    "implied letters": ("ba,Cb", (2, 3), (4, 2)),
    "everything summed": ("ij,kj->", (2, 3), (4, 3)),
    "an outer product": ("i,j->ij", (2,), (3,)),
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_einsum_is_direct(name, only_direct):
    equation, *shapes = EQUATIONS[name]
    numbers = torch.Generator().manual_seed(0)
    operands = [torch.randn(shape, generator=numbers) for shape in shapes]
    check_function(lambda *values: torch.einsum(equation, *values), *operands)


def test_what_vision_and_speech_models_have_besides_is_direct(only_direct):
    check_function(
        lambda x: [
            nn.functional.pad(x, (1, 2, 0, -1)),
            nn.functional.pad(x, (0, 3), value=2.0),
            torch.max(x, x.flip(0)),
            torch.min(x, 2 * x),
            (x + 1).reshape_as(x.t()),
            (x + 2).view_as(x.t()).relu(),
            nn.functional.batch_norm(
                x[None], None, None, x[:, 0], training=True
            ),  # of a weight, as NFNets have it
        ],
        X,
    )
    for axis in (0, 2, None):
        module = nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 5, 2), dim=axis)
        check(module.eval(), (torch.randn(2, 3, 7),))


WITHOUT_DIMS = {
    "movedim": lambda x: x.movedim(0, -1),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1),
    "sort": lambda x: (*x.sort(), *x.sort(0, descending=True), *torch.sort(x, stable=True)),
    "argsort": lambda x: x.argsort(),
    "index_select": lambda x: x.index_select(0, torch.zeros(1, dtype=torch.int64)),
}


@pytest.mark.parametrize("name", WITHOUT_DIMS)
def test_tensors_without_dims_have_an_axis_all_the_same(name, only_direct):
    """As PyTorch takes them: axes 0 and -1."""

    def program(x):
        return WITHOUT_DIMS[name](x.sum())

    check(Function(program), (torch.randn(3),))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_beyond_the_ends_is_direct(mode, only_direct):
    image = torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    sides = [(1, 2, 0, 0), (0, 3, 2, 0), (4, 0, 1, 5), (-1, 2, 0, -2)][: 3 if mode == "circular" else 4]
    check_function(lambda x: [nn.functional.pad(x, side, mode=mode) for side in sides], image)
    sizes = {"args": (({2: torch.export.Dim("h", min=6), 3: torch.export.Dim("w", min=5)},))}
    other = torch.randn(2, 3, 9, 7, generator=torch.Generator().manual_seed(1))
    module = Function(lambda x: nn.functional.pad(x, (2, 3, 1, 4), mode=mode))
    check(module, (image,), others=[((other,), {})], dynamic_shapes=sizes)


OPS = {
    "add": lambda a, b: a + b,
    "relu": lambda a, _: a.relu(),
    "copy": lambda a, _: a.clone(),
    "add_": lambda a, b: a.add_(b),
    "mul_": lambda a, _: a.mul_(1.5),
    "relu_": lambda a, _: a.relu_(),
    "transposed": lambda a, _: a.t(),
    "first": lambda a, _: a[:, :],
    "a part": lambda a, _: a.unsqueeze(0).expand(2, 3, 3)[1],
    "greater": torch.max,
    "chosen": lambda a, b: torch.where((a[:1] > 0).expand_as(b), a, b),
    "neg_": lambda a, _: a.neg_(),
    "sorted": lambda a, _: a.topk(3, 0).values,
    "row": lambda a, b: (a.select(0, 1).copy_(b[2]), a)[1],
    "rows": lambda a, b: (a[1:].copy_(b[:-1] + 0.5), a)[1],
    "corner": lambda a, b: (a[0:2].select(1, 0).mul_(b[0, 0] * 1.0), a)[1],
    "set": lambda a, b: operator.setitem(a, (slice(None), 1), b[:, 2]) or a,
}


@settings(max_examples=budget(12, 60), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(OPS)), st.integers(0, 7), st.integers(0, 7)), min_size=3, max_size=8
    )
)
def test_random_programs(steps):
    def function(x):
        made = [x * 2.0, x - 1.0]
        for op, a, b in steps:
            made.append(OPS[op](made[a % len(made)], made[b % len(made)]))
        return made

    x = X[:, :3].clone()
    try:
        function(x)
    except RuntimeError:  # PyTorch adds no tensor to its own transpose in place
        assume(False)
    check_function(function, x)
