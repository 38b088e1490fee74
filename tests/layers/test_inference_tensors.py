"""Layers in training on inputs that were made in inference mode, such as features of a frozen model."""

from __future__ import annotations

import shutil
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.tolerances import assert_close

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

WIDTH = 64


def package(name: str) -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / name, "cpu"))


def made_in_inference_mode(rows: int = 5) -> Tensor:
    with torch.inference_mode():
        return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(1))


def of_weight(result: Tensor, weight: Tensor) -> Tensor:
    """The gradient of a weight."""
    return torch.autograd.grad(result.square().sum(), weight)[0]


def test_gradients_of_norms() -> None:
    norms, x = package("normalization"), made_in_inference_mode()
    weight = torch.rand(WIDTH, requires_grad=True)
    expected = of_weight(weight * F.rms_norm(x.clone(), (WIDTH,), eps=1e-6), weight)
    assert_close(of_weight(norms.rms_norm(x, weight, 1e-6), weight), expected, factor=4)
    gate = x.clone().requires_grad_()
    expected = of_weight(weight * F.rms_norm(x.clone(), (WIDTH,), eps=1e-6) * F.silu(gate), weight)
    assert_close(of_weight(norms.rms_norm_gated(x, gate, weight, 1e-6), weight), expected, factor=4)


def test_gradients_of_gates() -> None:
    activations, gate = package("activation"), made_in_inference_mode(512)
    up = torch.ones_like(gate, requires_grad=True)
    assert up.numel() >= 16_384  # below, PyTorch's own operators run
    expected = of_weight(F.silu(gate.clone()) * up, up)
    assert_close(of_weight(activations.activation_mul(gate, up, "silu"), up), expected, factor=4)
