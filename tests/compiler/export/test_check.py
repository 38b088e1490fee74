"""When a result is close enough to be published: `compiler/export/check.py`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels_hub import get_local_kernel
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.export.check import _compared
from kernels_hub.compiler.export.emit_layer import emit_layer
from kernels_hub.numerics import tolerance
from tests.compiler.export.emitted_layers import write_onnx

TRUTH = torch.linspace(-1, 1, 101)


def compared(ours: torch.Tensor, theirs: torch.Tensor, truth: Any = TRUTH) -> float:
    return _compared((ours,), (theirs,), "Layer", {"n": 101}, "the original module", lambda: truth)


def off(error: float, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """The truth but for one element."""
    result = TRUTH.clone()
    result[50] += error
    return result.to(dtype)


def test_within_the_tolerance_nothing_else_is_asked() -> None:
    def unwanted() -> None:
        raise AssertionError

    error = _compared((off(0.03),), (off(0.0),), "Layer", {}, "the original module", unwanted)
    assert error == pytest.approx(0.03, rel=0.02)


def test_as_exact_as_an_original_that_errs() -> None:
    assert compared(off(-0.05), off(0.08)) == pytest.approx(0.13, rel=0.02)
    assert compared(off(0.02), off(0.12)) == pytest.approx(0.1, rel=0.02)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (off(0.12), off(0.05)),  # less exact than the original
        (off(0.2), off(0.3)),  # no matter how much that errs
        (off(0.2), off(torch.inf)),
        (off(torch.nan), off(0.1)),
        (off(0.1, torch.float32), off(0.2, torch.float32)),  # rounding is no reason there
    ],
)
def test_refused(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert 4 * tolerance("bfloat16").layer < 0.2
    with pytest.raises(EngineError, match=r"differs from the original module by .* a defect of the compiler"):
        compared(ours, theirs)


def test_a_wide_result_of_what_is_rounded_may_err_as_much() -> None:
    """Such as a state in float32 that a model in bfloat16 keeps."""

    def state(ours: float, theirs: float) -> float:
        pair = (off(ours, torch.float32),), (off(theirs, torch.float32),)
        rounding = tolerance("bfloat16").layer
        return _compared(*pair, "Layer", {}, "the original module", lambda: TRUTH, rounding=rounding)

    assert state(0.02, -0.01) == pytest.approx(0.03, rel=0.02)
    for ours, theirs in ((0.02, 0.0), (0.1, 0.02), (torch.nan, 0.02)):  # the original does not err, or less
        with pytest.raises(EngineError, match="differs from the original module"):
            state(ours, theirs)


def test_refused_where_the_original_does_not_run_in_float32() -> None:
    with pytest.raises(EngineError, match="differs from the original module"):
        compared(off(-0.05), off(0.08), truth=None)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_calls_of_a_layer_of_the_same_bytes_are_not_its_own(tmp_path: Path) -> None:
    """What is loaded is known by its digest: the second emission finds the layer that was called before."""
    write_onnx(path := tmp_path / "encoder.onnx")
    for name in ("first", "second"):
        emit_layer(path, layer_name="Encoder", out=tmp_path / name, benchmark=False, training=False)
        layer = get_local_kernel(tmp_path / name, backend="cpu").program.LAYER
        layer.fallbacks["dtype int32"] = "input_ids is int32, it was compiled for int64"
    assert "dtype int32" in layer.fallbacks
