"""torch.nn.TransformerEncoderLayer on `layers/encoder`, against itself in float64."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels_hub import Mode, kernelize, load_kernel_mapping, report, use_kernel_mapping
from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.tolerances import assert_close

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

PACKAGE: ModuleType = import_kernel(source_variant(bundled_folder() / "encoder", "cpu"))
WIDTH, HEADS, WIDE = 48, 3, 80
TORCH = PACKAGE.layers.TorchEncoderLayer.forward


def torch_layer(**more: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, WIDE, **({"batch_first": True} | more))
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(-1, 1)
    return layer.eval()


def hides(batch: int, length: int) -> dict[str, tuple[Tensor | None, Tensor | None]]:
    """Masks and paddings of PyTorch's layer: True is hidden."""
    of_queries = torch.rand(length, length) < 0.5
    padding = torch.arange(length) >= torch.randint(1, length + 1, (batch, 1))
    of_queries[:, 0] = False
    floats = torch.randn(length, length)
    return {
        "nothing": (None, None),
        "queries": (of_queries, None),
        "padding": (None, padding),
        "both": (of_queries, padding),
        "causal": (nn.Transformer.generate_square_subsequent_mask(length), None),
        "of heads": (floats.expand(batch * HEADS, -1, -1) * 1.5, None),
        "floats": (floats, torch.zeros(batch, length).masked_fill(padding, -torch.inf)),
    }


@pytest.mark.parametrize("activation", ["relu", "gelu", F.silu, nn.GELU("tanh")])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_the_layer_of_torch(batch_first: bool, norm_first: bool, activation: Any) -> None:
    layer = torch_layer(activation=activation, norm_first=norm_first, batch_first=batch_first)
    wide = copy.deepcopy(layer).double()
    torch.backends.mha.set_fastpath_enabled(False)  # it takes any GELU for the exact one
    try:
        for batch, length in ((3, 9), (1, 40)):
            x = torch.randn(*((batch, length) if batch_first else (length, batch)), WIDTH)
            for mask, padding in hides(batch, length).values():
                wider = [
                    each.double() if each is not None and each.is_floating_point() else each
                    for each in (mask, padding)
                ]
                with torch.inference_mode():
                    found = TORCH(layer, x, mask, padding)
                    assert not found.equal(layer(x, mask, padding))  # by the native code
                    assert_close(found, wide(x.double(), *wider).float(), factor=16)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


OTHERS_OF_TORCH: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "one sequence": lambda: (torch_layer(), (torch.randn(9, WIDTH),)),
    "a mask and floats": lambda: (
        torch_layer(),
        (torch.randn(2, 9, WIDTH), torch.zeros(9, 9), torch.zeros(2, 9, dtype=torch.bool)),
    ),
    "a hook": lambda: (hooked_layer(torch_layer()), (torch.randn(2, 9, WIDTH),)),
    "an unknown activation": lambda: (torch_layer(activation=torch.tanh), (torch.randn(2, 9, WIDTH),)),
}


def hooked_layer(layer: nn.Module) -> nn.Module:
    layer.self_attn.out_proj.register_forward_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize("name", OTHERS_OF_TORCH)
@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_other_calls_of_torchs_layer_run_its_own_forward(name: str) -> None:
    layer, args = OTHERS_OF_TORCH[name]()
    with torch.inference_mode():
        assert TORCH(layer, *args).equal(layer(*args))


def test_a_hint_without_a_mask_is_refused_as_pytorch_does() -> None:
    layer, x = torch_layer(), torch.randn(2, 9, WIDTH)
    with (
        torch.inference_mode(),
        pytest.raises(RuntimeError, match="Need attn_mask if specifying the is_causal hint"),
    ):
        TORCH(layer, x, None, None, True)


def test_an_encoder_of_torch_under_the_default_mapping() -> None:
    model = nn.TransformerEncoder(torch_layer(), 3, enable_nested_tensor=False).eval()
    original, x = copy.deepcopy(model), torch.randn(2, 9, WIDTH)
    padding = torch.arange(9) >= torch.tensor([[9], [6]])
    with torch.inference_mode(), use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, wait=True)
        assert [row.layer_name for row in report(model).swapped] == ["TorchEncoderLayer"] * 3
        assert_close(model(x), original(x), factor=16)
        assert not model(x).equal(original(x))
        assert_close(
            model(x, src_key_padding_mask=padding), original(x, src_key_padding_mask=padding), factor=16
        )
