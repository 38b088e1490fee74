"""The Triton variant of `layers/loss`, under the interpreter or on a GPU."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.combinations import every_pair
from tests.layers.loss_cases import DTYPES, FORMS, check_cross_entropy, check_linear, make, make_linear


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / "loss", "cuda"))


@every_pair(form=FORMS, shape=[(1, 2), (5, 7), (4, 5000)], dtype=DTYPES)
def test_cross_entropy(
    package: ModuleType, device: str, dtype: torch.dtype, shape: tuple[int, int], form: str
) -> None:
    logits, target = make(shape, dtype, device, FORMS[form].get("ignore_index", -100))
    check_cross_entropy(package, logits, target, "mean", FORMS[form])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("form", ["plain", "everything"])
def test_linear_cross_entropy(
    package: ModuleType, device: str, dtype: torch.dtype, reduction: str, form: str
) -> None:
    operands = make_linear(dtype, device, rows=11, ignored=FORMS[form].get("ignore_index", -100))
    check_linear(package.linear_cross_entropy, operands, reduction, FORMS[form], chunk_rows=4)


def test_strided_rows(package: ModuleType, device: str) -> None:
    logits, target = make((6, 40), torch.float32, device)
    wide = torch.cat([logits, logits], 1)[:, :40].requires_grad_()
    loss = package.cross_entropy(wide, target)
    expected = torch.nn.functional.cross_entropy(wide, target)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(x, wide)[0] for x in (loss, expected)))


def test_special_values_are_torchs(package: ModuleType, device: str) -> None:
    infinity, nan = float("inf"), float("nan")
    rows = [
        [1.0, 2.0, -infinity],
        [-infinity, 0.0, -infinity],
        [nan, 1.0, 2.0],
        [infinity, 1.0, 2.0],
        [-infinity, -infinity, -infinity],
        [1e4, -1e4, 0.0],
        [nan, nan, nan],
    ]
    logits, target = torch.tensor(rows, device=device), torch.tensor([2, 1, 1, 0, 1, 1, -100], device=device)
    found = package.cross_entropy(logits, target, reduction="none")
    expected = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_a_class_out_of_range_is_never_a_number(package: ModuleType, device: str) -> None:
    logits, target = (
        torch.randn(3, 7, device=device, requires_grad=True),
        torch.tensor([0, 7, 1], device=device),
    )
    losses = package.cross_entropy(logits, target, reduction="none")
    assert losses.isnan().tolist() == [False, True, False]
    losses.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isnan().all(1).tolist() == [False, True, False]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_large(package: ModuleType, device: str, dtype: torch.dtype) -> None:
    logits, target = make((512, 128256), dtype, device)
    check_cross_entropy(package, logits, target, "mean", {})
    operands = make_linear(dtype, device, rows=2048, width=512, classes=32000)
    check_linear(package.linear_cross_entropy, operands, "mean", {})
