"""Exports of layers whose sizes stay open: no size that an export leaves open decides which code runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim
from transformers import Phi3Config
from transformers.models.phi3.modeling_phi3 import Phi3MLP

from kernels_hub import Mode, kernelize, report
from kernels_hub.calibration import database
from tests.tolerances import assert_close

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

MAKE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "SiLU": (nn.SiLU, (4, 256)),
    "GELU": (nn.GELU, (4, 256)),
    "Linear": (lambda: nn.Linear(256, 512), (4, 256)),
    "RMSNorm": (lambda: nn.RMSNorm(256), (4, 256)),
    "Conv2d": (lambda: nn.Conv2d(64, 128, 1), (2, 64, 8, 8)),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 2, 1), (2, 4, 9, 9)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), (2, 4, 9, 9)),
    "JoinedGatedMLP": (lambda: Phi3MLP(Phi3Config(hidden_size=256, intermediate_size=256)), (2, 4, 256)),
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", MAKE)
def test_an_export_holds_for_all_sizes(name: str, strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", database.IGNORE)
    make, shape = MAKE[name]
    layer = make().eval()
    original = nn.Sequential(layer)
    with torch.no_grad():
        expected = [original(torch.ones(rows, *shape[1:])) for rows in (3, 1000)]
        model = kernelize(original, mode=Mode.INFERENCE, wait=True)
        assert report(model).swapped
        sizes = {0: Dim("rows", max=1 << 20)}
        exported = torch.export.export(model, (torch.ones(shape),), dynamic_shapes=(sizes,), strict=strict)
        for rows, value in zip((3, 1000), expected, strict=True):
            assert_close(exported.module()(torch.ones(rows, *shape[1:])), value, factor=64)
