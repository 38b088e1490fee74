"""The Triton variant of `layers/activation`, against the functions that it replaces, in float64."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch.nn import functional

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.combinations import every_value
from tests.tolerances import assert_close

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KINDS = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


def packed(x: torch.Tensor, kind: str) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return KINDS[kind](gate) * up


# name -> (number of inputs, the original)
FUNCTIONS = {
    "activation": (1, lambda x, kind: KINDS[kind](x)),
    "activation_and_mul": (1, packed),
    "activation_mul": (2, lambda gate, up, kind: KINDS[kind](gate) * up),
}
SHAPES = ((3, 38), (2, 3, 130), (1, 2), (2500, 2), (0, 4), (5, 0), (3, 1100))
LAYOUTS = {
    "first columns": lambda x: torch.cat([x, x], dim=-1)[..., : x.shape[-1]],
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "every other column": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
    "one of each row": lambda x: x[:1].expand(x.shape),
}


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / "activation", "cuda"))


@pytest.fixture(autouse=True)
def no_size_is_small(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small inputs would go to PyTorch's own operators, and the tests with them."""
    monkeypatch.setattr(package.functional.kernels, "SMALL", ((0, 0),) * 4)
    monkeypatch.setattr(package.functional.kernels, "SMALL_GATED", (0, 0))


def random(shape: tuple[int, ...], dtype: torch.dtype, device: str, seed: int = 0) -> torch.Tensor:
    return (3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(device, dtype)


def check(package: ModuleType, name: str, kind: str, inputs: list[torch.Tensor]) -> None:
    inputs = [input.detach().requires_grad_() for input in inputs]
    wide = [input.detach().double().requires_grad_() for input in inputs]
    actual, reference = getattr(package, name)(*inputs, kind), FUNCTIONS[name][1](*wide, kind)
    assert actual.dtype == inputs[0].dtype
    assert_close(actual, reference)
    grad = random(tuple(reference.shape), actual.dtype, str(actual.device), seed=5)
    actual.backward(grad)
    reference.backward(grad.double())
    for input, expected in zip(inputs, wide, strict=True):
        assert_close(input.grad, expected.grad)


@every_value(name=FUNCTIONS, kind=KINDS, shape=SHAPES, dtype=DTYPES)
def test_forward_and_backward(package, device, name, kind, shape, dtype):
    check(package, name, kind, [random(shape, dtype, device, seed) for seed in range(FUNCTIONS[name][0])])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_layouts(package, device, name, layout):
    inputs = [random((5, 3, 40), torch.float32, device, seed) for seed in range(FUNCTIONS[name][0])]
    check(package, name, "gelu", [LAYOUTS[layout](input) for input in inputs])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", ((4096, 4096), (3, 1000, 11008), (1021, 1031 * 2)), ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_large(package, device, name, kind, shape, dtype):
    check(package, name, kind, [random(shape, dtype, device, seed) for seed in range(FUNCTIONS[name][0])])


@pytest.mark.gpu
def test_more_elements_than_32_bits_count(package, device):
    x = torch.ones(2**31 + 2**12, dtype=torch.bfloat16, device=device)
    y = package.silu(x)
    assert torch.equal(y[-4096:], functional.silu(x[-4096:]))


@pytest.mark.parametrize("kind", KINDS)
def test_special_values(package, device, kind):
    inf, nan, limits = float("inf"), float("nan"), torch.finfo(torch.float32)
    x = [inf, nan, 0.0, limits.max, limits.min, 1e4, -1e4, 100, -100]
    y = [inf, nan, 0.0, limits.max, 0.0, 1e4, 0.0, 100, 0.0]
    slopes = [nan, nan, 0.5, 1, 0, 1, 0, 1, 0]
    input = torch.tensor(x, device=device, requires_grad=True)
    output = package.activation(input, kind)
    (grad,) = torch.autograd.grad(output.sum(), input)
    for actual, expected in ((output, y), (grad, slopes)):
        torch.testing.assert_close(actual.cpu(), torch.tensor(expected), equal_nan=True, rtol=0, atol=1e-30)


def test_other_dtypes_run_in_pytorch(package, device):
    check(package, "activation", "gelu", [random((3, 38), torch.float64, device)])


@pytest.mark.parametrize("layer", ("SiLU", "SiluAndMul"))
def test_compiled(package, device, layer):
    original = torch.nn.SiLU()
    forward = getattr(package.layers, layer).forward
    compiled = torch.compile(lambda x: forward(original, x), fullgraph=True, backend="aot_eager")
    x = random((3, 38), torch.float32, device).requires_grad_()
    wide = x.detach().double().requires_grad_()
    reference = packed(wide, "silu") if layer == "SiluAndMul" else functional.silu(wide)
    actual = compiled(x)
    assert_close(actual, reference)
    actual.sum().backward()
    reference.sum().backward()
    assert_close(x.grad, wide.grad)


def test_tiles(package):
    """A tile has 1024 or 2048 elements, of which few lie beyond the columns, however wide the rows are."""
    for rows in (1, 7, 4096):
        for columns in (1, 2, 16, 37, 128, 1000, 1376, 3072, 11008, 1 << 20):
            block_rows, block_columns = package.functional.kernels.tile_of(rows, columns)
            assert block_rows * block_columns in (1024, 2048)
            padded = -(-columns // block_columns) * block_columns
            assert padded <= columns * 9 / 8 or block_columns == 16
