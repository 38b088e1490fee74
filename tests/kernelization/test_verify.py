"""kernelize(verify=…): the kernel must agree with the original on what the layer really gets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub import LocalLayerRepository, Mode, VerificationError, kernelize, report, use_kernel_mapping
from kernels_hub.kernelization.verify import difference
from tests.kernelization.conftest import same_class
from tests.kernelization.test_apply import Shifting

X = torch.linspace(1, 2, 8)
Make = Callable[..., Path]

# Wrong only on inputs above 1.5: a check on other inputs than the real ones would miss it.
SOMETIMES = """
class L(nn.Module):
    def forward(self, x):
        return torch.where(x > 1.5, x + 1, x)
"""


def test_a_right_kernel_is_used(make_repository: Make) -> None:
    source = LocalLayerRepository(
        make_repository(
            "right", "class L(nn.Module):\n    def forward(self, x):\n        return x * 1.0000001\n"
        ),
        layer_name="L",
    )
    model = nn.Sequential(same_class()())
    with use_kernel_mapping({"Double": {"cpu": source}}):
        kernelize(model, mode=Mode.INFERENCE, device="cpu", verify=X)
    assert len(report(model).swapped) == 1


@pytest.mark.parametrize("inputs", [X, (X,), {"input": X}])
def test_a_wrong_kernel_is_not(make_repository: Make, inputs: Any) -> None:
    source = LocalLayerRepository(make_repository("wrong", SOMETIMES), layer_name="L")
    model = nn.Sequential(nn.Identity(), same_class()())
    with use_kernel_mapping({"Double": {"cpu": source}}):
        kernelize(model, mode=Mode.INFERENCE, device="cpu", verify=X / 2)
        assert len(report(model).swapped) == 1, "on these inputs both agree"
        kernelize(model, mode=Mode.INFERENCE, device="cpu", verify=inputs)
        row = report(model).rows[2]
        assert not row.swapped and (row.reason or "").startswith("verify: relative error")
        with pytest.raises(VerificationError, match="'?1"):
            kernelize(model, mode=Mode.INFERENCE, device="cpu", verify=inputs, use_fallback=False)
    assert torch.equal(model(X), X)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise RuntimeError('boom')", "raised RuntimeError: boom"),
        ("return x.double()", "float64 tensor"),
        ("return x[:-1]", "shape"),
        ("return (x,)", "returns"),
        ("return x / 0", "NaN or infinity"),
        ("return x.add_(1)", "relative error"),
    ],
)
def test_every_kind_of_disagreement(make_repository: Make, body: str, message: str) -> None:
    source = LocalLayerRepository(
        make_repository("odd", f"class L(nn.Module):\n    def forward(self, x):\n        {body}\n"),
        layer_name="L",
    )
    model = nn.Sequential(same_class()())
    inputs = X.clone()
    with use_kernel_mapping({"Double": {"cpu": source}}):
        kernelize(model, mode=Mode.INFERENCE, device="cpu", verify=inputs)
    assert message in (report(model).rows[1].reason or "")
    assert torch.equal(inputs, X), "the kernel worked on copies"


def test_functions_are_verified(make_repository: Make) -> None:
    layer = "class shift(nn.Module):\n    def forward(self, x, by=1.0):\n        return x + {}\n"
    right = LocalLayerRepository(make_repository("rightshift", layer.format("by")), layer_name="shift")
    wrong = LocalLayerRepository(make_repository("wrongshift", layer.format("2 * by")), layer_name="shift")
    for source, swapped in ((right, True), (wrong, False)):
        model = nn.Sequential(Shifting())
        with use_kernel_mapping({"shift": {"cpu": source}}):
            kernelize(model, mode=Mode.INFERENCE, device="cpu", verify=X)
        assert next(row for row in report(model) if row.layer_name).swapped is swapped
        assert torch.equal(model(X), X + 2)


def test_random_layers_and_buffers(make_repository: Make) -> None:
    source = LocalLayerRepository(
        make_repository(
            "drop", "class L(nn.Module):\n    def forward(self, x):\n        return x * torch.rand_like(x)\n"
        ),
        layer_name="L",
    )

    class Random(nn.Module):
        kernel_layer_name = "Double"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.rand_like(x)

    model = nn.Sequential(Random(), nn.Unflatten(0, (4, 2)), nn.BatchNorm1d(2))
    mean = model[2].running_mean.clone()
    with use_kernel_mapping({"Double": {"cpu": source}}):
        kernelize(model, mode=Mode.TRAINING, verify=X)
    assert len(report(model).swapped) == 1, "both draw the same numbers"
    assert torch.equal(model[2].running_mean, mean) and int(model[2].num_batches_tracked) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_wrong_element_is_not_lost_among_many(dtype: torch.dtype) -> None:
    """The norm of a million numbers does not see one that is off by a hundredth, or a row that is."""
    original = torch.linspace(1, 2, 1 << 16).repeat(16, 1).to(dtype)
    kernel = original.clone()
    kernel[7, 77] *= 1.0 + {torch.bfloat16: 0.5, torch.float64: 5e-9}.get(dtype, 1e-3)
    assert "element [7, 77]" in str(difference(kernel, original))
    small = original.clone()
    small[3] = 1e-12
    wrong = small.clone()
    wrong[3] *= 2
    assert "element [3, " in str(difference(wrong, small))
    rounded = (original.double() * (1 + torch.finfo(dtype).eps * torch.randn(original.shape))).to(dtype)
    assert difference(rounded, original) is None


def test_difference_accepts_equal_and_rejects_wrong() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert difference((X, {"a": nan, "b": 3}), (X.clone(), {"a": nan.clone(), "b": 3})) is None
    assert difference({"b": 3}, {"b": 4}) is not None
    assert difference(torch.tensor([1]), torch.tensor([2])) is not None
    assert difference(nan, torch.tensor([1.0, 1.0])) is not None
    assert difference(torch.tensor([float("inf")]), torch.tensor([float("-inf")])) is not None
    assert difference(X.bfloat16() * 1.01, X.bfloat16()) is None
    assert difference(X * 1.01, X) is not None
