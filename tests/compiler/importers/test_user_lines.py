"""Lines of models: the innermost frame that is neither PyTorch's nor an importer's, at every op of a program."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _traceback

from kernels_hub.compiler import import_torch
from kernels_hub.compiler.importers import torch_trace
from kernels_hub.compiler.importers.user_lines import frame_text, user_line


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = (self.linear(x) + 1).exp()
        return self.squared(y) * x.shape[0]

    def squared(self, y: Tensor) -> Tensor:
        return y * y


def test_ops_have_the_lines_that_call_them() -> None:
    rows = torch.export.Dim("rows")
    graph = import_torch(Model(), (torch.ones(2, 3),), dynamic_shapes=({0: rows},))
    lines, first = inspect.getsourcelines(Model)
    told = {
        node.op.name: node.origin.rpartition(":")[2]
        for node in graph.nodes
        if (node.op.name in ("matmul", "mul") and "squared" in node.origin) or node.op.name == "matmul"
    }
    (of_linear,) = [first + at for at, line in enumerate(lines) if "self.linear(x)" in line]
    (of_square,) = [first + at for at, line in enumerate(lines) if "y * y" in line]
    assert told == {"matmul": f"{of_linear} in forward", "mul": f"{of_square} in squared"}


def test_modules_of_pytorch_alone_have_no_line() -> None:
    graph = import_torch(nn.Sequential(nn.Linear(3, 4), nn.GELU()), (torch.ones(2, 3),))
    origins = {node.origin for node in graph.nodes if node.op.name == "matmul"}
    assert origins == {"0 (Linear)"}


def test_no_stack_is_written_down_at_an_op(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    original = _traceback._extract_symbolized_tb

    def counted(*args: Any) -> Any:
        written.append(args)
        return original(*args)

    monkeypatch.setattr(_traceback, "_extract_symbolized_tb", counted)
    program, _ = torch_trace.trace(Model(), (torch.ones(2, 3),), {}, None, strict=False)
    assert len(list(program.graph.nodes)) > 6
    assert len(written) <= len(program.graph_signature.input_specs) + 1, "arguments and results alone"


def test_frames_of_pytorch_are_passed_by() -> None:
    found = []

    class Hooked(nn.Identity):
        def forward(self, x: Tensor) -> Tensor:
            frame = sys._getframe(1)  # of torch.nn
            found.append(frame_text(frame))
            return x

    Hooked()(torch.ones(1))
    assert user_line(found[0]).startswith(f"{__file__}:")
    assert user_line(found[0]).endswith(" in test_frames_of_pytorch_are_passed_by")


def test_a_stack_of_pytorch_alone_has_no_line() -> None:
    assert user_line('File "/x/torch/nn/functional.py", line 3, in linear') == ""
    assert user_line("") == ""
