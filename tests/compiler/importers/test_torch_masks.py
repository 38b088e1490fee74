"""Writes where masks hold, and their kin, against torch: of every dtype, free sizes, and nothing to write."""

from __future__ import annotations

import pytest
import torch
from packaging.version import Version
from torch.export import Dim

from kernels_hub.compiler import compile, evaluate
from kernels_hub.compiler.errors import EvaluateError, ImportFailure
from kernels_hub.compiler.importers.torch_export import import_torch
from tests.compiler.importers.test_torch_export_ops import rand
from tests.compiler.importers.torch_programs import Function, as_far_as_pytorch_traces, check, check_function

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export's own

X, V, NONE = rand(4, 5), rand(20, seed=1), torch.zeros(0)
COUNT = int((X > 0).sum())
CUBE, PLANE, ROWS = rand(2, 3, 4), rand(2, 3, seed=2) > 0, rand(2, seed=2) > 0


def written(x, index, values):
    x = x.clone()
    x[index] = values
    return x


CASES = {
    "a number": (lambda x: [written(x, x > 0, 3.0), written(x, x[:, 0] > 0, -1.0)], X),
    "values": (lambda x, v, m: [written(x, m, v[:COUNT]), written(x, x > 0, x[x > 0] * 2)], X, V, X > 0),
    "rows": (lambda x, m: [written(x, x[:, 0] > 0, x[0]), written(x, m, x[:2]), written(x, m, x[:2, :1])],
             X, torch.tensor([True, False, False, True])),
    "behind other dims": (lambda x, m, r: [
        written(x, (slice(None), m), x[:, :2]), written(x, (slice(None), m), x[:, :1]),
        written(x, (slice(None), m), x[0, 0]), written(x, (slice(None), m), x[0, :2]), written(x, r, x[r] - 1)],
        CUBE, torch.tensor([True, False, True]), ROWS),
    "of two dims": (lambda x, m: [written(x, m, x[m] + 1), written(x, m, x[0, 0]), written(x, m, 0.5)], CUBE, PLANE),
    "added": (lambda x, m, b: [
        x.index_put((m,), x[0, 0], accumulate=True), x.index_put((m,), x[m], accumulate=True),
        b.index_put((m,), torch.tensor(True), accumulate=True)], X, X > 0, rand(4, 5, seed=3) > 0),
    "masked_scatter": (lambda x, m, v: [
        x.masked_scatter(m, v), x.masked_scatter(m[:, :1], x.flip(0)), x.masked_scatter(m[:1], v[:17]),
        x.masked_scatter(m[:, :1].expand(4, 5), v[:15].reshape(3, 5)), x[0, 0].masked_scatter(m[0, 0], v)], X, X > 0, V),
    "masked_scatter of nothing": (lambda x, m, v: [
        x.masked_scatter(m, v), x[:0].masked_scatter(m[:0], v), x.masked_scatter(m[:, :1], v.reshape(0, 5))],
        X, X > 100, NONE),
    "masked_select": (lambda x, m: [x.masked_select(m), x.masked_select(m[:1])], X, X > 0),
    "put": (lambda x, i, v: [
        x.put(i, v[:4].reshape(2, 2)), x.put(i, v[:4].reshape(2, 2), accumulate=True), x.put(i[:0], v[:0])],
        X, torch.tensor([[0, 7], [-1, 3]]), V),
    "put where it was put": (lambda x, i, v: x.put(i, v[:4], accumulate=True), X, torch.tensor([2, 2, -18, 3]), V),
    "nonzero_static": (lambda x, c: [
        torch.nonzero_static(x > 0, size=6), torch.nonzero_static(c > 0, size=40, fill_value=-7),
        torch.nonzero_static(x[0], size=3), torch.combinations(x[0])], X, CUBE),
    "diagonal_scatter": (lambda x, v, c: [
        x.diagonal_scatter(v[:4]), x.diagonal_scatter(v[:4], 1), x.diagonal_scatter(v[:2], -2),
        c.diagonal_scatter(c[0, :2, :3], 1, 1, -1), c.diagonal_scatter(v[:4].reshape(2, 2), 1, -1, 1)], X, V, CUBE),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("name", CASES)
@as_far_as_pytorch_traces()
def test_ops(name, dtype):
    function, *args = CASES[name]
    check_function(function, *(one.to(dtype) if one.dtype is torch.float32 else one for one in args))


def test_free_sizes():
    def forward(x, image, ids):
        marked = (ids == 7).unsqueeze(-1).expand_as(x)
        return x.masked_scatter(marked, image), written(x, ids == 7, image), x.masked_select(x > 0)

    def sizes(rows, columns, features):
        ids = torch.zeros(rows, columns, dtype=torch.int64)
        ids.view(-1)[1 : 1 + features] = 7
        return rand(rows, columns, 6), rand(features, 6, seed=1), ids

    rows, columns = Dim("rows"), Dim("columns")
    dims = (({0: rows, 1: columns}, {0: Dim("features")}, {0: rows, 1: columns}),)
    others = [(sizes(*one), {}) for one in ((2, 4, 5), (5, 3, 8), (1, 9, 0))]
    graph = check(Function(forward), sizes(3, 7, 4), dynamic_shapes=dims, others=others).graph
    (of_rows,) = {node.operands[0] for node in graph.live() if node.op.name == "cumsum"}
    assert str(of_rows.shape[0]).count("*") == 1, "rows are numbered, not elements"


@pytest.mark.parametrize("free", [False, True])
def test_too_few_values_are_told(free):
    dims = (({}, {}, {0: Dim("given", min=0)}),) if free else None
    given = rand(3)
    graph = import_torch(
        Function(lambda x, m, v: x.masked_scatter(m, v)), (X, X > 0, given), dynamic_shapes=dims
    )
    inputs = dict(
        zip(graph.inputs, (X.numpy(), torch.ones(4, 5, dtype=torch.bool).numpy(), given.numpy()), strict=True)
    )
    with pytest.raises(EvaluateError, match="out of range"):
        evaluate(graph, inputs)
    run = compile(graph, "cpu")
    with pytest.raises(Exception, match="out of range"):
        run(X, torch.ones(4, 5, dtype=torch.bool), given)


def test_a_compiled_graph_has_the_features_of_images():
    def forward(x, image, ids):
        return x.masked_scatter((ids == 7).unsqueeze(-1).expand_as(x), image.to(x.dtype))

    ids = torch.tensor([[1, 7, 7, 2], [7, 0, 0, 7]])
    args = rand(2, 4, 8), rand(4, 8, seed=1), ids
    run = compile((Function(forward), args, {}), "cpu")
    torch.testing.assert_close(run(*args), forward(*args), rtol=0, atol=0)


def test_a_mask_that_is_larger_is_refused():
    with pytest.raises(ImportFailure, match="a mask of more elements"):
        import_torch(Function(lambda x, m: x[:1].masked_select(m)), (X, X > 0))


def test_a_mask_beside_other_indices_is_refused():
    with pytest.raises(ImportFailure, match="a mask beside other indices"):
        import_torch(
            Function(lambda x, m, i: x.index_put((m, i), x[0, 0])), (X, X[:, 0] > 0, torch.tensor([1]))
        )


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: written(x, x > 0, y[x > 0]),
        lambda x, y: written(x, y > 0.5, (y[y > 0.5] * 2 + 1).tanh()),
        lambda x, y: written(x, x[:, 0] > 0, y[x[:, 0] > 0] * y[0]),
        lambda x, y: written(x.long(), x > 0, (y * 9).long()[x > 0] + 3),
    ],
    ids=["plain", "pointwise", "rows", "integers"],
)
def test_what_is_pointwise_is_computed_at_all_places(function):
    """Sampling points, and balls around them, ask for the nearest so far: `distance[nearer] = found[nearer]`."""
    args = (X, rand(4, 5, seed=7))
    program = check_function(function, *args)
    assert not {"nonzero", "gather_nd"} & {node.op.name for node in program.graph.live()}


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: written(x, x > 0, y[x > 0].flip(0)),
        pytest.param(
            lambda x, y: written(x, x > 0, y[y > 0][:COUNT]),
            marks=pytest.mark.skipif(
                Version(torch.__version__).release < (2, 15),
                reason="PyTorch 2.11 traces the length of a slice as a size of its own",
            ),
        ),
        lambda x, y: written((x * 9).long(), x > 0, 12 // (y * 0 + 3 * (x > 0)).long()[x > 0]),
        lambda x, y: written(x, x > 0, y[x > 0].cumsum(0)),
    ],
    ids=["another order", "other places", "may divide by zero", "not pointwise"],
)
def test_what_is_not_is_computed_of_those_that_hold(function):
    check_function(function, X, X + 0.25 * (X > 0))
