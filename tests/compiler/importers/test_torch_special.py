"""Rare pointwise functions, distances, lists of tensors and odd products against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.export import Dim

from kernels_hub.compiler import Graph, compile, evaluate, import_torch
from kernels_hub.compiler.errors import ImportFailure, TypeRuleError
from tests.compiler.importers.test_torch_export_ops import rand
from tests.compiler.importers.torch_programs import (
    Function,
    as_far_as_pytorch_traces,
    assert_matches,
    check,
    check_function,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export's own

NAN, INF = float("nan"), float("inf")
X, Y, I32 = rand(4, 6), rand(4, 6, seed=1), rand(4, 6, dtype=torch.int32, seed=3)
SPECIAL = torch.tensor([NAN, INF, -INF, -0.0, 0.0, 1.0, -1.0, 0.5, -2.5, -3.0, 170.0, -1e-30])
PAIRS = torch.cartesian_prod(SPECIAL, SPECIAL).T.contiguous()
SHARES = torch.tensor([NAN, 0.0, 1.0, -0.5, 1.5, 1e-30, 0.02, 0.3, 0.5, 0.51, 0.97, 0.9999999])
ROWS, COLUMNS = rand(5, 3), rand(4, 3, seed=1)

CASES = {
    "gamma": (lambda x, s, i: [x.lgamma(), x.digamma(), s.lgamma(), s.digamma(), i.lgamma(), torch.mvlgamma(x.abs() + 2, 2)],
              X, SPECIAL, I32),
    "error functions": (lambda x, s, p: [p.erfinv(), (-p).erfinv(), torch.special.erfcx(x), torch.special.erfcx(s),
                                         torch.special.ndtri(p), torch.special.log_ndtr(x), torch.special.ndtr(x)],
                        X, SPECIAL, SHARES),
    "Bessel": (lambda x, s: [x.i0(), s.clamp(-80, 80).i0()], X, SPECIAL),
    "hypot and signs": (lambda x, y, p: [
        torch.hypot(x, y), torch.hypot(p[0], p[1]), torch.copysign(p[0], p[1]), torch.copysign(x, -1.0), x.signbit(),
        p.signbit(), torch.hypot(x * 1e25, y * 1e25)], X, Y, PAIRS),
    "signs of integers": (lambda i, b, x: [torch.copysign(i, x), i.signbit(), b.signbit(), torch.copysign(x, i)],
                          I32, I32 > 0, X),
    "fmax and fmin": (lambda x, y, p, i, b: [torch.fmax(p[0], p[1]), torch.fmin(p[0], p[1]), torch.fmax(x, y[:1]), torch.fmax(i, i.flip(0)),
                                             torch.fmin(i, x), torch.fmax(b, b.flip(0)), torch.fmin(b, b.flip(0))],
                      X, Y, PAIRS, I32, I32 > 0),
    "ldexp and fma": (lambda x, i, y: [torch.ldexp(x, i // 4), torch.ldexp(i, i // 4), torch.ops.prims.fma(x, y, x),
                                       torch.xlogy(x.abs(), 2.0), torch.xlogy(2.0, x.abs())], X, I32, Y),
    "of nothing": (lambda x: [x.lgamma(), x.erfinv(), torch.hypot(x, x), torch.fmax(x, x), torch.cdist(x, x), torch.cdist(x[:, :0], x[:, :0]),
                              torch.dist(x, x), x.histc(3)], torch.zeros(0, 3)),
    "cdist": (lambda a, b: [torch.cdist(a, b, p) for p in (0.0, 1.0, 2.0, 3.0, 0.5, INF)] + [torch.cdist(a[None], b.expand(2, 4, 3)),
                            torch.cdist(a, a), torch.cdist(b.expand(2, 3, 4, 3), a.expand(3, 5, 3), 1.0), torch.cdist(a[:, :0], b[:, :0], INF)],
              ROWS, COLUMNS),
    "dist": (lambda x, y: [torch.dist(x, y), torch.dist(x, y, 1), torch.dist(x, y[0], INF), torch.dist(x, y, 0), x.norm(0, 1)], X, Y),
    "lists": (lambda x, y: [
        *torch._foreach_add([x, y], [y, x], alpha=2), *torch._foreach_add([x, y], 1.5), *torch._foreach_mul([x, y], [2.0, 3.0]),
        *torch._foreach_div([x, y], [y, x]), *torch._foreach_sub([x, y], 1), *torch._foreach_mul([x, y], torch.tensor(2.0)),
        *torch._foreach_pow([x.abs(), y.abs()], 1.5), *torch._foreach_maximum([x, y], 0.5), *torch._foreach_minimum([x, y], [y, x]),
        *torch._foreach_clamp_min([x, y], [0.1, 0.2]), *torch._foreach_lerp([x, y], [y, x], 0.3), *torch._foreach_lerp([x], [y], [x]),
        *torch._foreach_addcmul([x, y], [y, x], [x, x], 0.5), *torch._foreach_addcdiv([x], [y], [y.abs() + 1], [2.0]),
        *torch._foreach_norm([x, y]), *torch._foreach_norm([x, y], 1), *torch._foreach_norm([x], INF), *torch._foreach_neg([x]),
        *torch._foreach_sqrt([x.abs(), y.abs()]), *torch._foreach_exp([x]), *torch._foreach_max([x, y])], X, Y),
    "products": (lambda x, y, b: [
        torch.addmv(x[:, 0], x, y[0]), torch.addmv(x[:, 0], x, y[0], beta=0.5, alpha=2), torch.addbmm(b[0] @ b[0].mT, b, b.mT),
        torch.addbmm(b[0, 0, :2], b, b.mT, beta=2, alpha=0.5), torch._addmm_activation(x[0, :4], x, y.mT),
        torch._addmm_activation(x[0, :4], x, y.mT, use_gelu=True), x.narrow_copy(1, 2, 3)], X, Y, rand(3, 2, 5)),
    "slopes and places": (lambda x: [F.rrelu(x), F.rrelu(x, 0.1, 0.5), torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -20, 17)], X),
    "histograms": (lambda x, i: [x.histc(5), x.histc(4, 1, 1), (x * 0 + 2).histc(3), x.histc(5, -2, 2), x.histc(40, -9, 4), x[0].histc(9, -0.1, 0.1)], X, I32),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_ops(name, dtype):
    function, *args = CASES[name]
    check_function(
        function, *(one.to(dtype) if one.is_floating_point() else one for one in args), tolerance=1e-5
    )


@pytest.mark.parametrize("name", ["hypot and signs", "fmax and fmin", "lists"])
def test_bfloat16(name):
    function, *args = CASES[name]
    check_function(function, *(one.bfloat16() if one.is_floating_point() else one for one in args))


@pytest.mark.parametrize("name", ["gamma", "error functions", "Bessel", "hypot and signs", "cdist"])
def test_engines_run_them(name, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path))
    function, *args = CASES[name]
    run = compile((Function(function), tuple(args), {}), "cpu")
    for one, other in zip(run(*args), function(*args), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, rtol=2e-5, atol=1e-6)


def test_products_of_bytes():
    a, b = (
        torch.randint(-99, 99, (32, 16), dtype=torch.int8, generator=torch.Generator().manual_seed(i))
        for i in (0, 1)
    )
    check_function(lambda x, y: torch._int_mm(x, y.mT), a, b)
    run = compile((Function(lambda x, y: torch._int_mm(x, y.mT)), (a, b), {}), "cpu")
    assert torch.equal(run(a, b), torch._int_mm(a, b.mT))
    with pytest.raises(TypeRuleError, match="takes int8"):
        (wide := Graph("wide").constant([[1, 2]])).apply("int_mm", wide, wide)


@as_far_as_pytorch_traces()
def test_free_sizes():
    def forward(x, y):
        quantiles = torch.quantile(x, torch.tensor([0.25, 0.6]), 1)
        return (
            torch.cdist(x, y),
            torch.cdist(x, y, 1.0),
            torch.hypot(x, x),
            *torch._foreach_mul([x, y], 2.0),
            quantiles,
        )

    dims = (
        (
            {0: Dim("rows", max=20), 1: (width := Dim("width", max=1000))},
            {0: Dim("others", max=20), 1: width},
        ),
    )
    others = [((rand(2, 5), rand(7, 5)), {}), ((rand(6, 2), rand(3, 2)), {})]
    check(Function(forward), (ROWS, COLUMNS), dynamic_shapes=dims, others=others)


FUNCTIONS = {
    "lgamma": (torch.lgamma, -30.0, 60.0), "digamma": (torch.digamma, 0.05, 60.0), "erfinv": (torch.erfinv, -1.0, 1.0),
    "erfcx": (torch.special.erfcx, -4.0, 200.0), "ndtri": (torch.special.ndtri, 0.0, 1.0), "i0": (torch.i0, -60.0, 60.0),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(deadline=None, max_examples=30)
@given(shares=st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_references_are_good_to_float64(name, shares):
    function, low, high = FUNCTIONS[name]
    x = np.array([low + share * (high - low) for share in shares])
    graph = Graph("one")
    graph.output("y", graph.input("x", x.shape, "float64").unary(name))
    assert_matches(evaluate(graph, [x])["y"], function(torch.from_numpy(x)), 1e-9)


def test_what_is_drawn_is_refused():
    with pytest.raises(ImportFailure, match="rrelu|random slopes|rand"):
        import_torch(Function(lambda x: F.rrelu(x, training=True)), (X,))
