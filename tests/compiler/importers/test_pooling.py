"""Windows that are larger than the image: as much work as the image has, and PyTorch's numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernels_hub.compiler import compile
from kernels_hub.compiler.importers.torch_export import import_torch


@pytest.mark.parametrize(
    ("module", "pools"),
    [
        (nn.AvgPool2d(1280, ceil_mode=True), {}),
        (nn.AvgPool2d((5, 6)), {}),
        (nn.AvgPool2d(20, 12, padding=2, ceil_mode=True), {"avg_pool": [9, 10]}),
        (nn.MaxPool2d(1280, ceil_mode=True), {"max_pool": [5, 6]}),
        (nn.AvgPool2d((3, 1280), ceil_mode=True), {"avg_pool": [3, 6]}),
        (nn.AvgPool2d(2, ceil_mode=True), {"avg_pool": [2, 2]}),
    ],
    ids=str,
)
def test_a_window_ends_with_the_image(module: nn.Module, pools: dict[str, list[int]]) -> None:
    x = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(0))
    graph = import_torch(module, (x,))
    found = {one.op.name: list(one.attrs["kernel"]) for one in graph.nodes if "kernel" in one.attrs}
    assert found == pools
    torch.testing.assert_close(torch.as_tensor(compile(graph)(x)), module(x))
