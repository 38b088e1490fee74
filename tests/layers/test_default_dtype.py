"""Kernels make float32 memory where a program's default dtype is another: what they write would not fit, or be misread."""

from __future__ import annotations

import ast
import copy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import ConvNextConfig, ViTConfig
from transformers.models.convnext.modeling_convnext import ConvNextLayer
from transformers.models.vit.modeling_vit import ViTLayer

from kernels_hub import Mode, kernelize, load_kernel_mapping, report, use_kernel_mapping
from kernels_hub.calibration import database
from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.tolerances import assert_close

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

DTYPES = [torch.bfloat16, torch.float64]
FACTORIES = {"empty", "zeros", "ones", "full"}
IMAGE = (2, 16, 20, 20)
_VIT = ViTConfig(hidden_size=32, num_attention_heads=2, intermediate_size=64, attn_implementation="sdpa")
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1 x 1 convolution": (lambda: nn.Conv2d(16, 32, 1), IMAGE),
    "3 x 3 convolution": (lambda: nn.Conv2d(16, 32, 3, padding=1), IMAGE),
    "depthwise convolution": (lambda: nn.Conv2d(16, 16, 5, padding=2, groups=16), IMAGE),
    "convolution of lines": (lambda: nn.Conv1d(16, 32, 3), (2, 16, 40)),
    "convolution and norm": (
        lambda: nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()), IMAGE
    ),
    "encoder": (lambda: ViTLayer(_VIT), (2, 9, 32)),
    "ConvNeXt": (lambda: ConvNextLayer(ConvNextConfig(), 16), IMAGE),
    "pooling": (lambda: nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2)), IMAGE),
    "linear": (lambda: nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 64)), (70, 256)),
    "norm": (lambda: nn.RMSNorm(256), (70, 256)),
}  # fmt: skip


@pytest.fixture(params=DTYPES, ids=str)
def other_default(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Makes another dtype the default, until the test ends."""
    before = torch.get_default_dtype()
    yield lambda: torch.set_default_dtype(request.param)
    torch.set_default_dtype(before)


@needs_compiler
@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str, other_default: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", database.IGNORE)
    make, shape = MODULES[name]
    original = make().eval()
    model, x = nn.Sequential(copy.deepcopy(original)), torch.randn(shape)
    with torch.inference_mode(), use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        expected = original(x)
        other_default()  # before anything is packed
        kernelize(model, mode=Mode.INFERENCE, wait=True)
        assert report(model).swapped
        for image in (x, x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x):
            found = model(image)
            assert found.dtype is torch.float32
            assert_close(found, expected, factor=64)


@needs_compiler
def test_gradients_of_norms_and_losses(other_default: Callable[[], None]) -> None:
    norms, losses = (
        import_kernel(source_variant(bundled_folder() / name, "cpu")) for name in ("normalization", "loss")
    )
    x, weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((9, 64), (64,), (64,)))
    target = torch.randint(0, 64, (9,))

    def gradients(norm: Callable[..., Tensor], loss: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss(norm(x, weight, bias), target), (x, weight, bias))

    expected = gradients(lambda x, w, b: F.layer_norm(x, (64,), w, b, 1e-5), F.cross_entropy)
    other_default()
    found = gradients(lambda x, w, b: norms.layer_norm(x, w, b, 1e-5), losses.cross_entropy)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is torch.float32
        assert_close(one, other, factor=64)


def test_no_memory_is_made_of_the_default_dtype() -> None:
    """In the sources of all layers, and of what they share with compiled programs."""
    root = Path(bundled_folder())
    sources = [path for path in root.rglob("*.py") if path.name not in ("benchmark.py", "direct.py")]
    compiler = root.resolve().parent / "compiler"
    sources += [path for name in ("runtime", "native") for path in (compiler / name).glob("*.py")]
    assert len(sources) > 100
    without = [
        f"{path}:{node.lineno}"
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in FACTORIES
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch"
        and "dtype" not in {keyword.arg for keyword in node.keywords}
    ]
    assert not without
