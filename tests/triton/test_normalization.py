"""The Triton variant of `layers/normalization`, against the modules that it replaces, in float64."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.combinations import every_value
from tests.layers.normalization_cases import CASES, DTYPES, call, check, make
from tests.tolerances import assert_close

SHAPES = ((3, 38), (2, 3, 130), (0, 4), (40, 16))


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / "normalization", "cuda"))


@pytest.fixture
def kernels(package: ModuleType) -> ModuleType:
    return sys.modules[f"{package.__name__}.kernels"]


@every_value(case=CASES, shape=SHAPES, dtype=DTYPES)
def test_forward_and_backward(package, device, case, shape, dtype):
    check(package, case, *make(case, shape, dtype, device))


@every_value(case=[case for case in CASES if "Gated" not in case], dtype=(torch.float32, torch.bfloat16))
def test_long_rows(package, kernels, device, case, dtype, monkeypatch):
    """Rows beyond the registers, at a size that the interpreter can take."""
    for name, value in {"FORWARD_WIDTH": 0, "BACKWARD_WIDTH": 0, "LOOP_BLOCK": 16, "COLUMNS": 16}.items():
        monkeypatch.setattr(kernels, name, value)
    check(package, case, *make(case, (5, 35), dtype, device))


@pytest.mark.parametrize("case", ("RMSNormGated", "MambaRMSNormGated-groups"))
def test_long_gated_rows_run_in_pytorch(package, kernels, device, case, monkeypatch):
    for name in ("GATED_WIDTH", "GATED_BACKWARD_WIDTH"):
        monkeypatch.setattr(kernels, name, 8)
    check(package, case, *make(case, (3, 38), torch.float32, device))


@pytest.mark.parametrize(
    "case", ("RMSNorm", "LayerNorm", "AddRMSNorm", "RMSNormGated", "MambaRMSNormGated-groups")
)
def test_several_partial_sums(package, kernels, device, case, monkeypatch):
    """More programs than one for the parameters' gradients, each with tiles to loop over."""
    monkeypatch.setattr(kernels, "_processors", lambda device: 1)  # a GPU has programs for all of these rows
    check(package, case, *make(case, (900, 16), torch.float32, device))


@pytest.mark.parametrize("case", ("RMSNorm", "LayerNorm", "AddRMSNorm", "RMSNormGated"))
def test_layouts(package, device, case):
    module, inputs = make(case, (4, 3, 40), torch.float32, device)
    for view in (
        lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        lambda x: torch.cat([x, x], dim=-1)[..., :40],
        lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
        lambda x: x[:, :1].expand(x.shape),
    ):
        check(package, case, module, [view(input) for input in inputs])


# The interpreter truncates to bfloat16, where hardware rounds.
@pytest.mark.parametrize(
    "dtype", (pytest.param(torch.bfloat16, marks=pytest.mark.gpu), torch.float16), ids=str
)
@pytest.mark.parametrize("case", CASES)
def test_rounds_where_the_original_rounds(package, device, case, dtype):
    module, inputs = make(case, (30, 64), dtype, device)
    with torch.no_grad():
        expected = module(*inputs)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for ours, theirs in zip(call(package, case, module, inputs), expected, strict=True):
            assert (ours == theirs).double().mean() > 0.98


def test_float32_weights(package, device):
    for case in CASES.keys() & {"RMSNorm", "RMSNormRoundedOnce", "LayerNorm", "MambaRMSNormGated"}:
        if case == "LayerNorm" and device == "cuda":
            continue  # which PyTorch's own refuses there
        module, _ = make(case, (5, 70), torch.float32, device)
        check(package, case, module, make(case, (5, 70), torch.bfloat16, device)[1])


def test_other_dtypes_run_in_pytorch(package, device):
    module, inputs = make("RMSNorm", (3, 38), torch.float64, device)
    weight = module.weight.detach()
    expected = weight * inputs[0] / (inputs[0].square().mean(-1, keepdim=True) + 1e-6).sqrt()
    assert_close(call(package, "RMSNorm", module, inputs)[0], expected)


@pytest.mark.gpu
def test_autocast_runs_layer_norm_in_float32(package, device):
    module, inputs = make("LayerNorm", (3, 38), torch.float32, device)
    inputs = [input.bfloat16() for input in inputs]
    with torch.autocast("cuda", dtype=torch.bfloat16):
        (ours,), theirs = call(package, "LayerNorm", module, inputs), module(*inputs)
    assert ours.dtype == theirs.dtype == torch.float32
    torch.testing.assert_close(ours, theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", ((4096, 4096), (3, 777, 5120), (16, 24, 513, 128), (70, 20000)), ids=str)
@pytest.mark.parametrize("case", CASES)
def test_large(package, device, case, shape, dtype):
    check(package, case, *make(case, shape, dtype, device))


@pytest.mark.gpu
def test_more_elements_than_32_bits_count(package, device):
    x = torch.ones(2**20 + 3, 2048, dtype=torch.bfloat16, device=device)
    assert torch.equal(package.rms_norm(x, None)[-5:], torch.ones_like(x[-5:]))
