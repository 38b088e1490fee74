"""nn.LSTM, nn.GRU and nn.RNN: one op for each layer, at every length; in training, PyTorch's own steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.utils.rnn import pack_padded_sequence

from kernels_hub.compiler import compile as compile_graph
from kernels_hub.compiler import evaluate
from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.importers.recurrent_calls import recurrent_layers_whole
from kernels_hub.compiler.importers.torch_export import import_torch, import_torch_program

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export's own

KINDS: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN, "relu": nn.RNN}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"batch_first": True, "num_layers": 2},
    {"bidirectional": True, "num_layers": 2, "batch_first": True},
    {"bias": False, "bidirectional": True},
]


@pytest.fixture(autouse=True)
def _whole() -> Iterator[None]:
    with recurrent_layers_whole():
        yield


def made(kind: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    if kind in {"tanh", "relu"}:
        options["nonlinearity"] = kind
    module: nn.Module = KINDS[kind](5, 7, **options)
    return module.eval()


def cells(module: nn.Module, *args: Any) -> list[str]:
    nodes = import_torch(module, args).nodes
    return [node.attrs["cell"] for node in nodes if node.op.name == "recurrent"]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_length_and_batch(kind, options):
    module = made(kind, **options)
    program = import_torch_program(
        module, (torch.randn(3, 4, 5),), dynamic_shapes={"input": {0: Dim.AUTO, 1: Dim.AUTO}}
    )
    assert sum(node.op.name == "recurrent" for node in program.graph.nodes) == options.get("num_layers", 1)
    compiled = compile_graph(program.graph) if options == OPTIONS[2] else None
    for shape in ((3, 4, 5), (6, 2, 5), (9, 3, 5)):
        x = torch.randn(shape)
        wanted = torch.utils._pytree.tree_leaves(module(x))
        outcomes = [[*evaluate(program.graph, program.flatten((x,))).values()]]
        outcomes += [] if compiled is None else [[*compiled(input=x)]]
        for one, other in (
            (one, other) for found in outcomes for one, other in zip(found, wanted, strict=True)
        ):
            np.testing.assert_allclose(np.asarray(one), other.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_states_that_are_given(kind):
    module = made(kind, bidirectional=True)
    x, h = torch.randn(3, 2, 5), torch.randn(2, 2, 7)
    state = (h, torch.randn(2, 2, 7)) if kind == "lstm" else h
    program = import_torch_program(module, (x, state))
    found = program.unflatten(evaluate(program.graph, program.flatten((x, state))))
    wanted = module(x, state)
    for one, other in zip(
        torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(wanted), strict=True
    ):
        np.testing.assert_allclose(one, other.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_sequence_without_a_batch_and_projections_and_training():
    module = made("gru")
    x = torch.randn(3, 5)
    assert cells(module, x) == ["gru_after"]
    assert not cells(module.train(), x)  # the gradient is derived of the steps
    assert not cells(nn.LSTM(5, 7, proj_size=3).eval(), x)
    with recurrent_layers_whole(False):  # as a graph that somebody may derive
        assert not cells(module.eval(), x)


def test_compile_and_the_forward_of_a_call():
    module = made("gru", batch_first=True)
    x = torch.randn(2, 3, 5)
    compiled = compile_graph((module, (x,)))
    assert any(node.op.name == "recurrent" for node in compiled.graph.nodes)
    for one, other in zip(compiled(x), module(x), strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-4, atol=1e-5)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 7)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.gru(pack_padded_sequence(x, lengths))[1]  # type: ignore[no-any-return]


def test_packed_sequences_are_no_such_op():
    with pytest.raises(ImportFailure):
        import_torch(Packed().eval(), (torch.randn(3, 2, 5), torch.tensor([3, 2])))
