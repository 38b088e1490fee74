"""Programs that torch.export made before, given as they are; `test_torch_file.py` has files of them."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

from kernels_hub.compiler import compile, differentiate
from kernels_hub.compiler.errors import CompilerError, ImportFailure
from kernels_hub.compiler.importers.torch_export import import_exported

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export's own


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x, pair, *, scale=2.0, mask=None):
        result = torch.cond(x.sum() > 0, lambda x: self.linear(x).relu(), lambda x: x - self.shift, (x,))
        return {"result": result * scale, "sum": pair["a"] + pair["b"]}


def exported(model: nn.Module, rows: int = 3) -> torch.export.ExportedProgram:
    pair = {"a": torch.ones(2), "b": torch.ones(2)}
    batch = torch.export.Dim("batch", min=2)
    shapes = {"x": {0: batch}, "pair": {"a": None, "b": None}, "scale": None, "mask": None}
    given = {"scale": 2.0, "mask": None}
    return torch.export.export(model, (torch.ones(rows, 4), pair), given, dynamic_shapes=shapes)


def stored(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


@pytest.mark.parametrize("through", [lambda one: one, stored], ids=["fresh", "stored"])
def test_it_is_called_as_the_module_is(through):
    model = Model().eval()
    run = compile(through(exported(model)), "cpu", engines=("library",))
    for rows, sign in ((2, 1), (5, -1)):
        x, pair = sign * torch.rand(rows, 4), {"a": torch.rand(2), "b": torch.rand(2)}
        with torch.no_grad():
            expected = model(x, pair)
        found = run(x, pair, scale=2.0, mask=None)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value)
    with pytest.raises(CompilerError, match="scale"):
        run(torch.ones(2, 4), pair, scale=3.0, mask=None)


def test_sizes_are_those_of_the_export():
    program = exported(Model().eval())
    with pytest.raises(CompilerError, match="dynamic_shapes"):
        compile(program, "cpu", dims={"x": {0: 4}})
    with pytest.raises(CompilerError, match="followed"):
        compile(program, "cpu", weights="followed")


def test_gradients_are_not_known():
    program = torch.export.export(nn.Linear(3, 2), (torch.ones(2, 3),))
    with pytest.raises(CompilerError, match="it was exported before"):
        differentiate(import_exported(program).graph)


def test_all_that_is_not_supported_is_told():
    class Solved(nn.Module):
        def forward(self, x):
            return torch.linalg.svdvals(x), torch.linalg.eigvalsh(x)

    with pytest.raises(ImportFailure, match=r"2 things are not supported|svd"):
        import_exported(torch.export.export(Solved(), (torch.eye(3),)))
