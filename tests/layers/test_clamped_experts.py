"""The CPU variant of GPT-OSS's experts in `layers/moe`, against the definition in float64."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.layers.checked_operators import opcheck
from tests.layers.clamped_experts_cases import ALPHA, LIMIT, SHAPES, Case, check_forward, exact, make, run
from tests.tolerances import assert_close
from tests.warm_process import run_script

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / "moe", "cpu"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("absent", [False, True])
def test_forward(package: ModuleType, dtype: torch.dtype, shape: tuple[int, ...], absent: bool) -> None:
    check_forward(package, make(shape, dtype, absent=absent))


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 40),
    experts=st.integers(1, 6),
    picked=st.integers(1, 6),
    width=st.integers(1, 140),
    inner=st.integers(1, 140),
    dtype=st.sampled_from(DTYPES),
    absent=st.booleans(),
)
def test_random_shapes(
    tokens: int, experts: int, picked: int, width: int, inner: int, dtype: torch.dtype, absent: bool
) -> None:
    package = import_kernel(source_variant(bundled_folder() / "moe", "cpu"))
    check_forward(package, make((tokens, experts, min(picked, experts), width, inner), dtype, absent=absent))


def test_the_comparison_sees_a_missing_clamp(package: ModuleType) -> None:
    case = make(SHAPES[2], torch.float32)

    class Wrong:
        @staticmethod
        def clamped_experts(*operands: Tensor, alpha: float, limit: float) -> Tensor:
            return package.clamped_experts(*operands, alpha=alpha, limit=7.0)  # type: ignore[no-any-return]

    with pytest.raises(AssertionError, match="relative error"):
        check_forward(Wrong, case)


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]])
def test_strided_operands_and_no_tokens(package: ModuleType, shape: tuple[int, ...]) -> None:
    """Few tokens an expert go to loops, which copy; many to torch.addmm, which rounds by layout as BLAS likes."""
    case = make(shape, torch.float32)
    strided = case._replace(
        x=torch.stack([case.x, case.x], 2)[..., 0],
        gate_up=case.gate_up.transpose(1, 2).contiguous().transpose(1, 2),
        index=case.index.t().contiguous().t(),
    )
    assert not strided.gate_up.is_contiguous()
    check_forward(package, strided)
    if shape == SHAPES[0]:
        assert torch.equal(run(package, strided), run(package, case))
    empty = case._replace(x=case.x[:0], index=case.index[:0], weight=case.weight[:0])
    assert run(package, empty).shape == (0, shape[3])


@pytest.mark.parametrize("shape", [(6, 2, 1, 40, 16), (60, 2, 1, 40, 16)])
def test_special_values(package: ModuleType, shape: tuple[int, ...]) -> None:
    case = make(shape, torch.float32)
    case.x[1, 3] = float("nan")
    found = run(package, case)
    assert found[1].isnan().all()
    assert found[[0, 2, 3, 4, 5]].isfinite().all()


@pytest.mark.parametrize(
    ("tokens", "dtype", "has_tiles", "is_product"),
    [
        (7, torch.float32, False, False),
        (7, torch.float32, True, True),
        (17, torch.float32, False, True),
        (24, torch.bfloat16, True, False),
        (25, torch.bfloat16, False, True),
    ],
)
def test_few_tokens_an_expert_run_in_one_kernel(
    package: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tokens: int,
    dtype: torch.dtype,
    has_tiles: bool,
    is_product: bool,
) -> None:
    kernels = sys.modules[package.__name__ + ".kernels"]
    monkeypatch.setattr(kernels, "has_tiles", lambda: has_tiles)
    ran: list[str] = []
    products = kernels._clamped_by_products
    monkeypatch.setattr(
        kernels, "_clamped_by_products", lambda *operands: (ran.append("products"), products(*operands))[1]
    )
    check_forward(package, make((tokens, 4, 4, 32, 64), dtype))
    assert bool(ran) is is_product


def test_products_that_are_loops_never_run(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's products of float16, where oneDNN has none for the processor."""
    kernels = sys.modules[package.__name__ + ".kernels"]
    monkeypatch.setattr(kernels, "has_half", lambda: False)
    monkeypatch.setattr(kernels, "has_vectors", lambda: True)
    monkeypatch.setattr(kernels, "_clamped_by_products", None)
    check_forward(package, make((90, 2, 2, 33, 40), torch.float16))


def test_gradients_are_the_formulas(package: ModuleType) -> None:
    ours, theirs = (
        make(SHAPES[1], torch.float32, absent=True).gradients_wanted(),
        make(SHAPES[1], torch.float32, absent=True).double().gradients_wanted(),
    )
    run(package, ours).square().sum().backward()
    exact(theirs).square().sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        if one.requires_grad:
            assert_close(one.grad, other.grad, factor=4)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": torch.zeros(5, 8)}, ValueError, r"expected x \(T, H\), gate_up \(E, H, 2 I\)"),
        ({"down_bias": torch.zeros(3, 8)}, ValueError, r"down_bias \(E, H\)"),
        ({"index": torch.zeros(5, 1)}, ValueError, r"expected index \(5, k\) int64 and weight of its shape"),
        ({"x": torch.zeros(5, 7).half()}, ValueError, "expected operands of one dtype"),
        ({"index": torch.full((5, 1), 4)}, IndexError, r"expected experts in \[0, 3\], got 4"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(
    package: ModuleType, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(package, make(SHAPES[1], torch.float32)._replace(**change))


def test_compiles_whole_and_is_well_formed(package: ModuleType) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(package.clamped_experts, fullgraph=True, backend="aot_eager")
    check_forward(type("Compiled", (), {"clamped_experts": compiled}), make(SHAPES[2], torch.float32))
    operators = sys.modules[f"{package.__name__}.operators"]
    opcheck(operators.clamped_experts, (*make(SHAPES[1], torch.bfloat16), ALPHA, LIMIT))


def test_without_a_compiler_the_reference_runs() -> None:
    code = (
        "import torch; from kernels_hub.repository.bundled import bundled_folder, source_variant\n"
        "from kernels_hub.repository.load import import_kernel\n"
        "from tests.layers.clamped_experts_cases import SHAPES, check_forward, make\n"
        "p = import_kernel(source_variant(bundled_folder() / 'moe', 'cpu'))\n"
        "check_forward(p, make(SHAPES[2], torch.float32, absent=True))\n"
        "print('same')"
    )
    done = run_script(code, env={**os.environ, "KERNELS_HUB_CXX": "none"})
    assert done.stdout == "same\n", done.stderr


def test_layer_under_autocast(package: ModuleType) -> None:
    case: Case = make(SHAPES[2], torch.float32)
    module = nn.Module()
    for name in ("gate_up", "gate_up_bias", "down", "down_bias"):
        setattr(
            module, name.replace("gate_up", "gate_up_proj").replace("down", "down_proj"), getattr(case, name)
        )
    module.alpha, module.limit = ALPHA, LIMIT  # type: ignore[assignment]
    forward = package.layers.ClampedExperts.forward
    expected = forward(module, case.x, case.index, case.weight)
    assert torch.equal(expected, run(package, case))
    with torch.autocast("cpu", torch.bfloat16):
        found = forward(module, case.x, case.index, case.weight)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=5e-2, atol=5e-2)
