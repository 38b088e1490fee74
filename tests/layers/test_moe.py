"""The CPU variant of `layers/moe`, against the definition in float64."""

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
from tests.layers.moe_cases import (
    ACTIVATIONS,
    DTYPES,
    SHAPES,
    check_backward,
    check_forward,
    check_router,
    distinct_logits,
    make,
)
from tests.warm_process import run_script


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / "moe", "cpu"))


# -- experts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("absent", [False, True])
def test_forward(package: ModuleType, dtype: torch.dtype, shape: tuple[int, ...], absent: bool) -> None:
    check_forward(package, make(shape, dtype, absent=absent))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES[1:4])
@pytest.mark.parametrize("absent", [False, True])
def test_backward(package: ModuleType, dtype: torch.dtype, shape: tuple[int, ...], absent: bool) -> None:
    check_backward(package, make(shape, dtype, absent=absent))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(package: ModuleType, activation: str) -> None:
    case = make(SHAPES[2], torch.float32)
    check_forward(package, case, activation)
    check_backward(package, case, activation)


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_tokens_an_expert_take_grouped_products(package: ModuleType, dtype: torch.dtype) -> None:
    check_forward(package, make((300, 2, 1, 16, 24), dtype, absent=True))


def test_the_comparison_sees_a_wrong_weight(package: ModuleType) -> None:
    case = make(SHAPES[2], torch.float32)

    class Wrong:
        @staticmethod
        def gated_experts(*operands: Tensor, activation: str) -> Tensor:
            *rest, weight = operands
            return package.gated_experts(*rest, weight.flip(1), activation=activation)  # type: ignore[no-any-return]

    with pytest.raises(AssertionError, match="relative error"):
        check_forward(Wrong, case)  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 20),
    experts=st.integers(1, 6),
    picked=st.integers(1, 6),
    width=st.integers(1, 70),
    inner=st.integers(1, 70),
    dtype=st.sampled_from(DTYPES),
    absent=st.booleans(),
)
def test_random_shapes(
    tokens: int, experts: int, picked: int, width: int, inner: int, dtype: torch.dtype, absent: bool
) -> None:
    package = import_kernel(source_variant(bundled_folder() / "moe", "cpu"))
    check_forward(package, make((tokens, experts, min(picked, experts), width, inner), dtype, absent=absent))


def test_one_expert_twice_and_strided_operands(package: ModuleType) -> None:
    case = make(SHAPES[2], torch.float32)
    twice = case._replace(index=torch.zeros_like(case.index))
    check_forward(package, twice)
    wide = case._replace(
        x=torch.stack([case.x, case.x], 2)[..., 0],
        gate_up=case.gate_up.transpose(1, 2).contiguous().transpose(1, 2),
        index=case.index.t().contiguous().t(),
    )
    assert torch.equal(package.gated_experts(*wide), package.gated_experts(*case))


def test_no_tokens(package: ModuleType) -> None:
    case = make(SHAPES[0], torch.float32)
    empty = case._replace(x=case.x[:0], index=case.index[:0], weight=case.weight[:0])
    assert package.gated_experts(*empty).shape == (0, 32)
    out = package.gated_experts(*empty.gradients_wanted())
    out.sum().backward()


def test_special_values(package: ModuleType) -> None:
    case = make((6, 2, 1, 40, 16), torch.float32)
    case.x[1, 3], case.x[2, 0] = float("nan"), float("inf")
    found = package.gated_experts(*case)
    assert found[1].isnan().all()
    assert not found[2].isfinite().any()
    assert found[[0, 3, 4, 5]].isfinite().all()


def test_gradcheck_and_second_order(package: ModuleType) -> None:
    case = make((4, 3, 2, 3, 2), torch.float64).gradients_wanted()
    for absent in (False, True):
        index = case.index.clone()
        index[0, 0] = 3 if absent else index[0, 0]

        def experts(
            x: Tensor, gate_up: Tensor, down: Tensor, weight: Tensor, index: Tensor = index
        ) -> Tensor:
            return package.gated_experts(x, gate_up, down, index, weight)  # type: ignore[no-any-return]

        assert torch.autograd.gradcheck(experts, (case.x, case.gate_up, case.down, case.weight))
    assert torch.autograd.gradgradcheck(experts, (case.x, case.gate_up, case.down, case.weight))


@pytest.mark.parametrize("wanted", [0, 1, 2, 4])
def test_only_one_operand_requires_a_gradient(package: ModuleType, wanted: int) -> None:
    case = make(SHAPES[1], torch.float32)
    operands = [t.detach().clone() for t in case]
    operands[wanted].requires_grad_()
    package.gated_experts(*operands).sum().backward()
    every = case.gradients_wanted()
    package.gated_experts(*every).sum().backward()
    torch.testing.assert_close(operands[wanted].grad, every[wanted].grad)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"activation": "tanh"}, ValueError, "unknown activation 'tanh'; known: none, relu"),
        (
            {"x": torch.zeros(5, 8)},
            ValueError,
            r"expected x \(T, H\), gate_up \(E, 2 I, H\) and down \(E, H, I\)",
        ),
        ({"index": torch.zeros(5, 1)}, ValueError, r"expected index \(5, k\) int64 and weight of its shape"),
        ({"weight": torch.zeros(5, 2)}, ValueError, r"expected index \(5, k\) int64 and weight of its shape"),
        (
            {"down": torch.zeros(3, 7, 9).half()},
            ValueError,
            "expected operands of one dtype, got torch.float32",
        ),
        ({"index": torch.full((5, 1), 4)}, IndexError, r"expected experts in \[0, 3\], got 4"),
        ({"index": torch.full((5, 1), -1)}, IndexError, r"expected experts in \[0, 3\], got -1"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(
    package: ModuleType, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    case = make(SHAPES[1], torch.float32)._asdict()
    with pytest.raises(error, match=message):
        package.gated_experts(**case | change)


def test_an_expert_out_of_range_in_training(package: ModuleType) -> None:
    case = make(SHAPES[1], torch.float32).gradients_wanted()
    with pytest.raises(IndexError, match=r"expected experts in \[0, 3\]"):
        package.gated_experts(*case._replace(index=torch.full((5, 1), 7)))


# -- router --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "experts", "k"), [(1, 1, 1), (7, 4, 2), (50, 60, 8), (3, 64, 64)])
@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("rounded", [False, True])
def test_router(
    package: ModuleType,
    dtype: torch.dtype,
    rows: int,
    experts: int,
    k: int,
    renormalise: bool,
    rounded: bool,
) -> None:
    check_router(package, distinct_logits(rows, experts, dtype), k, renormalise, rounded)


def test_router_takes_the_first_of_equals_and_any_layout(package: ModuleType) -> None:
    assert package.top_k_softmax(torch.zeros(2, 5), 3)[1].tolist() == [[0, 1, 2]] * 2
    logits = distinct_logits(6, 10, torch.float32)
    deep = package.top_k_softmax(logits.view(2, 3, 10), 2)
    assert deep[0].shape == (2, 3, 2)
    strided = package.top_k_softmax(logits.t().contiguous().t(), 2)
    assert torch.equal(strided[1], deep[1].view(6, 2))
    with pytest.raises(ValueError, match=r"expected k in \[1, 10\], got 11"):
        package.top_k_softmax(logits, 11)


def test_router_of_nan_and_infinity(package: ModuleType) -> None:
    nan, infinity = float("nan"), float("inf")
    logits = torch.tensor([[0.0, nan, 1.0], [0.0, -infinity, 1.0], [infinity, 0.0, 1.0]])
    score, index = package.top_k_softmax(logits, 2)
    assert score[0].isnan().all() and score[2].isnan().any()
    assert index[1].tolist() == [2, 0]
    assert ((index >= 0) & (index < 3)).all()


def test_router_in_training_is_the_formula(package: ModuleType) -> None:
    logits = distinct_logits(4, 5, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: package.top_k_softmax(x, 2)[0], (logits,))


# -- torch.compile, operators --------------------------------------------------------------------


def test_compiles_whole(package: ModuleType) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(package.gated_experts, fullgraph=True, backend="aot_eager")
    holder: Any = type("Compiled", (), {"gated_experts": compiled})
    case = make(SHAPES[2], torch.float32)
    check_forward(holder, case)
    check_backward(holder, case)


def test_operators_are_well_formed(package: ModuleType) -> None:
    operators = sys.modules[f"{package.__name__}.operators"]
    case = make(SHAPES[1], torch.bfloat16)
    opcheck(operators.gated_experts, (*case, "silu"))
    opcheck(operators.gated_experts_with_gradient, (*case.gradients_wanted(), "silu"))
    opcheck(operators.top_k_softmax, (distinct_logits(3, 5, torch.float32), 2, True, False))


def test_without_a_compiler_the_reference_runs() -> None:
    code = (
        "import torch; from kernels_hub.repository.bundled import bundled_folder, source_variant\n"
        "from kernels_hub.repository.load import import_kernel\n"
        "from tests.layers.moe_cases import SHAPES, check_backward, check_forward, check_router, distinct_logits, make\n"
        "p = import_kernel(source_variant(bundled_folder() / 'moe', 'cpu'))\n"
        "case = make(SHAPES[2], torch.float32)\n"
        "check_forward(p, case); check_backward(p, case); check_router(p, distinct_logits(4, 8, torch.float32), 2)\n"
        "print('same')"
    )
    environment = {**os.environ, "KERNELS_HUB_CXX": "none"}
    done = run_script(code, env=environment)
    assert done.stdout == "same\n", done.stderr
    assert "is off, its PyTorch reference runs instead" in done.stderr


# -- the layers ----------------------------------------------------------------------------------


class Experts(nn.Module):
    """What the layer reads, without transformers' decorator."""

    def __init__(self) -> None:
        super().__init__()
        case = make(SHAPES[2], torch.float32)
        self.gate_up_proj, self.down_proj = nn.Parameter(case.gate_up), nn.Parameter(case.down)
        self.act_fn: nn.Module = nn.SiLU()


def test_layer_under_autocast_is_a_linear_layers(package: ModuleType) -> None:
    case, module = make(SHAPES[2], torch.float32), Experts()
    forward = package.layers.GatedExperts.forward
    with torch.no_grad():
        expected = forward(module, case.x, case.index, case.weight)
        with torch.autocast("cpu", torch.bfloat16):
            found = forward(module, case.x, case.index, case.weight)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=5e-2, atol=5e-2)


def test_layer_calls_an_activation_that_was_exchanged(package: ModuleType) -> None:
    case, module = make(SHAPES[2], torch.float32), Experts()
    forward = package.layers.GatedExperts.forward
    seen: list[nn.Module] = []
    with torch.no_grad():
        expected = forward(module, case.x, case.index, case.weight)
        hook = module.act_fn.register_forward_hook(lambda module, args, out: seen.append(module))
        torch.testing.assert_close(forward(module, case.x, case.index, case.weight), expected)
        assert len(seen) == 8, "once an expert"
        hook.remove()
        module.act_fn = nn.Tanh()
        assert not torch.allclose(forward(module, case.x, case.index, case.weight), expected)
