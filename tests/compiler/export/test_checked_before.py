"""What is checked before a layer is written: wrong programs are not, and the module is as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels_hub.compiler.codegen.cpp.translation_unit import generate
from kernels_hub.compiler.errors import CompilerError, EngineError
from kernels_hub.compiler.export import emit_layer as emit
from kernels_hub.compiler.export import programs
from kernels_hub.numerics import largest_error
from tests.compiler.export.emitted_layers import Normed, gated_mlp, normed


def test_a_wrong_program_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def wrong(scheduled: Any, **more: Any) -> Any:
        program = generate(scheduled, **more)
        assert "kh::sigmoid(" in program.source
        return replace(program, source=program.source.replace("kh::sigmoid(", "1.001f * kh::sigmoid("))

    monkeypatch.setattr(programs, "generate", wrong)
    case = gated_mlp()
    with pytest.raises(
        EngineError, match="differs from the original module by .*, for batch = 2, length = 5"
    ):
        emit.emit_layer(
            (case.module, case.args),
            layer_name="Wrong",
            out=tmp_path / "wrong",
            dynamic_shapes=case.dynamic_shapes,
        )
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([1.0, float("nan")], [1.0, float("nan")], 0.0),
        ([1.0, float("nan")], [1.0, 2.0], float("inf")),
        ([1.0, 2.0], [1.0, float("nan")], float("inf")),
        ([1.0, float("inf")], [1.0, -float("inf")], float("inf")),
        ([0.5], [0.0], 0.5),
        ([], [], 0.0),
    ],
)
def test_difference(one: list[float], other: list[float], expected: float):
    assert largest_error(torch.tensor(one), torch.tensor(other)) == expected


def test_a_module_is_left_as_it_was(tmp_path: Path):
    """Mode, class and forward, also where compiling fails."""
    case = normed()
    case.module.train()
    case.module.dropout.eval()
    state = {name: one.clone() for name, one in case.module.state_dict().items()}
    for shapes in (case.dynamic_shapes, {"nothing": None}):
        with pytest.raises(CompilerError):
            emit.emit_layer(
                (case.module, (torch.zeros(4, 47), *case.args[1:]), case.kwargs),
                layer_name="Normed",
                out=tmp_path / "out",
                dynamic_shapes=shapes,
            )
        assert type(case.module) is Normed and "forward" not in vars(case.module)
        assert case.module.training and not case.module.dropout.training and case.module.norm.training
        assert all(torch.equal(one, state[name]) for name, one in case.module.state_dict().items())
