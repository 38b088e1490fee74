"""What a forward asserts of data, through the mapping `compiled`: a call that breaks it raises what PyTorch raises."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from packaging.version import Version
from torch import Tensor, nn

from kernels_hub import Mode, kernelize, report
from kernels_hub.compiler import import_torch
from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.kernelization import jit_compilations
from tests.combinations import first

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.usefixtures("mapping_compiled"),
]


class Asserting(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.linear = how, nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.how == "message":
            torch._assert_async(mask.sum() == 3, "not three")
        elif self.how == "number":
            torch._assert_async(mask.sum())
        elif self.how == "all":
            torch._check_tensor_all(mask >= 0)
        elif self.how == "several":
            torch._assert_async((mask >= 0).all())
            torch._assert_async((mask <= 1).all())
        elif self.how == "item":
            torch._check((mask.sum() == 3).item())
        return self.linear(x).relu()


THREE, NONE = torch.tensor([1, 1, 1, 0]), torch.zeros(4, dtype=torch.int64)
CASES = [
    ("message", NONE),
    ("item", NONE),
    ("all", torch.tensor([1, 1, -1, 0])),
    ("number", NONE),
    ("several", torch.tensor([1, 1, 2, 0])),
]


@pytest.mark.parametrize(("how", "broken"), first(3, CASES))
def test_a_broken_assertion_raises_what_pytorch_raises(how: str, broken: Tensor):
    if how in {"item", "all"} and Version(torch.__version__) < Version("2.12"):
        pytest.skip("torch.export of PyTorch 2.11 does not trace numbers read from bools; the original runs")
    model = Asserting(how).eval()
    original = copy.deepcopy(model)
    kernelize(model, mode=Mode.INFERENCE)
    for rows in (3, 5):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(model(x, THREE), original(x, THREE))
    assert [row.swapped for row in report(model).rows if row.path == ""] == [True]
    forward = model.__dict__["forward"].func
    (program,) = [jit_compilations.program_of(one) for one in forward.forwards(model)]
    assert program.fallbacks == {}, "calls whose data hold run on the program"
    with pytest.raises(RuntimeError) as expected:
        original(x, broken)
    with pytest.raises(RuntimeError) as found:
        model(x, broken)
    assert str(found.value) == str(expected.value) and list(program.fallbacks) == ["assertion"]
    torch.testing.assert_close(model(x, THREE), original(x, THREE))


def test_who_looks_at_no_assertion_refuses_it():
    """An import that dropped it would give numbers where PyTorch raises."""
    with pytest.raises(ImportFailure, match="an assertion on data"):
        import_torch(Asserting("message").eval(), (torch.randn(2, 8), THREE))


class Factoring(nn.Module):
    """What LAPACK raises of: a singular matrix, and one that has no Cholesky factor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor, k: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x) @ torch.inverse(k), torch.linalg.cholesky(p)


def test_a_singular_matrix_raises_what_pytorch_raises():
    model = Factoring().eval()
    original = copy.deepcopy(model)
    kernelize(model, mode=Mode.INFERENCE)
    good, singular = torch.eye(3) + 0.1, torch.ones(3, 3)
    for rows in (3, 5):
        x = torch.randn(rows, 3)
        for one, other in zip(model(x, good, good), original(x, good, good), strict=True):
            torch.testing.assert_close(one, other)
    assert [row.swapped for row in report(model).rows if row.path == ""] == [True]
    for k, p in ((singular, good), (good, -good)):
        with pytest.raises(torch.linalg.LinAlgError) as expected:
            original(x, k, p)
        with pytest.raises(torch.linalg.LinAlgError) as found:
            model(x, k, p)
        assert str(found.value) == str(expected.value)
