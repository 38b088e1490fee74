"""The block of `layers/convnext` against transformers' in float64, and the calls that run the block's children."""

from __future__ import annotations

import copy
import shutil
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from transformers import ConvNextConfig, DINOv3ConvNextConfig
from transformers.models.convnext.modeling_convnext import ConvNextDropPath, ConvNextLayer, ConvNextModel
from transformers.models.dinov3_convnext.modeling_dinov3_convnext import DINOv3ConvNextLayer

from kernels_hub import Mode, kernelize, load_kernel_mapping, report, restore, use_kernel_mapping
from kernels_hub.calibration.kinds import KINDS, read_shape, rows_of, shapes
from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.tolerances import assert_close

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

PACKAGE: ModuleType = import_kernel(source_variant(bundled_folder() / "convnext", "cpu"))
KERNELS: ModuleType = sys.modules[PACKAGE.__name__ + ".kernels"]


def with_weights(block: nn.Module) -> nn.Module:
    """As after training: a scale of 1e-6 would hide what the rest of the block computes."""
    with torch.no_grad():
        for parameter in block.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(-1, 1)
    return block.eval()


def convnext(channels: int = 24, activation: str = "gelu", scale: float = 1e-6) -> nn.Module:
    config = ConvNextConfig(hidden_act=activation, layer_scale_init_value=scale)
    return with_weights(ConvNextLayer(config, channels))


def dinov3(channels: int = 24) -> nn.Module:
    return with_weights(DINOv3ConvNextLayer(DINOv3ConvNextConfig(), channels))


def without_biases() -> nn.Module:
    block = convnext()
    for name in ("dwconv", "pwconv1", "pwconv2"):
        getattr(block, name).bias = None
    block.layernorm = nn.LayerNorm(24, elementwise_affine=False)
    return block


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "ConvNeXt": convnext,
    "DINOv3": dinov3,
    "without a scale": lambda: convnext(scale=0.0),
    "without biases": without_biases,
    "ReLU": lambda: convnext(activation="relu"),
    "tanh GELU": lambda: convnext(activation="gelu_pytorch_tanh"),
    "SiLU": lambda: convnext(activation="silu"),
    "vectors and a rest": lambda: convnext(37),
    "fewer channels than a vector": lambda: convnext(3),
    "stochastic depth": lambda: with_weights(ConvNextLayer(ConvNextConfig(), 24, drop_path=0.5)),
}
SHAPES = ((1, 9, 7), (3, 5, 16), (2, 1, 1), (1, 40, 33))


def runs(block: nn.Module, x: Tensor) -> bool:
    """Whether a call is one for the native code."""
    return KERNELS.block(x, PACKAGE.layers.parts_of(block)) is not None


def check(block: nn.Module, x: Tensor) -> Tensor:
    with torch.inference_mode():
        found: Tensor = PACKAGE.layers.ConvNextBlock.forward(block, x)
        expected = copy.deepcopy(block).double()(x.double())
    assert_close(found, expected.float(), factor=16)
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", BLOCKS)
def test_numbers(name: str, shape: tuple[int, int, int]) -> None:
    block = BLOCKS[name]()
    channels = sum(
        p.shape[0] for n, p in block.named_parameters() if n in ("dwconv.weight", "depthwise_conv.weight")
    )
    images, height, width = shape
    x = torch.randn(images, channels, height, width)
    for given_as in (x, x.contiguous(memory_format=torch.channels_last), x.mT.contiguous().mT):
        found = check(block, given_as)
        assert found.shape == x.shape and found.is_contiguous(memory_format=torch.channels_last)
        with torch.inference_mode():
            assert runs(block, given_as)


@given(
    images=st.integers(1, 4), channels=st.integers(1, 70), height=st.integers(1, 30), width=st.integers(1, 30),
    seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_any_size(images: int, channels: int, height: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    check(convnext(channels), torch.randn(images, channels, height, width))


def test_what_is_made_of_a_large_batch_is_made_in_parts() -> None:
    """More pixels than go through the products at once, and more images than the convolution makes at once."""
    block = convnext(64)
    check(block, torch.randn(3, 64, 130, 130))
    check(block, torch.randn(11, 64, 64, 64))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_within_what_sees_it(value: float) -> None:
    block, x = convnext(), torch.randn(2, 24, 20, 20)
    x[0, 3, 10, 10] = value
    with torch.inference_mode():
        found, expected = PACKAGE.layers.ConvNextBlock.forward(block, x), block(x)
    assert found.isnan().equal(expected.isnan())
    assert 0 < int(expected.isnan().sum()) < expected.numel() // 2
    assert_close(found.nan_to_num(), expected.nan_to_num(), factor=16)


def hooked(block: nn.Module) -> nn.Module:
    block.pwconv1.register_forward_hook(lambda *_: None)
    return block


def replaced(block: nn.Module) -> nn.Module:
    block.pwconv2 = nn.Sequential(block.pwconv2)
    return block


def parametrized(block: nn.Module) -> nn.Module:
    parametrizations.weight_norm(block.pwconv1)
    return block


def trains(block: nn.Module) -> nn.Module:
    block.drop_path = ConvNextDropPath(0.0).train()
    return block


def channels_first(block: nn.Module) -> nn.Module:
    block.dwconv = nn.Sequential(block.dwconv)
    return block


OTHERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "a hook": hooked,
    "another module": replaced,
    "a parametrization": parametrized,
    "stochastic depth in training": trains,
    "another convolution": channels_first,
    "another padding": lambda one: setattr(one.dwconv, "padding_mode", "circular") or one,
    "an unknown activation": lambda one: setattr(one, "act", nn.Hardtanh()) or one,
    "float64": lambda one: one.double(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_blocks_call_their_children(name: str) -> None:
    block = OTHERS[name](convnext())
    x = torch.randn(2, 24, 9, 9, dtype=next(block.parameters()).dtype)
    with torch.inference_mode():
        assert not runs(block, x)
        assert PACKAGE.layers.ConvNextBlock.forward(block, x).equal(ConvNextLayer.forward(block, x))


def test_gradients_are_those_of_the_children() -> None:
    block, x = convnext(), torch.randn(2, 24, 9, 9, requires_grad=True)
    assert not runs(block, x)
    one, other = PACKAGE.layers.ConvNextBlock.forward(block, x), block(x)
    for found, expected in zip(
        torch.autograd.grad(one.sum(), (x, block.pwconv1.weight)),
        torch.autograd.grad(other.sum(), (x, block.pwconv1.weight)),
        strict=True,
    ):
        assert found.equal(expected)


def test_it_compiles_whole() -> None:
    block, x = convnext(), torch.randn(2, 24, 9, 9)

    def call(x: Tensor) -> Tensor:
        return PACKAGE.layers.ConvNextBlock.forward(block, x)  # type: ignore[no-any-return]

    with torch.inference_mode():
        assert_close(torch.compile(call, fullgraph=True, backend="eager")(x), block(x))
    with torch.no_grad():
        exported = torch.export.export(block_of(block), (x,))
        assert_close(exported.module()(x), block(x))


def block_of(block: nn.Module) -> nn.Module:
    """A module whose forward is the layer's."""
    found = copy.deepcopy(block)
    found.forward = lambda features: PACKAGE.layers.ConvNextBlock.forward(found, features)
    return found


def test_a_weight_of_another_length_is_not_read() -> None:
    block, x = convnext(), torch.randn(2, 24, 9, 9)
    block.pwconv2.bias = nn.Parameter(torch.randn(1))  # which PyTorch broadcasts
    with torch.inference_mode():
        assert not runs(block, x)
        assert_close(PACKAGE.layers.ConvNextBlock.forward(block, x), ConvNextLayer.forward(block, x))


def test_wrong_sizes_raise_what_the_children_raise() -> None:
    with torch.inference_mode(), pytest.raises(RuntimeError, match="channels"):
        PACKAGE.layers.ConvNextBlock.forward(convnext(), torch.randn(2, 23, 9, 9))


def test_written_weights_are_seen() -> None:
    block, x = convnext(), torch.randn(2, 24, 9, 9)
    with torch.inference_mode():
        before = check(block, x)
        for name in ("dwconv", "layernorm", "pwconv1", "pwconv2"):
            getattr(block, name).weight.mul_(-1.5)
            after = check(block, x)
            assert not after.equal(before)
            before = after
        block.layer_scale_parameter.mul_(2)
        assert not check(block, x).equal(before)
    block.pwconv1.weight = nn.Parameter(torch.randn(96, 24))
    check(block, x)


def test_what_is_held_is_told_and_let_go() -> None:
    weights, block = PACKAGE.weights, convnext()
    assert weights.packed_nbytes(block) == 0
    weights.prepare(block)
    assert 2 * 96 * 24 * 4 <= weights.packed_nbytes(block) <= weights.most_nbytes(block)
    block.pwconv1.weight.data[3, 3] = 9.0  # not counted by PyTorch: found when all is compared
    weights.refresh(block)
    check(block, torch.randn(1, 24, 8, 8))
    weights.strict(block, True)
    check(block, torch.randn(1, 24, 8, 8))
    weights.release(block)
    assert weights.packed_nbytes(block) == 0


def test_a_model_under_the_default_mapping() -> None:
    """Of which the blocks' children have no kernels of their own; under torch.compile there is no such block."""
    config = ConvNextConfig(num_channels=3, hidden_sizes=[16, 24, 32, 40], depths=[1, 2, 1, 1])
    model = ConvNextModel(config).eval()
    for block in model.modules():
        if isinstance(block, ConvNextLayer):
            with_weights(block)
    original, x = copy.deepcopy(model), torch.randn(2, 3, 96, 64)
    with torch.inference_mode(), use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, wait=True)
        rows = {row.path: row for row in report(model).rows}
        block, child = rows["encoder.stages.1.layers.1"], rows["encoder.stages.1.layers.1.pwconv1"]
        assert block.layer_name == "ConvNextBlock" and block.swapped and block.packed_nbytes > 0
        assert not child.swapped and "its parent's kernel ConvNextBlock computes it" in str(child.reason)
        assert_close(model(x).last_hidden_state, original(x).last_hidden_state, factor=64)
        restore(model)
        assert model(x).last_hidden_state.equal(original(x).last_hidden_state)
        kernelize(model, mode=Mode.INFERENCE | Mode.TORCH_COMPILE)
        assert not {row.path: row for row in report(model).rows}["encoder.stages.1.layers.1"].swapped


def test_it_is_measured_as_the_block_that_it_replaces() -> None:
    read = read_shape("ConvNextBlock", convnext(32))
    assert read is not None
    shape, width = read
    assert (shape.depth, shape.columns, width) == (32, 128, 32)
    kind = KINDS["ConvNextBlock"]
    for each in shapes("ConvNextBlock", "float32"):
        assert rows_of(each)
    block = kind.build("", 32, 128).eval()
    ((args, kwargs),) = kind.example("", 32, 128, 64)
    assert args[0].shape == (1, 32, 8, 8) and not kwargs
    with torch.inference_mode():
        assert runs(block, args[0])
