"""Linear equations, inverses, determinants and Cholesky factors against torch, and their C++ and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from kernels_hub.compiler import compile, differentiate, evaluate, import_torch
from kernels_hub.compiler.errors import ImportFailure
from tests.compiler.importers.test_torch_export_ops import rand
from tests.compiler.importers.torch_programs import Function, check, check_function

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export's own


def square(*shape, seed=0):
    """Matrices whose rows have to be exchanged, far from singular."""
    a = rand(*shape, seed=seed) * 0.3 + 2 * torch.eye(shape[-1])
    return a[..., torch.arange(shape[-1]).roll(1), :]


def triangle(*shape, seed=0):
    """Matrices of which both triangles are numbers, with a diagonal away from 0."""
    return rand(*shape, seed=seed) * 0.3 + 2 * torch.eye(shape[-1])


def positive(*shape, seed=0):
    a = rand(*shape, seed=seed) * 0.5
    return a @ a.mT + torch.eye(shape[-1])


L = torch.linalg
A, T, P = square(3, 5, 5), triangle(3, 5, 5), positive(3, 5, 5)
B, V, ONE = rand(3, 5, 2, seed=4), rand(3, 5, seed=5), square(1, 1)
SINGULAR = torch.tensor([[[1.0, 2, 3], [2, 4, 6], [1, 0, 1]], [[0.0, 0, 1], [0, 0, 2], [0, 3, 4]]])

CASES = {
    "triangular": (lambda t, b: [L.solve_triangular(t, b, upper=False), L.solve_triangular(t, b, upper=True),
                                 L.solve_triangular(t, b, upper=False, unitriangular=True),
                                 L.solve_triangular(t, b.mT, upper=True, left=False),
                                 L.solve_triangular(t, b.mT, upper=False, left=False)], T, B),
    "triangular of 64 rows": (lambda t, b: L.solve_triangular(t, b, upper=False, unitriangular=True),
                              rand(2, 64, 64) * 0.1, rand(2, 64, 3, seed=1)),
    "triangular of one batch": (lambda t, b: [L.solve_triangular(t[0], b, upper=False), L.solve_triangular(t, b[0], upper=True)],
                                T, B),
    "triangular of one row": (lambda t, b: L.solve_triangular(t, b, upper=False), T[:, :1, :1], B[:, :1]),
    "triangular_solve": (lambda t, b: [*torch.triangular_solve(b, t), *torch.triangular_solve(b, t, False, True)], T, B),
    "inverse": (lambda a, b: [torch.inverse(a), L.inv(a[0]), L.inv(b), L.inv_ex(a)[0]], A, ONE),
    "what is singular": (lambda a: [L.inv_ex(a).info, L.cholesky_ex(a @ a.mT - torch.eye(3)).info], SINGULAR),
    "without checks": (lambda a: [L.inv_ex(a)[0], *L.cholesky_ex(a @ a.mT)], A),
    "solve": (lambda a, b, v: [L.solve(a, b), L.solve(a, v), L.solve(a[0], v[0]), L.solve(a[0], b),
                               L.solve(a, b.mT, left=False)], A, B, V),
    "det": (lambda a, s: [a.det(), L.det(a[0]), L.det(s), a.logdet(), *L.slogdet(a), *torch.slogdet(s[:, :2, :2] + 1)], A, SINGULAR),
    "logdet of a negative": (lambda a: [a.logdet(), *L.slogdet(a)], A[:1] * torch.tensor([-1.0, 1, 1, 1, 1])),
    "cholesky": (lambda p: [L.cholesky(p), L.cholesky(p, upper=True), L.cholesky(p[0])], P),
    "cholesky_solve": (lambda p, b: [torch.cholesky_solve(b, p), torch.cholesky_solve(b, p, True),
                                     torch.cholesky_inverse(p), torch.cholesky_inverse(p[0], True)], T, B),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_like_torch(name):
    function, *args = CASES[name]
    check_function(function, *args, tolerance=2e-5)


def test_in_double_precision():
    for name in ("triangular", "inverse", "solve", "det", "cholesky", "cholesky_solve"):
        function, *args = CASES[name]
        check_function(function, *(one.double() for one in args))


def test_batches_are_free():
    def forward(a, b):
        return L.solve(a, b), L.inv(a), L.det(a), L.solve_triangular(a, b, upper=True)

    batch = Dim("batch", min=1)
    others = [((square(2, 4, 4, seed=8), rand(2, 4, 2, seed=9)), {})]
    shapes = (({0: batch}, {0: batch}),)
    given = (square(3, 4, 4), rand(3, 4, 2))
    check(Function(forward), given, dynamic_shapes=shapes, others=others, tolerance=2e-5)


def test_free_rows_are_refused_and_may_be_fixed():
    rows = Dim("rows", min=2)
    with pytest.raises(ImportFailure, match="a size that may differ") as caught:
        check(Function(lambda a, b: L.solve_triangular(a, b, upper=False)), (T, B),
              dynamic_shapes=(({1: rows, 2: rows}, {1: rows}),))  # fmt: skip
    assert caught.value.of_sizes


def test_in_c():
    class Rule(nn.Module):
        """Of a gated delta rule: a triangular system for each chunk, a camera's inverse and a Gaussian's density."""

        def __init__(self):
            super().__init__()
            self.project = nn.Linear(8, 8)

        def forward(self, x, k):
            h = self.project(x)
            system = (h @ h.mT).tril(-1) * 0.1
            rays = torch.inverse(k) @ h[:, :4, :3].mT
            factor = L.cholesky(k @ k.mT + torch.eye(3))
            return L.solve_triangular(system, h, upper=False, unitriangular=True), rays, factor, L.det(k)

    torch.manual_seed(0)
    module, args = Rule().eval(), (rand(2, 16, 8), square(2, 3, 3))
    run = compile((module, args, {}), "cpu", engines=("cpp",))
    with torch.no_grad():
        for one, other in zip(run(*args), module(*args), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_torch():
    def forward(a, b):
        return (
            L.solve(a, b).sum()
            + a.det().sum()
            + L.solve_triangular(a + 3 * torch.eye(4), b, upper=True).square().sum()
        )

    given = (square(2, 4, 4).double(), rand(2, 4, 2).double())
    graph = import_torch(Function(forward), given)
    both = differentiate(graph)
    named = dict(zip(graph.inputs, (one.numpy() for one in given), strict=True))
    made = evaluate(both.forward, named)
    (output,) = graph.outputs
    found = evaluate(both.backward, both.backward_inputs(named, made, {output: np.ones(())}))
    leaves = [one.clone().requires_grad_() for one in given]
    forward(*leaves).backward()
    for name, leaf in zip(named, leaves, strict=True):
        torch.testing.assert_close(torch.from_numpy(np.asarray(found[both.gradients[name]])), leaf.grad)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a.det() * b.sum(),
        lambda a, b: L.slogdet(a)[1] + b.sum(),
        lambda a, b: torch.inverse(a) @ b,
        lambda a, b: L.solve_triangular(a, b, upper=True),
    ],
    ids=["det", "slogdet", "inverse", "triangular"],
)
def test_training_as_a_backend(function):
    """PyTorch keeps factors for its backward: a graph that gives them is left to it."""
    torch._dynamo.reset()
    leaves = [one.clone().requires_grad_() for one in (square(3, 4, 4), rand(3, 4, 2))]
    others = [one.detach().clone().requires_grad_() for one in leaves]
    function(*leaves).square().sum().backward()
    torch.compile(function, backend="kernels_hub")(*others).square().sum().backward()
    for one, other in zip(leaves, others, strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5)
