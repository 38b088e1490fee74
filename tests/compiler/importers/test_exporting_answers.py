"""Forwards that ask whether they are exported: programs go the way of eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from kernels_hub.compiler import compile
from kernels_hub.compiler.importers.exporting_answers import not_exporting
from kernels_hub.compiler.importers.torch_export import import_torch


def _is_exporting_here() -> bool:
    return torch.compiler.is_exporting()


def _alone(x: Tensor) -> Tensor:
    return -x if torch.compiler.is_exporting() else x.exp()


def _through_a_function(x: Tensor) -> Tensor:
    return -x if _is_exporting_here() else x.exp()


def _not_compiling(x: Tensor) -> Tensor:
    return -x if torch.compiler.is_compiling() and not torch.compiler.is_exporting() else x.exp()


def _solved(x: Tensor) -> Tensor:
    if not torch.compiler.is_exporting():
        return torch.linalg.solve_triangular(x, x.flip(0), upper=False, unitriangular=True)
    rows = [x[-1]]
    for row in range(1, len(x)):
        rows.append(x[len(x) - 1 - row] - sum(x[row, one] * rows[one] for one in range(row)))
    return torch.stack(rows)


class Asking(nn.Module):
    """Computes a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("function", (_alone, _through_a_function, _not_compiling, _solved))
@pytest.mark.parametrize("size", (3, 7))
def test_a_program_computes_what_eager_computes(function: Callable[[Tensor], Tensor], size: int):
    x = torch.randn(size, size) / size
    run = compile((Asking(function), (x,)), "cpu", engines=["library"])
    torch.testing.assert_close(run(x), function(x))


def test_a_system_is_no_loop_over_rows():
    graph = import_torch(Asking(_solved), (torch.eye(64),))
    assert len([*graph.live()]) < 64 * 63 / 2


def test_the_way_of_exporters_is_gone_where_that_of_eager_is_not_supported():
    def forward(x: Tensor) -> Tensor:
        return x + 1 if torch.compiler.is_exporting() else torch.linalg.svdvals(x) + x

    run = compile((Asking(forward), (torch.eye(4),)), "cpu", engines=["library"])
    assert torch.equal(run(torch.eye(4)), torch.eye(4) + 1)


def test_it_ends_with_the_trace():
    original = torch.compiler.is_exporting
    import_torch(Asking(_alone), (torch.eye(4),))
    assert torch.compiler.is_exporting is original
    with pytest.raises(RuntimeError), not_exporting():
        raise RuntimeError
    assert torch.compiler.is_exporting is original
