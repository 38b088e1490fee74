"""`torch.cond`, `torch.while_loop` and scans: all ways they may go, on the oracle and compiled."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan, while_loop

from kernels_hub import Mode, kernelize, load_kernel_mapping, report, use_kernel_mapping
from kernels_hub.compiler import compile, evaluate, verify
from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.importers.torch_export import import_torch
from tests.combinations import all_but, first
from tests.compiler.importers.torch_programs import Function, check

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export's own


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.linear(x).relu(), lambda x: x - 1, (x,))


class Several(nn.Module):
    def forward(self, x):
        first, second = torch.cond(
            x.sum() > 0, lambda x: (x.sin(), x.sum(1)), lambda x: (x.cos(), x.mean(1)), (x,)
        )
        return first * 2, second


class Nested(nn.Module):
    def forward(self, x):
        def inner(x):
            return torch.cond(x.max() > 1, lambda x: x * 2, lambda x: x + 3, (x,))

        return torch.cond(x.sum() > 0, inner, lambda x: x.neg(), (x,))


class Spectrum(nn.Module):
    """Complex values go into regions, and come out of them."""

    def forward(self, x):
        spectrum = torch.fft.fft(x)
        return torch.view_as_real(torch.cond(x.sum() > 0, lambda s: s * 2j, lambda s: s + 1, (spectrum,)))


class Halved(nn.Module):
    """How often it goes round, the data say."""

    def forward(self, x):
        return while_loop(lambda x: x.norm() > 1, lambda x: (x / 2,), (x,))[0]


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, self.linear(x)), (torch.tensor(0), x))


class Recurrent(nn.Module):
    """A cell over the rows of x, from the last one, with the products of all of them."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        def step(state, row):
            after = torch.tanh(self.inner(row) + self.outer(state))
            return after, after * 2

        last, all_ = scan(step, x.sum(0), x, reverse=True)
        return last, all_


CASES = {"branch": Branch, "several": Several, "nested": Nested, "spectrum": Spectrum, "halved": Halved,
         "counted": Counted, "recurrent": Recurrent}  # fmt: skip
NATIVE = ("recurrent", "branch", "nested", "several", "halved", "counted")
INPUTS = [torch.full((3, 4), value) for value in (0.25, -0.25, 7.0, 0.0)]


@pytest.mark.parametrize("name", CASES)
def test_control_flow(name: str):
    check(CASES[name](), (INPUTS[0],), others=[((x,), {}) for x in INPUTS[1:]])


@pytest.mark.parametrize("name", all_but(CASES, "nested", "several", "halved", "counted"))
def test_compiled(name: str):
    module = CASES[name]().eval()
    run = compile((module, (INPUTS[0],)), "cpu", engines=("library", "reference"))
    for x in INPUTS:
        with torch.no_grad():
            torch.testing.assert_close(run(x), module(x), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("name", all_but(NATIVE, "nested", "several", "halved", "counted"))
def test_native_code(name: str):
    module = CASES[name]().eval()
    run = compile((module, (INPUTS[0],)), "cpu", engines=("cpp",))
    for x in INPUTS:
        with torch.no_grad():
            torch.testing.assert_close(run(x), module(x), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(("name",), first(1, [(name,) for name in NATIVE]))
def test_a_published_layer(name: str):
    module = CASES[name]().eval()
    with torch.inference_mode(), use_kernel_mapping(load_kernel_mapping("compiled"), inherit_mapping=False):
        expected = [module(x) for x in INPUTS]
        kernelize(module, mode=Mode.INFERENCE, wait=True)
        for x, one in zip(INPUTS, expected, strict=True):
            torch.testing.assert_close(module(x), one, rtol=1e-5, atol=1e-6)
    assert not [row.reason for row in report(module).rows if "compiled:" in str(row.reason)]


def test_the_ops():
    graph = import_torch(Branch(), (INPUTS[0],))
    (node,) = (node for node in graph.live() if node.op.name == "if")
    assert [value.op_name for value in node.operands[1:]] == ["input", "parameter", "parameter"]
    assert not node.attrs["then"].parameters
    graph = import_torch(Counted(), (INPUTS[0],))
    (node,) = (node for node in graph.live() if node.op.name == "loop")
    assert node.attrs["carried"] == 2


def test_sizes_that_are_symbols():
    batch = torch.export.Dim("batch", min=2)
    graph = verify(import_torch(Several(), (torch.ones(3, 4),), dynamic_shapes=({0: batch},)))
    module = Several()
    for rows in (2, 7):
        x = torch.randn(rows, 4)
        found = evaluate(graph, [x.numpy()])
        for one, other in zip(found.values(), module(x), strict=True):
            torch.testing.assert_close(torch.from_numpy(one), other)


def test_what_is_inside_is_told_of():
    class Unsupported(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: torch.linalg.svdvals(x), lambda x: x.sum(0), (x,))

    with pytest.raises(ImportFailure) as caught:
        import_torch(Unsupported(), (torch.eye(3),))
    assert "linalg_svd" in str(caught.value)
    assert "cond" in str(caught.value)


def test_a_branch_whose_condition_is_known_is_no_branch():
    graph = import_torch(
        Function(lambda x: torch.cond(True, lambda x: x * 2, lambda x: x, (x,))), (INPUTS[0],)
    )
    found = evaluate(graph, [INPUTS[0].numpy()])["output"]
    torch.testing.assert_close(torch.from_numpy(found), INPUTS[0] * 2)
