"""The Triton variant of `layers/convolution`, against torch.nn in float64."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.models.resnet.modeling_resnet import ResNetBottleNeckLayer

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.combinations import every_pair, every_value
from tests.layers.checked_operators import opcheck
from tests.layers.convolution_cases import CASES, LAYOUTS, Case
from tests.tolerances import assert_close

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / "convolution", "cuda"))


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """No TF32, whose error is not float32's."""
    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    yield
    torch.backends.cudnn.conv.fp32_precision = before


def double(*tensors):
    return [None if tensor is None else tensor.double() for tensor in tensors]


@every_value(name=CASES, layout=["contiguous", "channels last", "transposed"], dtype=DTYPES)
def test_conv2d(package, device, name, layout, dtype):
    case = CASES[name]
    x, weight, bias = case.tensors(dtype, device, bias=name != "3x3")
    x = LAYOUTS[layout](x)
    result = package.conv2d(x, weight, bias, *case.geometry)
    assert result.dtype is dtype
    assert result.stride() == F.conv2d(x, weight, bias, *case.geometry).stride()
    assert_close(result, F.conv2d(*double(x, weight, bias), *case.geometry))


NORMED = {
    "everything": (True, True, True), "no sum, not affine": (False, True, False), "no relu": (True, False, True),
}  # fmt: skip
"""adds, relu, affine"""


@every_pair(name=["3x3", "depthwise", "1x1"], normed=NORMED, dtype=DTYPES)
def test_conv_norm(package, device, name, normed, dtype):
    case, (adds, relu, affine) = CASES[name], NORMED[normed]
    x, weight, bias = case.tensors(dtype, device, bias=adds)
    scale, shift, mean, variance = case.norm(torch.float32, device)
    if not affine:
        scale = shift = None
    reference = F.conv2d(*double(x, weight, bias), *case.geometry)
    residual = torch.randn(reference.shape).to(device, dtype) if adds else None
    result = package.conv_norm(
        x, weight, bias, scale, shift, mean, variance, residual, 1e-5, *case.geometry, relu
    )
    reference = F.batch_norm(reference, *double(mean, variance, scale, shift), False, 0.0, 1e-5)
    reference = reference + residual.double() if adds else reference
    assert result.dtype is dtype
    assert_close(result, reference.relu() if relu else reference)


def test_not_a_number_passes_relu(package, device):
    case = CASES["1x1"]
    x, weight, _ = case.tensors(torch.float32, device)
    x[0, 3, 2, 2] = torch.nan
    result = package.conv_norm(
        x, weight, None, *case.norm(torch.float32, device), None, 1e-5, *case.geometry, True
    )
    assert result[0, :, 2, 2].isnan().all() and result[1].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "arguments", [{}, {"groups": 4, "stride": 2, "bias": False}, {"padding": "same", "kernel_size": 2}]
)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
def test_layer_forward_and_backward(package, device, arguments, dtype):
    torch.manual_seed(0)
    module = nn.Conv2d(**{"in_channels": 8, "out_channels": 12, "kernel_size": 3} | arguments).to(
        device, dtype
    )
    x = torch.randn(2, 8, 6, 7).to(device, dtype).requires_grad_()
    wide, y = copy.deepcopy(module).double(), x.detach().double().requires_grad_()
    result, reference = package.layers.Conv2d.forward(module, x), wide(y)
    assert "conv2d" in result.grad_fn.name()
    assert_close(result, reference)
    gradient = torch.randn(result.shape).to(device, dtype)
    result.backward(gradient)
    reference.backward(gradient.double())
    assert_close(x.grad, y.grad)
    for ours, theirs in zip(module.parameters(), wide.parameters(), strict=True):
        assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bottleneck(package, device, dtype):
    torch.manual_seed(0)
    module = ResNetBottleNeckLayer(16, 32, stride=2).to(device, dtype).eval()
    x = torch.randn(1, 16, 6, 5).to(device, dtype)
    reference = copy.deepcopy(module).double()(x.double())
    module.forward = functools.partial(package.layers.ResNetBottleneck.forward, module)
    with torch.no_grad():
        assert_close(module(x), reference, factor=2)  # up to four roundings in a row


def test_strided_parameters(package, device):
    case = CASES["groups"]
    x, weight, bias = case.tensors(torch.float32, device)
    expected = F.conv2d(*double(x, weight, bias), *case.geometry)
    strided = torch.stack([bias, bias + 1], dim=1)[:, 0]
    assert_close(package.conv2d(x, weight, strided, *case.geometry), expected)
    norm = [torch.stack([t, t + 1], dim=1)[:, 0] for t in case.norm(torch.float32, device)]
    result = package.conv_norm(x, weight, strided, *norm, None, 1e-5, *case.geometry, False)
    scale, shift, mean, variance = double(*norm)
    assert_close(result, F.batch_norm(expected, mean, variance, scale, shift, False, 0.0, 1e-5))


def test_wide_offsets(package, device, monkeypatch):
    """The 64-bit path gives the same numbers; tensors that need it are too large for a test."""
    kernels, launched = package.kernels, []
    case = CASES["groups"]
    x, weight, bias = case.tensors(torch.float32, device)
    expected = package.conv2d(x, weight, bias, *case.geometry)

    class Wide:
        def __getitem__(self, grid):
            def launch(*arguments, **constexprs):
                launched.append(grid)
                return kernel[grid](*arguments, **constexprs | {"WIDE": True})

            return launch

    kernel = kernels.convolution_kernel
    monkeypatch.setattr(kernels, "convolution_kernel", Wide())
    assert torch.equal(package.conv2d(x, weight, bias, *case.geometry), expected)
    assert launched


def test_opcheck(package, device):
    case = CASES["groups"]
    x, weight, bias = case.tensors(torch.float32, device)
    opcheck(package.conv2d, (x.requires_grad_(), weight.requires_grad_(), bias, *case.geometry))
    x, weight = x.detach(), weight.detach()
    arguments = (x, weight, bias, *case.norm(torch.float32, device), None, 1e-5, *case.geometry, True)
    opcheck(package.conv_norm, arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "case",
    [
        Case((8, 64, 56, 56), 64, (3, 3), (1, 1), (1, 1)),
        Case((8, 256, 56, 56), 512, (1, 1), (2, 2)),
        Case((2, 3, 224, 224), 64, (7, 7), (2, 2), (3, 3)),
        Case((8, 512, 7, 7), 512, (3, 3), (1, 1), (1, 1)),
        Case((4, 96, 56, 56), 96, (7, 7), (1, 1), (3, 3), (1, 1), 96),
    ],
    ids=str,
)
def test_large(package, device, case, dtype):
    x, weight, bias = case.tensors(dtype, device)
    assert_close(
        package.conv2d(x, weight, bias, *case.geometry), F.conv2d(*double(x, weight, bias), *case.geometry)
    )
