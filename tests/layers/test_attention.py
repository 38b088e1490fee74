"""The CPU variant of `layers/attention` as a function, against the formula in float64."""

from __future__ import annotations

import os
import re
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.layers.attention_cases import (
    CASES,
    DTYPES,
    EMPTY,
    PLAIN,
    Case,
    check_backward,
    check_forward,
    formula,
    make,
)
from tests.layers.checked_operators import opcheck
from tests.tolerances import assert_close
from tests.warm_process import run_script

LARGER = [
    Case((2, 12, 12, 128, 128, 32, 32)),
    Case((1, 8, 2, 150, 300, 64, 64), causal=True, offset=150),
    Case((1, 4, 4, 197, 197, 80, 80), "bool 1 1 197 197", layout="joined"),
    Case((1, 2, 2, 130, 261, 256, 128), causal=True),
    Case((1, 8, 2, 1, 700, 64, 64), "bool 1 1 1 700"),
    Case((1, 2, 1, 3, 9, 17, 5), "float 1 2 3 9", layout="strided"),
]


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / "attention", "cpu"))


@pytest.mark.parametrize("case", [*CASES, *EMPTY, *LARGER], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_and_backward(package: ModuleType, case: Case, dtype: torch.dtype) -> None:
    call = make(case, dtype)
    check_forward(package.attention, call)
    check_backward(package.attention, call)


def test_the_comparison_rejects_a_wrong_answer(package: ModuleType) -> None:
    call = make(PLAIN, torch.float32)
    with pytest.raises(AssertionError):
        check_forward(lambda *args, **options: 1.001 * package.attention(*args, **options), call)
    with pytest.raises(AssertionError):  # a gradient without its second part
        check_backward(
            lambda q, k, v, mask, **options: package.attention(q, k.detach() + 0 * k, v, mask, **options),
            call,
        )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, "bool", "float"])
def test_as_pytorch(package: ModuleType, causal: bool, mask: str | None) -> None:
    """The layer takes what torch's function takes, queries that see nothing included."""
    layer = package.layers.scaled_dot_product_attention()
    query, key, value = (torch.randn(2, 3, length, 16) for length in (6, 9, 9))
    given = None
    if mask is not None:
        given = torch.rand(2, 1, 6, 9) > 0.3
        given[0, 0, 2] = False
        given = given if mask == "bool" else torch.where(given, 0.5, -torch.inf)
    refused = None
    try:
        expected = F.scaled_dot_product_attention(query, key, value, given, 0.0, causal)
    except RuntimeError as error:
        refused = str(error)
    if refused is None:
        torch.testing.assert_close(layer(query, key, value, given, 0.0, causal), expected)
    else:  # a mask with is_causal, from PyTorch 2.14 on: the layer refuses what it refuses
        assert causal
        assert given is not None
        with pytest.raises(RuntimeError, match=re.escape(refused)):
            layer(query, key, value, given, 0.0, causal)
    torch.testing.assert_close(
        layer(query[:, 0], key[:, 0], value[:, 0]),
        F.scaled_dot_product_attention(query[:, 0], key[:, 0], value[:, 0]),
    )
    grouped = [query, key[:, :1], value[:, :1]]
    with pytest.raises(RuntimeError):
        layer(*grouped[:1], key[:, :2], value[:, :2])
    torch.testing.assert_close(
        layer(*grouped, enable_gqa=True, scale=0.2),
        F.scaled_dot_product_attention(*grouped, enable_gqa=True, scale=0.2),
    )


def test_a_mask_of_very_low_numbers_spreads_evenly(package: ModuleType) -> None:
    """What transformers adds to padding: such a row has no largest score, and must not grow with its length."""
    query, key, value = (torch.randn(1, 1, 4, 16, requires_grad=True) for _ in range(3))
    mask = torch.full((1, 1, 4, 4), torch.finfo(torch.float32).min)
    found = package.attention(query, key, value, mask)
    torch.testing.assert_close(found, value.mean(2, keepdim=True).expand_as(found))
    (gradient,) = torch.autograd.grad(found.sum(), value)
    torch.testing.assert_close(gradient, torch.ones_like(gradient))


def test_special_values(package: ModuleType) -> None:
    query, key, value = (torch.randn(1, 1, 20, 16) for _ in range(3))
    query[0, 0, 3, 5] = torch.nan
    value[0, 0, :, 2] = torch.inf
    found, expected = package.attention(query, key, value), F.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(found, expected, equal_nan=True)


GRADCHECKED = [
    Case((1, 2, 1, 3, 4, 3, 2), causal=True, offset=1),
    Case((1, 2, 2, 3, 4, 3, 3), "bool 1 2 3 4", softcap=1.5),
    Case((1, 1, 1, 2, 3, 2, 2), "float 2 3"),
]


@pytest.mark.parametrize("case", GRADCHECKED, ids=str)
def test_gradcheck_and_second_order(package: ModuleType, case: Case) -> None:
    call = make(case, torch.float64)
    inputs = [x.requires_grad_() for x in (call.query, call.key, call.value)]

    def function(*given: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = package.attention(*given, call.mask, **call.options())
        return result

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_a_mask_may_be_learned(package: ModuleType) -> None:
    call = make(Case((1, 2, 1, 5, 6, 16, 16), "float 2 5 6"), torch.float32)
    assert call.mask is not None
    mask = call.mask.requires_grad_()
    found = package.attention(call.query, call.key, call.value, mask)
    (got,) = torch.autograd.grad(found.square().sum(), mask)
    (expected,) = torch.autograd.grad(formula(call).square().sum(), mask)
    assert_close(got, expected, factor=4.0)


def test_forward_mode(package: ModuleType) -> None:
    query, key, value = (torch.randn(1, 2, 5, 16) for _ in range(3))
    tangents = []
    for function in (package.attention, F.scaled_dot_product_attention):
        with (
            torch.autograd.forward_ad.dual_level(),
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            dual = torch.autograd.forward_ad.make_dual(query, torch.ones_like(query))
            tangents.append(torch.autograd.forward_ad.unpack_dual(function(dual, key, value)).tangent)
    torch.testing.assert_close(*tangents)


def test_autocast(package: ModuleType) -> None:
    query, key, value = (torch.randn(1, 2, 5, 16) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        found = package.attention(query, key, value)
    assert found.dtype is torch.bfloat16
    assert_close(found, F.scaled_dot_product_attention(query.double(), key.double(), value.double()))


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing(package: ModuleType, threads: int) -> None:
    call = make(Case((2, 4, 2, 60, 70, 32, 32), causal=True), torch.float32)
    inputs = [x.requires_grad_() for x in (call.query, call.key, call.value)]

    def gradients() -> tuple[torch.Tensor, ...]:
        found = package.attention(*inputs, **call.options())
        return torch.autograd.grad(found.square().sum(), inputs)

    before = torch.get_num_threads()
    expected = gradients()
    torch.set_num_threads(threads)
    try:
        for ours, theirs in zip(gradients(), expected, strict=True):
            assert torch.equal(ours, theirs)
    finally:
        torch.set_num_threads(before)


BAD: dict[str, tuple[Any, str]] = {
    "rank": (lambda q, k, v: (q[0], k, v), "must be .batch, heads, length, width., got .2, 5, 16."),
    "dtype": (lambda q, k, v: (q, k.bfloat16(), v), "differ in dtype: torch.float32, torch.bfloat16"),
    "length": (lambda q, k, v: (q, k, v[:, :, 1:]), "must agree, got"),
    "width": (lambda q, k, v: (q[..., 1:], k, v), "query is 15 wide and key 16"),
    "heads": (
        lambda q, k, v: (q[:, :1].expand(-1, 3, -1, -1), k, v),
        "3 heads of queries cannot share 2 heads",
    ),
    "mask": (lambda q, k, v: (q, k, v, torch.ones(5, 6, dtype=torch.bool)), "mask .5, 6. does not broadcast"),
    "mask dtype": (lambda q, k, v: (q, k, v, torch.ones(5, 7, dtype=torch.int64)), "got torch.int64"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(package: ModuleType, name: str) -> None:
    change, message = BAD[name]
    query, key, value = torch.randn(1, 2, 5, 16), torch.randn(1, 2, 7, 16), torch.randn(1, 2, 7, 16)
    with pytest.raises(ValueError, match=message):
        package.attention(*change(query, key, value))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_whole(package: ModuleType, dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(package.attention, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for case in (PLAIN, Case((2, 4, 2, 6, 9, 16, 16), causal=True, offset=3)):
        check_forward(compiled, make(case, torch.float32))
        check_backward(compiled, make(case, torch.float32))


def test_operators_are_well_formed(package: ModuleType) -> None:
    operators = sys.modules[f"{package.__name__}.operators"]
    call = make(PLAIN, torch.float32)
    inputs = (call.query, call.key, call.value, None, True, 2, 0.25, 0.0)
    opcheck(operators.attention_inference, inputs)
    for tensor in inputs[:3]:
        tensor.requires_grad_()  # type: ignore[union-attr]
    opcheck(operators.attention, inputs)


def test_without_a_compiler_the_reference_serves() -> None:
    code = (
        "import torch\n"
        "from kernels_hub.repository.bundled import bundled_folder, source_variant\n"
        "from kernels_hub.repository.load import import_kernel\n"
        "from tests.layers.attention_cases import CASES, EMPTY, check_backward, check_forward, make\n"
        "package = import_kernel(source_variant(bundled_folder() / 'attention', 'cpu'))\n"
        "for case in (*CASES, *EMPTY):\n"
        "    for dtype in (torch.float32, torch.bfloat16):\n"
        "        check_forward(package.attention, make(case, dtype))\n"
        "        check_backward(package.attention, make(case, dtype))\n"
    )
    environment = {
        **os.environ,
        "KERNELS_HUB_CXX": "none",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p) + os.pathsep + os.getcwd(),
    }
    done = run_script(code, env=environment)
    assert done.returncode == 0, done.stderr
    assert "no C++ compiler" in done.stderr
