"""Conv1D of `layers/linear` on the CPU, against transformers' own in float64."""

from __future__ import annotations

import copy
import sys
import types
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.layers.checked_operators import opcheck
from tests.layers.linear_cases import random
from tests.tolerances import assert_close

PACKAGE: ModuleType = import_kernel(source_variant(bundled_folder() / "linear", "cpu"))
CACHE = PACKAGE.weights.cache
FORWARD = PACKAGE.layers.Conv1D.forward

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SHAPES = [((3, 37), 130), ((64, 256), 512), ((2, 33, 193), 321), ((1, 1024), 1024), ((192,), 8192)]


@pytest.fixture(autouse=True)
def pack_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack for smaller products than pays, so that shapes here are small; the smallest stay on torch.addmm."""
    monkeypatch.setattr(
        sys.modules[PACKAGE.__name__ + ".packing"].products,
        "pays",
        lambda x, weight: weight.dtype in CACHE.dtypes() and x.numel() * weight.shape[0] >= 16_384,
    )


def layer(depth: int, columns: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    module = Conv1D(columns, depth)
    nn.init.normal_(module.bias)
    return module.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, columns", SHAPES)
def test_forward(dtype: torch.dtype, shape: tuple[int, ...], columns: int) -> None:
    module, x = layer(shape[-1], columns, dtype), random(*shape, dtype=dtype)
    exact = copy.deepcopy(module).double()(x.double())
    with torch.no_grad():
        result = FORWARD(module, x)
    assert result.dtype is dtype and result.shape == exact.shape and result.is_contiguous()
    assert_close(result, exact)
    one_row = module.weight.shape[0] == x.numel()
    packs = dtype in CACHE.dtypes() and shape != (3, 37) and not (one_row and dtype is torch.float32)
    assert (CACHE.entry_of(module.weight) is not None) == packs


def test_layouts_of_the_input() -> None:
    module, wide = layer(256, 512), random(64, 4, 512)
    for x in (wide[..., ::2], wide[..., 100:356], wide[..., :256].transpose(0, 1), random(256, 64).t()):
        with torch.no_grad():
            assert_close(FORWARD(module, x), x.double() @ module.weight.double() + module.bias.double())


@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 64)])
def test_empty(shape: tuple[int, ...]) -> None:
    with torch.no_grad():
        assert FORWARD(layer(64, 96), torch.empty(shape)).shape == (*shape[:-1], 96)


def test_gradients_are_the_originals() -> None:
    module, x = layer(256, 512), random(64, 256).requires_grad_()
    other = copy.deepcopy(module)
    FORWARD(module, x).square().mean().backward()
    expected = x.detach().clone().requires_grad_()
    other(expected).square().mean().backward()
    assert torch.equal(x.grad, expected.grad)
    assert torch.equal(module.weight.grad, other.weight.grad)
    assert CACHE.entry_of(module.weight) is None, "training packs nothing"


def test_an_edit_is_seen_at_once() -> None:
    module, x = layer(256, 512), random(64, 256)
    with torch.no_grad():
        before = FORWARD(module, x)
        module.weight[3, 5] += 2
        after = FORWARD(module, x)
    assert_close(after, x.double() @ module.weight.double() + module.bias.double())
    assert not torch.allclose(before, after)


def test_a_weight_shared_with_a_linear_layer() -> None:
    """A square weight that is read both ways: only one of the two is packed, and both are right."""
    module, x = layer(256, 256), random(64, 256)
    linear = nn.Linear(256, 256)
    linear.weight = module.weight
    with torch.no_grad():
        for _ in range(2):
            assert_close(FORWARD(module, x), x.double() @ module.weight.double() + module.bias.double())
            result = PACKAGE.layers.Linear.forward(linear, x)
            assert_close(result, x.double() @ module.weight.double().t() + linear.bias.double())


def test_the_protocol_of_weights() -> None:
    module, x = layer(512, 512), random(64, 512)
    weights = PACKAGE.weights
    weights.prepare(module)
    packed = weights.packed_nbytes(module)
    assert packed >= module.weight.nbytes
    weights.free_originals(module)
    assert type(module.weight) is nn.Parameter, "what is packed transposed stands for nothing else"
    with torch.no_grad():
        module.weight.data[3, 5] += 2
        weights.refresh(module)
        assert_close(FORWARD(module, x), x.double() @ module.weight.double() + module.bias.double())
    weights.release(module)
    assert weights.packed_nbytes(module) == 0


def test_autocast_and_subclasses() -> None:
    class Scaled(Tensor):
        pass

    module, x = layer(256, 512), random(64, 256)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert FORWARD(module, x).dtype is torch.bfloat16
    with torch.no_grad():
        assert type(FORWARD(module, x.as_subclass(Scaled))) is Scaled


def test_compile() -> None:
    module, x = layer(256, 512), random(2, 33, 256)
    exact = x.double() @ module.weight.double() + module.bias.double()
    module.forward = types.MethodType(FORWARD, module)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert_close(compiled(x), exact)
    compiled(x).sum().backward()
    assert module.weight.grad is not None


def test_opcheck() -> None:
    operator = getattr(torch.ops, PACKAGE.__name__).transposed_linear.default
    weight = nn.Parameter(random(256, 512), requires_grad=False)
    opcheck(operator, (random(64, 256), weight, random(512)))
    opcheck(operator, (random(2, 3), random(3, 4), random(4)))
