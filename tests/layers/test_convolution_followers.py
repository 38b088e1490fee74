"""What follows a convolution or a linear layer, computed with it, against the modules one after the other."""

from __future__ import annotations

import copy
import importlib
import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from kernels_hub import BundledLayerRepository

_TOLERANCE = 3e-6


def _followers(repository: str, layer: str) -> ModuleType:
    package = BundledLayerRepository(repository, layer_name=layer).resolve("cpu").load()
    native = importlib.import_module(f"{package.__name__}.native")
    native.begin_to_wait()
    return package.followers  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def convolutions() -> ModuleType:
    return _followers("convolution", "Conv2d")


@pytest.fixture(scope="module")
def linears() -> ModuleType:
    return _followers("linear", "Linear")


def _norm(kind: type[nn.BatchNorm2d | nn.BatchNorm1d], channels: int, *, affine: bool = True) -> nn.Module:
    norm = kind(channels, affine=affine).eval()
    assert norm.running_mean is not None and norm.running_var is not None
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.3, 3.0)
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return norm


def _agrees(followers: ModuleType, head: nn.Module, x: Tensor, *after: nn.Module) -> Tensor:
    """The one call agrees with the many; they are counted and all taken."""
    modules = [one.eval() for one in (head, *after)]
    assert followers.count(head, modules[1:]) == len(after)
    assert followers.takes(head, x)
    with torch.no_grad():
        want = x
        for module in modules:
            want = module(want)
        got = followers.forward(head, x, modules[1:])
    assert got is not None and got.shape == want.shape and got.dtype is want.dtype
    assert got.stride() == want.stride()
    difference = (got - want).abs().nan_to_num().max().item()
    assert difference <= _TOLERANCE * max(1.0, want.abs().nan_to_num(posinf=0, neginf=0).max().item())
    assert torch.equal(got.isnan(), want.isnan())
    return got


_ACTIVATIONS = [
    nn.Identity(), nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.SiLU(), nn.Hardswish(), nn.GELU(),
    nn.GELU(approximate="tanh"),
]  # fmt: skip


@pytest.mark.parametrize("activation", _ACTIVATIONS, ids=str)
@pytest.mark.parametrize(
    ("geometry", "shape"),
    [
        ((5, 19, 1), (2, 5, 9, 7)),  # a product
        ((40, 64, 3, 1, 1), (1, 40, 13, 11)),  # one of patches
        ((8, 24, 3, 2, 1), (1, 8, 31, 30)),  # few channels: by lines
        ((48, 48, 3, 1, 1, 1, 48), (1, 48, 14, 14)),  # depthwise, small
        ((20, 20, 5, 2, 2, 1, 20), (2, 20, 37, 41)),  # depthwise, by lines
        ((64, 48, 3, 1, 1), (1, 64, 29, 30)),  # minimal filtering
    ],
)
def test_norm_and_activation(
    convolutions: ModuleType, geometry: tuple[int, ...], shape: tuple[int, ...], activation: nn.Module
) -> None:
    torch.manual_seed(0)
    head = nn.Conv2d(*geometry, bias=geometry[1] % 2 == 0)
    x = torch.randn(shape)
    _agrees(convolutions, head, x, _norm(nn.BatchNorm2d, geometry[1]), copy.deepcopy(activation))
    if not isinstance(activation, nn.Identity):
        _agrees(convolutions, head, x, copy.deepcopy(activation))


def test_a_norm_alone_and_without_weights(convolutions: ModuleType) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 12, 12)
    head = nn.Conv2d(6, 10, 1)
    _agrees(convolutions, head, x, _norm(nn.BatchNorm2d, 10))
    _agrees(
        convolutions,
        head,
        x,
        _norm(nn.BatchNorm2d, 10, affine=False),
        nn.Dropout(0.3),
        nn.ReLU(),
        nn.Identity(),
    )


def test_pixels(convolutions: ModuleType) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 40, 12, 10).contiguous(memory_format=torch.channels_last)
    depthwise = nn.Conv2d(40, 40, 7, padding=3, groups=40)
    _agrees(convolutions, depthwise, x, _norm(nn.BatchNorm2d, 40), nn.Hardswish())
    assert not convolutions.takes(nn.Conv2d(40, 32, 3, padding=1), x)  # on weights that are packed for oneDNN


def test_lines(convolutions: ModuleType) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 16, 90)
    _agrees(convolutions, nn.Conv1d(16, 24, 3, padding=1), x, _norm(nn.BatchNorm1d, 24), nn.ReLU())
    _agrees(convolutions, nn.Conv1d(16, 16, 5, padding=2, groups=16), x, nn.SiLU())


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.ReLU6(), nn.SiLU(), nn.Hardswish(), nn.GELU()], ids=str)
def test_nan_and_infinity_stay(convolutions: ModuleType, activation: nn.Module) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 4, 8, 8)
    x[0, :, 2, 3] = float("nan")
    if not isinstance(activation, nn.GELU):  # of infinity, PyTorch makes NaN where it computes in vectors
        x[0, 1, 5, 5] = float("inf")
    got = _agrees(convolutions, nn.Conv2d(4, 8, 1), x, _norm(nn.BatchNorm2d, 8), activation)
    assert got[0, :, 2, 3].isnan().all()


@pytest.mark.parametrize(
    "activation", [nn.ReLU(), nn.SiLU(), nn.GELU(), nn.GELU(approximate="tanh")], ids=str
)
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_linear(linears: ModuleType, rows: int, activation: nn.Module) -> None:
    torch.manual_seed(0)
    _agrees(linears, nn.Linear(96, 160), torch.randn(rows, 96), activation)
    _agrees(
        linears,
        nn.Linear(96, 160, bias=False),
        torch.randn(2, rows, 96),
        activation,
        nn.Dropout(0.1),
        nn.Identity(),
    )


def test_counts_end_at_what_is_not_computed(convolutions: ModuleType, linears: ModuleType) -> None:
    conv, norm, relu = nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), nn.ReLU()
    for after, count in (
        ([norm, relu, norm], 2),
        ([norm, relu, relu], 2),
        ([relu, norm], 1),
        ([norm, nn.Identity(), relu, nn.Tanh()], 3),
        ([nn.Identity()], 0),
        ([nn.Tanh(), relu], 0),
        ([nn.BatchNorm1d(8)], 0),
        ([nn.SyncBatchNorm(8)], 0),
        ([nn.GroupNorm(2, 8), relu], 0),
    ):
        assert convolutions.count(conv, after) == count, after
    assert convolutions.count(nn.ConvTranspose2d(4, 8, 1), [norm]) == 0
    assert linears.count(nn.Linear(4, 8), [nn.GELU(), nn.Dropout(), nn.Linear(8, 4)]) == 2
    assert linears.count(nn.Linear(4, 8), [nn.Dropout(), nn.GELU()]) == 0
    assert linears.count(nn.Bilinear(4, 4, 8), [nn.GELU()]) == 0


def test_what_a_plain_norm_holds_is_not_called(convolutions: ModuleType) -> None:
    torch.manual_seed(0)
    norm = _norm(nn.BatchNorm2d, 8)
    norm.act = nn.ReLU()
    got = _agrees(convolutions, nn.Conv2d(4, 8, 1), torch.randn(1, 4, 8, 8), norm)
    assert (got < 0).any()


class BatchNormAct2d(nn.BatchNorm2d):
    """As timm has it."""

    def __init__(self, channels: int, act: nn.Module) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("activation", [nn.SiLU(), nn.Identity(), nn.ReLU6()], ids=str)
def test_a_norm_of_timm_has_its_activation(
    convolutions: ModuleType, monkeypatch: pytest.MonkeyPatch, activation: nn.Module
) -> None:
    torch.manual_seed(0)
    norm = BatchNormAct2d(8, activation).eval()
    conv, x = nn.Conv2d(4, 8, 1), torch.randn(1, 4, 8, 8)
    assert convolutions.count(conv, [norm]) == 0  # somebody else's class of that name
    monkeypatch.setitem(sys.modules, "timm.layers.norm_act", sys.modules[__name__])
    monkeypatch.setattr(BatchNormAct2d, "__module__", "timm.layers.norm_act")
    _agrees(convolutions, conv, x, norm, nn.Identity())
    norm.act = nn.Tanh()
    assert convolutions.count(conv, [norm]) == 0


class _Doubled(nn.ReLU):
    pass


@pytest.mark.parametrize(
    "change",
    [
        lambda conv, norm, relu: norm.train(),
        lambda conv, norm, relu: setattr(norm, "running_var", None),
        lambda conv, norm, relu: norm.double(),
        lambda conv, norm, relu: setattr(norm, "weight", nn.Parameter(torch.ones(4))),
        lambda conv, norm, relu: setattr(conv, "padding", "same"),
        lambda conv, norm, relu: setattr(conv, "padding_mode", "circular"),
        lambda conv, norm, relu: conv.double(),
    ],
)
def test_calls_that_are_for_the_modules_are_left(convolutions: ModuleType, change: object) -> None:
    conv, norm, relu = nn.Conv2d(4, 8, 1), _norm(nn.BatchNorm2d, 8), nn.ReLU().eval()
    change(conv, norm, relu)  # type: ignore[operator]
    with torch.no_grad():
        assert convolutions.forward(conv, torch.randn(1, 4, 8, 8), [norm, relu]) is None


def test_a_gradient_leaves_the_call(convolutions: ModuleType) -> None:
    conv, norm = nn.Conv2d(4, 8, 1), _norm(nn.BatchNorm2d, 8)
    assert convolutions.forward(conv, torch.randn(1, 4, 8, 8), [norm]) is None


def test_subclasses_are_not_what_they_are_of(convolutions: ModuleType) -> None:
    conv = nn.Conv2d(4, 8, 1)
    assert convolutions.count(conv, [_Doubled()]) == 0
    with torch.no_grad():
        assert convolutions.forward(conv, torch.randn(1, 4, 8, 8), [_Doubled().eval()]) is None


def test_a_forward_that_somebody_replaced_is_not_computed(
    convolutions: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    conv, norm = nn.Conv2d(4, 8, 1), _norm(nn.BatchNorm2d, 8)
    monkeypatch.setattr(nn.BatchNorm2d, "forward", lambda self, input: input)
    with torch.no_grad():
        assert convolutions.forward(conv, torch.randn(1, 4, 8, 8), [norm]) is None
