"""Backward ops of ATen against torch: on the oracle, as AOTAutograd gives them to a graph of training."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels_hub.compiler.dynamo.backend import kernels_hub
from kernels_hub.compiler.dynamo.statistics import statistics
from tests.compiler.importers.torch_programs import check_function

ATEN = torch.ops.aten


def rand(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


IMAGE = rand(2, 4, 7, 9)


def pooled(x, *options):
    result, places = ATEN.max_pool2d_with_indices(x, *options)
    return ATEN.max_pool2d_with_indices_backward(result + 1, x, *options, places)


def averaged(x, *options):
    return ATEN.avg_pool2d_backward(ATEN.avg_pool2d(x, *options) + 1, x, *options)


def attended(query, key, value, causal=False, mask=None, scale=None):
    options = {"attn_mask": mask, "scale": scale}
    result, sums = ATEN._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, **options)
    return ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
        result * 2 + 1, query, key, value, result, sums, 0.0, causal, **options
    )


Q, K = rand(2, 4, 3, 8), rand(2, 4, 6, 8, seed=1)
HIDDEN = torch.where(torch.arange(6) > torch.tensor([[1], [4], [2]]), 0.0, -torch.inf)

CASES = {
    "pooling": (
        lambda x: [
            pooled(x, [3, 3], [2, 2], [1, 1], [1, 1], False), pooled(x, [2, 2], [2, 2], [0, 0], [1, 1], True),
            pooled(x, [3, 2], [1, 2], [1, 0], [2, 1], False), averaged(x, [3, 3], [2, 2], [1, 1], False, True, None),
            averaged(x, [2, 3], [2, 1], [1, 0], True, False, None), averaged(x, [2, 2], [2, 2], [0, 0], False, True, 3),
            ATEN._adaptive_avg_pool2d_backward(ATEN._adaptive_avg_pool2d(x, [3, 4]) + 1, x),
        ],
        IMAGE,
    ),
    "attention": (
        lambda q, k, m: [
            *attended(q, k, k * 2), *attended(q, k, k, True), *attended(q, k, k, False, m),
            *attended(q, k, k, False, m.clamp(min=-3.0), 0.3),
        ],
        Q, K, HIDDEN,
    ),
    "attention of groups of heads": (lambda q, k: [*attended(q, k[:, :2], k[:, 2:])], Q, K),
    "attention in bfloat16": (lambda q, k: [*attended(q, k, k)], Q.bfloat16(), K.bfloat16()),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_gradients(name):
    function, *args = CASES[name]
    check_function(function, *args)


def step(function, *args):
    given = [one.clone().requires_grad_() for one in args]
    result = function(*given)
    return [result.detach(), *torch.autograd.grad(result.square().sum(), given)]


TRAINED = {
    "pooling": (lambda x: F.max_pool2d(x.relu(), 3, 2, 1), IMAGE),
    "pooling to sizes": (lambda x: F.adaptive_avg_pool2d(x.sin(), (3, 4)), IMAGE),
    "attention of groups": (
        lambda q, k: F.scaled_dot_product_attention(q, k[:, :2], k[:, 2:], enable_gqa=True), Q, K,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_backwards_are_compiled(name):
    function, *args = TRAINED[name]
    torch._dynamo.reset()
    statistics.clear()
    options = {"engines": ("library",), "fallback": "error"}
    found = step(torch.compile(function, backend=kernels_hub, options=options), *args)
    torch.testing.assert_close(found, step(function, *args), rtol=1e-4, atol=1e-4)
    assert [one.kind for one in statistics.compiled] == ["forward", "backward"]


def test_what_pytorch_does_better_falls_back():
    """Backwards that would hold a great many scores, and those of convolutions."""
    many = torch.randn(1, 1, 4097, 8)
    for function, *args in (
        (lambda q, k: F.scaled_dot_product_attention(q, k, k), many, many),
        (lambda x, w: F.conv2d(x, w), IMAGE, rand(3, 4, 3, 3)),
    ):
        torch._dynamo.reset()
        statistics.clear()
        compiled = torch.compile(
            function, backend=kernels_hub, options={"engines": ("library",), "fallback": "eager"}
        )
        found = step(compiled, *args)
        torch.testing.assert_close(found, step(function, *args), rtol=1e-3, atol=1e-3)
        assert [one.kind for one in statistics.compiled] == ["forward"]
        assert [one.kind for one in statistics.fell_back] == ["backward"]
