"""Gradients through rare ops: forwards and backwards are compiled, and agree with autograd."""

from __future__ import annotations

import pytest
import torch

from kernels_hub.compiler.dynamo.backend import kernels_hub
from tests.compiler.importers.test_torch_export_ops import rand

pytestmark = pytest.mark.filterwarnings("ignore")  # Dynamo's own

X, Y, MASK = rand(4, 6), rand(3, 6, seed=1), torch.tensor([True, False, True, True])
TIES = torch.tensor([[1.0, 2, 2], [0, 0, 1], [1, 2, 2]])

CASES = {
    "masked_scatter of rows": (lambda x, y: x.masked_scatter(MASK[:, None].expand(4, 6), y), X, Y),
    "masked_scatter": (lambda x, y: x.masked_scatter(x > 0, y), X, rand(30, seed=2)),
    "masked_scatter of more than there is": (lambda x, y: x.masked_scatter(MASK[:, None], y), X, rand(5, 6, seed=2)),
    "rows at a mask": (lambda x, y: x.index_put((MASK,), y), X, Y),
    "a row at a mask": (lambda x, y: x.index_put((MASK,), y[0]), X, Y),
    **{f"cdist {order}": (lambda x, y, order=order: torch.cdist(x, y, order), X, Y) for order in (0.0, 1.0, 1.5, 2.0, 3.0)},
    "cdist inf": (lambda x, y: torch.cdist(x, y, float("inf")), X, Y),
    "cdist of equals": (lambda x, y: torch.cdist(x, y), TIES, TIES[:2]),
    "cdist of a half": (lambda x, y: torch.cdist(x, y, 0.5), TIES, TIES[:2]),
    "batches of cdist": (lambda x, y: torch.cdist(x.reshape(2, 2, 6), y.expand(2, 3, 6)), X, Y),
    "places": (lambda x: x.cummax(1)[0] + x.median(1, keepdim=True)[0] * x.kthvalue(2, 1, True)[0], X),
    "functions": (lambda x: x.abs().lgamma() + torch.fmax(x, -x) + x.logcumsumexp(1) + torch.hypot(x, x), X),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    function, *args = CASES[name]
    torch._dynamo.reset()
    ours, theirs = ([one.clone().requires_grad_() for one in args] for _ in range(2))
    options = {"fallback": "error", "engines": ("library", "reference")}
    found = torch.compile(function, backend=kernels_hub, options=options, dynamic=False)(*ours)
    expected = function(*theirs)
    torch.testing.assert_close(found, expected)
    weights = rand(*expected.shape, seed=9)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)
