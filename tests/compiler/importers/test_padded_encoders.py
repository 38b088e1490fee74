"""nn.TransformerEncoder with a mask of padding: zeros there where no gradient is asked for, as PyTorch has them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kernels_hub.compiler import evaluate
from kernels_hub.compiler.importers.padded_encoders import encoders_without_gradients
from kernels_hub.compiler.importers.torch_export import import_torch_program

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

LENGTHS = {
    "at the end": [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]],
    "a row without tokens": [[1, 1, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 0, 0, 0]],
    "none": [[1, 1, 1, 1, 1]] * 3,
    "at the start": [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 1, 1, 1, 1]],
    "within": [[1, 1, 0, 1, 1], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]],
}


class Within(nn.Module):
    def __init__(self, norm: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8, bias=False) if norm else None)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.head(self.encoder(x, src_key_padding_mask=padding))  # type: ignore[no-any-return]


def masks(of_floats: bool) -> list[Tensor]:
    padding = [~torch.tensor(rows, dtype=torch.bool) for rows in LENGTHS.values()]
    if not of_floats:
        return padding
    # Elsewhere PyTorch's layers take what is added to scores for 0 or -inf.
    added = [-2.0 if what in {"at the end", "none"} else -torch.inf for what in LENGTHS]
    return [torch.zeros(3, 5).masked_fill(one, value) for one, value in zip(padding, added, strict=True)]


@pytest.mark.parametrize("of_floats", [False, True], ids=["bool", "float"])
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
def test_padding_is_what_it_is_without_gradients(norm, of_floats):
    torch.manual_seed(0)
    model, x = Within(norm).eval(), torch.randn(3, 5, 8)
    every = masks(of_floats)
    with encoders_without_gradients():
        program = import_torch_program(model, (x, every[0]))
    for what, padding in zip(LENGTHS, every, strict=True):
        with torch.no_grad():
            wanted = model(x, padding).numpy()
        found = program.unflatten(evaluate(program.graph, program.flatten((x, padding), {})))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5, err_msg=what)


def test_an_encoder_by_itself():
    torch.manual_seed(0)
    model, x, padding = Within(norm=True).encoder.eval(), torch.randn(3, 5, 8), masks(of_floats=False)[0]
    before = nn.TransformerEncoder.forward
    with encoders_without_gradients():
        program = import_torch_program(model, (x,), {"src_key_padding_mask": padding})
    assert nn.TransformerEncoder.forward is before and model.norm is not None
    with torch.no_grad():
        wanted = model(x, src_key_padding_mask=padding).numpy()
    found = program.unflatten(
        evaluate(program.graph, program.flatten((x,), {"src_key_padding_mask": padding}))
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_padding_is_what_it_is_with_gradients_where_nobody_asked():
    torch.manual_seed(0)
    model, x, padding = Within(norm=False).eval(), torch.randn(3, 5, 8), masks(of_floats=False)[0]
    program = import_torch_program(model, (x, padding))
    found = program.unflatten(evaluate(program.graph, program.flatten((x, padding), {})))
    np.testing.assert_allclose(found, model(x, padding).detach().numpy(), rtol=1e-4, atol=1e-5)
