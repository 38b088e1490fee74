"""The fused blocks of `layers/convolution` on the CPU, against transformers' ResNet in float64."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetModel
from transformers.models.resnet.modeling_resnet import (
    ResNetBasicLayer,
    ResNetBottleNeckLayer,
    ResNetConvLayer,
    ResNetShortCut,
)

from kernels_hub.kernelization.validate import check_layer_class, check_signature
from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.tolerances import assert_close

PACKAGE: ModuleType = import_kernel(source_variant(bundled_folder() / "convolution", "cpu"))
LAYERS = PACKAGE.layers
REPLACED = {
    nn.Conv2d: LAYERS.Conv2d,
    ResNetConvLayer: LAYERS.ConvNormActivation,
    ResNetShortCut: LAYERS.ConvNorm,
    ResNetBottleNeckLayer: LAYERS.ResNetBottleneck,
    ResNetBasicLayer: LAYERS.ResNetBasic,
}

# name -> (module, shape of its input)
BLOCKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ResNetConvLayer": (lambda: ResNetConvLayer(16, 24, 3, stride=2), (2, 16, 9, 8)),
    "ResNetConvLayer with bias": (lambda: ResNetConvLayer(3, 20, 7, stride=2, bias=True), (2, 3, 32, 32)),
    "ResNetConvLayer, no activation": (
        lambda: ResNetConvLayer(16, 16, 3, groups=4, activation=None),
        (2, 16, 5, 6),
    ),
    "ResNetShortCut": (lambda: ResNetShortCut(16, 40), (2, 16, 7, 7)),
    "ResNetBottleNeckLayer": (lambda: ResNetBottleNeckLayer(32, 32), (2, 32, 6, 7)),
    "ResNetBottleNeckLayer, smaller": (lambda: ResNetBottleNeckLayer(32, 64, stride=2), (2, 32, 8, 8)),
    "ResNetBasicLayer": (lambda: ResNetBasicLayer(16, 16), (2, 16, 6, 7)),
    "ResNetBasicLayer, smaller": (lambda: ResNetBasicLayer(16, 32, stride=2), (2, 16, 8, 7)),
}


def with_statistics(module: nn.Module) -> nn.Module:
    """The module in eval mode, its norms with statistics as after training."""
    torch.manual_seed(0)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias, std=0.2)
            norm.running_mean.normal_(std=0.2)
            norm.running_var.uniform_(0.5, 1.5)
    return module.eval()


def bind(module: nn.Module, *, children: bool = False) -> nn.Module:
    """Give a module its kernel, and its descendants theirs, as `kernelize` does."""
    for target in module.modules() if children else (module,):
        if type(target) in REPLACED:
            target.forward = functools.partial(REPLACED[type(target)].forward, target)
    return module


def make(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
    factory, shape = BLOCKS[name]
    module = with_statistics(factory()).to(dtype)
    return module, torch.randn(shape).to(dtype)


def number_of_folded(module: nn.Module) -> int:
    convolutions = [m for m in module.modules() if isinstance(m, nn.Conv2d)]
    return sum(PACKAGE.kernels.packed_nbytes(m.weight, folded=True) > 0 for m in convolutions)


@pytest.mark.parametrize("cls", REPLACED, ids=lambda cls: cls.__name__)
def test_layers_fulfil_the_contract(cls: type[nn.Module]) -> None:
    check_layer_class(REPLACED[cls], cls.__name__)
    check_signature(REPLACED[cls], cls, REPLACED[cls].__name__, cls.__name__)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("children", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_fused(name: str, channels_last: bool, children: bool, dtype: torch.dtype) -> None:
    module, x = make(name, dtype)
    reference = copy.deepcopy(module).double()(x.double())
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    before = x.clone()
    bind(module, children=children)
    with torch.no_grad():
        result = module(x)
    assert result.dtype is dtype and result.is_contiguous(memory_format=torch.channels_last)
    assert_close(result, reference, factor=2)  # up to four roundings in a row
    assert torch.equal(x, before)
    native = PACKAGE.kernels._computed_in(dtype) in PACKAGE.kernels._DTYPES
    assert number_of_folded(module) == (
        sum(isinstance(m, nn.Conv2d) for m in module.modules()) if native else 0
    )


@pytest.mark.parametrize("name", BLOCKS)
def test_gradients(name: str) -> None:
    """Where a gradient is needed, or statistics are, the children run as they were."""
    for training in (False, True):
        module, x = make(name)
        module.train(training)
        original, y = copy.deepcopy(module), x.clone().requires_grad_()
        bind(module)
        x.requires_grad_()
        result, reference = module(x), original(y)
        assert torch.equal(result, reference)
        gradient = torch.randn_like(result)
        result.backward(gradient)
        reference.backward(gradient)
        assert torch.equal(x.grad, y.grad)
        for ours, theirs in zip(module.parameters(), original.parameters(), strict=True):
            assert torch.equal(ours.grad, theirs.grad)
        for ours, theirs in zip(module.buffers(), original.buffers(), strict=True):
            assert torch.equal(ours, theirs)
        assert number_of_folded(module) == 0


def _hook(target: nn.Module, called: list[str]) -> None:
    target.register_forward_hook(lambda *_: called.append("hook"))


def _pre_hook(target: nn.Module, called: list[str]) -> None:
    target.register_forward_pre_hook(lambda *_: called.append("hook"))


def _own_forward(target: nn.Module, called: list[str]) -> None:
    original = target.forward

    def forward(x: Tensor) -> Tensor:
        called.append("forward")
        return original(x)

    target.forward = forward


@pytest.mark.parametrize("watch", [_hook, _pre_hook, _own_forward])
@pytest.mark.parametrize(
    "child",
    [
        "shortcut",
        "shortcut.convolution",
        "layer",
        "layer.1",
        "layer.2.normalization",
        "layer.0.activation",
        "activation",
    ],
)
def test_watched_children_are_called(child: str, watch: Callable[[nn.Module, list[str]], None]) -> None:
    module, x = make("ResNetBottleNeckLayer, smaller")
    reference = copy.deepcopy(module).double()(x.double())
    called: list[str] = []
    watch(module.get_submodule(child), called)
    bind(module)
    with torch.no_grad():
        assert_close(module(x), reference, factor=2)
    assert len(called) == 1


def test_global_hooks_are_called() -> None:
    module, x = make("ResNetConvLayer")
    bind(module)
    seen: list[type] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    try:
        with torch.no_grad():
            module(x)
    finally:
        handle.remove()
    assert {nn.Conv2d, nn.BatchNorm2d, nn.ReLU} <= set(seen)


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.BatchNorm2d, nn.ReLU], ids=lambda kind: kind.__name__)
def test_forwards_of_classes_that_are_replaced_are_called(
    kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x = make("ResNetBottleNeckLayer, smaller")
    reference = copy.deepcopy(module)
    bind(module)
    original = kind.forward
    with torch.no_grad():
        assert_close(module(x), reference.double()(x.double()), factor=2)
        monkeypatch.setattr(kind, "forward", lambda self, x: 1 + original(self, x))
        assert_close(module(x), reference(x.double()), factor=2)


class Adapter(nn.Module):
    """A child put in the place of a convolution block."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.convolution, self.normalization, self.activation = (
            block.convolution,
            block.normalization,
            block.activation,
        )

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.activation(self.normalization(self.convolution(x)))


class OfTheSameName(Adapter):
    """Called as a class that is fused, as a model's own code may call one."""


OfTheSameName.__name__ = ResNetConvLayer.__name__


class Scaled(nn.Sequential):
    """Convolution blocks whose result is scaled."""

    def forward(self, input: Tensor) -> Tensor:
        return 0.5 * super().forward(input)


class LowRank(nn.Conv2d):
    """A convolution that adds to its result."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "adapter": lambda block: block.layer.__setitem__(1, Adapter(block.layer[1])),
    "a class of the same name": lambda block: block.layer.__setitem__(
        1, OfTheSameName(block.layer[1]).eval()
    ),
    "another kind of sequence": lambda block: setattr(block, "layer", Scaled(*block.layer).eval()),
    "convolution": lambda block: setattr(block.layer[0], "convolution", LowRank(32, 8, 1).eval()),
    "norm": lambda block: setattr(block.layer[0], "normalization", nn.GroupNorm(2, 8)),
    "norm without statistics": lambda block: setattr(
        block.layer[0], "normalization", nn.BatchNorm2d(8, track_running_stats=False).eval()
    ),
    "activation": lambda block: setattr(block.layer[0], "activation", nn.SiLU()),
    "last activation": lambda block: setattr(block, "activation", nn.GELU()),
    "activation before the sum": lambda block: setattr(block.layer[2], "activation", nn.ReLU()),
    "shortcut": lambda block: setattr(block, "shortcut", nn.Sequential(block.shortcut, nn.Identity())),
    "one child more": lambda block: block.layer.append(nn.Dropout(0.5).eval()),
    "norm in training": lambda block: block.layer[1].normalization.train(),
    "padding mode": lambda block: setattr(block.layer[1].convolution, "padding_mode", "reflect"),
    "padding by name": lambda block: setattr(
        block.layer[1], "convolution", nn.Conv2d(8, 8, 3, padding="same", bias=False)
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_blocks_keep_their_numbers(change: str) -> None:
    torch.manual_seed(0)
    module = with_statistics(ResNetBottleNeckLayer(32, 32, stride=1))
    module.shortcut = with_statistics(ResNetShortCut(32, 32, stride=1))
    CHANGES[change](module)
    x = torch.randn(2, 32, 6, 6)
    reference = copy.deepcopy(module).double()(x.double())
    bind(module)
    with torch.no_grad():
        assert_close(module(x), reference, factor=2)


@pytest.mark.parametrize(
    "channels, kernel, size, fuses",
    [(16, 3, 7, False), (16, 3, 30, True), (64, 3, 7, True), (128, 1, 7, False), (256, 1, 9, True)],
)
def test_fused_only_where_it_pays(channels: int, kernel: int, size: int, fuses: bool) -> None:
    module = with_statistics(ResNetConvLayer(channels, channels, kernel))
    x = torch.randn(1, channels, size, size)
    reference = copy.deepcopy(module).double()(x.double())
    bind(module)
    with torch.no_grad():
        assert_close(module(x), reference, factor=2)
    assert number_of_folded(module) == fuses


def test_new_statistics_are_seen() -> None:
    module, x = make("ResNetBottleNeckLayer")
    bind(module)
    with torch.no_grad():
        for _ in range(2):
            plain = copy.deepcopy(module)
            for child in plain.modules():
                child.__dict__.pop("forward", None)
            assert_close(module(x), plain.double()(x.double()), factor=2)
            module.train()(x)
            module.eval()


def test_autocast_runs_the_children() -> None:
    module, x = make("ResNetConvLayer")
    bind(module)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert module(x).dtype is torch.bfloat16
    assert number_of_folded(module) == 0


@pytest.mark.parametrize("name", ["ResNetConvLayer", "ResNetBottleNeckLayer, smaller"])
def test_compiled(name: str) -> None:
    module, x = make(name)
    reference = copy.deepcopy(module).double()(x.double())
    bind(module, children=True)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert_close(compiled(x), reference, factor=2)
    assert number_of_folded(module) == sum(isinstance(m, nn.Conv2d) for m in module.modules())
    x.requires_grad_()
    compiled(x).sum().backward()
    plain = copy.deepcopy(module)
    for child in plain.modules():
        child.__dict__.pop("forward", None)
    y = x.detach().double().requires_grad_()
    plain.double()(y).sum().backward()
    assert_close(x.grad, y.grad, factor=10)


@pytest.mark.parametrize("kind", ["bottleneck", "basic"])
def test_a_whole_model(kind: str) -> None:
    config = ResNetConfig(embedding_size=16, hidden_sizes=[32, 64], depths=[2, 2], layer_type=kind)
    model = with_statistics(ResNetModel(config))
    x = torch.randn(2, 3, 64, 64)
    reference = copy.deepcopy(model).double()(x.double(), output_hidden_states=True)
    bind(model, children=True)
    with torch.inference_mode():
        result = model(x, output_hidden_states=True)
    assert_close(result.pooler_output, reference.pooler_output, factor=4)  # twelve layers
    for ours, theirs in zip(result.hidden_states, reference.hidden_states, strict=True):
        assert_close(ours, theirs, factor=4)
    assert number_of_folded(model) == sum(isinstance(m, nn.Conv2d) for m in model.modules())


def test_bytes_are_counted_once() -> None:
    model = with_statistics(
        ResNetModel(ResNetConfig(embedding_size=16, hidden_sizes=[32, 64], depths=[1, 1]))
    )
    bind(model, children=True)
    with torch.no_grad():
        model(torch.randn(2, 3, 64, 64))
    weights = PACKAGE.weights
    total = sum(weights.packed_nbytes(module) for module in model.modules() if "forward" in module.__dict__)
    each = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert total == sum(PACKAGE.kernels.packed_nbytes(weight, folded=True) for weight in each)
    assert total >= sum(weight.nbytes for weight in each)
    for module in model.modules():
        weights.prepare(module), weights.free_originals(module), weights.restore_originals(module)
        weights.release(module)
    assert number_of_folded(model) == 0
