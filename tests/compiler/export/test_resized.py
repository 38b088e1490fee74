"""Example arguments of other sizes: `compiler/export/source.py`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from kernels_hub.compiler.export.source import Example, resized


class Model(nn.Module):
    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        return x[at]


@pytest.mark.parametrize(
    ("given", "size", "limit", "expected"),
    [
        ([5, 1, 9, 0], 6, None, [5, 1, 9, 0, 5, 1]),
        ([5, 1, 9, 0], 4, 3, [2, 1, 0, 0]),
        ([5, 1, 2, 0], 5, 9, [5, 1, 2, 0, 5]),
        ([-4, -1, 2, 0], 4, 2, [0, -1, 0, 0]),
        ([0, 3, 3, 8], 6, None, [0, 0, 3, 3, 3, 8]),
        ([0, 3, 4, 8], 4, 5, [0, 3, 3, 4]),
        ([7, 3], 1, 0, [7]),
    ],
)
def test_indices(given: list[int], size: int, limit: int | None, expected: list[int]) -> None:
    """Those that a smaller dim does not have begin anew; what was in order stays so."""
    example = Example(Model(), (torch.randn(10, 2), torch.tensor(given)))
    limits = {} if limit is None else {"at": limit}
    assert resized(example, {"at": [size]}, 0, limits).args[1].tolist() == expected


def test_rows_of_a_matrix_are_left_as_they_are() -> None:
    example = Example(Model(), (torch.randn(10, 2), torch.arange(6).reshape(2, 3)))
    assert resized(example, {"at": [2, 4]}).args[1].tolist() == [[0, 1, 2, 0], [3, 4, 5, 3]]
