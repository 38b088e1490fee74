"""Layers in transforms of torch.func, traces of torch.jit, and of nested tensors: PyTorch's numbers, without errors."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, jvp, vmap
from transformers import LlamaConfig
from transformers.activations import QuickGELUActivation
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, apply_rotary_pos_emb

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.tolerances import assert_close
from tests.warm_process import run_script

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

WIDTH = 384
Function = Callable[[Tensor], Tensor]


class Turned(nn.Module):
    """Rotary embeddings of heads of 64."""

    def forward(self, x: Tensor) -> Tensor:
        return self.turned(x, apply_rotary_pos_emb)

    def turned(self, x: Tensor, rotate: Callable[..., Any]) -> Tensor:
        heads = x.unflatten(-1, (-1, 64)).transpose(-3, -2)
        angles = torch.linspace(0, 3, x.shape[-2] * 64).view(1, -1, 64)
        return torch.cat(rotate(heads, heads, angles.cos(), angles.sin()), dim=-1)


MAKE: dict[str, tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear": ("linear", lambda: nn.Linear(WIDTH, 640), (2, 32, WIDTH)),
    "GatedMLP": (
        "mlp",
        lambda: LlamaMLP(LlamaConfig(hidden_size=WIDTH, intermediate_size=512)),
        (2, 32, WIDTH),
    ),
    "RMSNorm": ("normalization", lambda: LlamaRMSNorm(WIDTH), (2, 32, WIDTH)),
    "TorchRMSNorm": ("normalization", lambda: nn.RMSNorm(WIDTH), (2, 32, WIDTH)),
    "LayerNorm": ("normalization", lambda: nn.LayerNorm(WIDTH), (2, 32, WIDTH)),
    "SiLU": ("activation", nn.SiLU, (2, 64, WIDTH)),
    "GELU": ("activation", nn.GELU, (2, 64, WIDTH)),
    "QuickGELU": ("activation", QuickGELUActivation, (2, 64, WIDTH)),
    "Conv2d": ("convolution", lambda: nn.Conv2d(64, 128, 3), (2, 64, 20, 20)),
    "MaxPool2d": ("pooling", lambda: nn.MaxPool2d(3, 2, 1), (2, 32, WIDTH)),
    "AvgPool2d": ("pooling", lambda: nn.AvgPool2d(3, 2, 1), (2, 32, WIDTH)),
    "rotary_pos_emb": ("rotary", Turned, (2, 32, WIDTH)),
}
TRANSFORMS: dict[str, Callable[[Function, Tensor, Tensor], Any]] = {
    "grad": lambda f, x, t: grad(lambda x: (f(x) * f(t).detach()).sum())(x),
    "grad of each example": lambda f, x, t: vmap(grad(lambda x: f(x[None]).sin().sum()))(x),
    "vmap": lambda f, x, t: vmap(f)(torch.stack((x, t))),
    "jvp": lambda f, x, t: jvp(f, (x,), (t,))[1],
    "jacrev": lambda f, x, t: jacrev(lambda scale: f(x + scale * t).sin().mean())(torch.tensor(1.5)),
    "jvp of grad": lambda f, x, t: jvp(grad(lambda x: f(x).sin().sum()), (x,), (t,))[1],
}


def pair(name: str) -> tuple[nn.Module, nn.Module]:
    """A module, and one that runs the kernel on the same weights."""
    repository, make, _ = MAKE[name]
    package = import_kernel(source_variant(bundled_folder() / repository, "cpu"))
    torch.manual_seed(0)
    module = make().eval()
    torch.manual_seed(0)
    kernel = make().eval()
    if name == "rotary_pos_emb":
        kernel.forward = lambda x: kernel.turned(x, package.rotation.apply_rotary_pos_emb)  # type: ignore[operator]
    else:
        layer = getattr(package.layers, name)
        kernel.forward = lambda x: layer.forward(kernel, x)
    return module.requires_grad_(False), kernel.requires_grad_(False)


def inputs(name: str) -> tuple[Tensor, Tensor]:
    shape = MAKE[name][2]
    memory = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    first, second = (
        torch.randn(shape, generator=torch.Generator().manual_seed(seed)).contiguous(memory_format=memory)
        for seed in (1, 2)
    )
    return first, second


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", MAKE)
def test_transforms_of_inputs(name: str, transform: str) -> None:
    module, kernel = pair(name)
    expected, found = (TRANSFORMS[transform](one, *inputs(name)) for one in (module, kernel))
    assert float(expected.abs().max()) > 0.0
    assert_close(found, expected, factor=64)


@pytest.mark.parametrize("name", ["Linear", "GatedMLP", "RMSNorm", "Conv2d"])
def test_gradients_of_weights_for_each_example(name: str) -> None:
    module, kernel = pair(name)
    weights = {key: one.detach() for key, one in module.named_parameters()}
    x, _ = inputs(name)

    def gradients(one: nn.Module) -> dict[str, Tensor]:
        def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(one, weights, (x[None],)).square().mean()

        found: dict[str, Tensor] = vmap(grad(loss), in_dims=(None, 0))(weights, x)
        return found

    expected, found = gradients(module), gradients(kernel)
    assert expected.keys() == found.keys()
    for key, one in expected.items():
        assert_close(found[key], one, factor=64)


def test_the_first_call_may_be_traced() -> None:
    """In a new process, where nothing that is asked once was asked before."""
    program = """if True:
        import torch
        from kernels_hub.repository.bundled import bundled_folder, source_variant
        from kernels_hub.repository.load import import_kernel

        layers = import_kernel(source_variant(bundled_folder() / "linear", "cpu")).layers
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            linear = torch.nn.Linear(8, 8, dtype=dtype).requires_grad_(False)
            linear.forward = lambda x, linear=linear: layers.Linear.forward(linear, x)
            x = torch.ones(2, 8, dtype=dtype)
            assert torch.jit.trace(linear, (x,))(x).dtype is dtype
    """
    done = run_script(program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["Linear", "GatedMLP", "RMSNorm", "TorchRMSNorm", "LayerNorm", "Conv2d"])
def test_one_weight_of_an_ensemble(name: str) -> None:
    """torch.vmap over a weight alone: the input, and the other weights, are the same for each."""
    module, kernel = pair(name)
    x, _ = inputs(name)
    for key, weight in module.named_parameters():
        several = torch.stack((weight, weight * 2, -weight))
        expected, found = (
            vmap(lambda one, each=each, key=key: functional_call(each, {key: one}, (x,)))(several)
            for each in (module, kernel)
        )
        assert_close(found, expected, factor=64)


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", MAKE)
def test_traces_of_torch_jit_hold_pytorch_operators(name: str) -> None:
    """torch.jit.trace checks a trace without gradients; another process that loads it has no other operators."""
    module, kernel = pair(name)
    kernel.requires_grad_(True)
    x, other = inputs(name)
    traced = torch.jit.trace(kernel, (x,))
    kinds = {node.kind().partition("::")[0] for node in traced.inlined_graph.nodes()}
    assert kinds <= {"aten", "prim"}
    assert_close(traced(other), module(other), factor=64)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", ["Linear", "SiLU", "GELU"])
def test_nested_tensors(name: str) -> None:
    """Such as nn.TransformerEncoder makes of its input where that is padded."""
    module, kernel = pair(name)
    nested = torch.nested.nested_tensor([torch.randn(rows, WIDTH) for rows in (64, 100)])
    found, expected = kernel(nested), module(nested)
    assert found.is_nested
    for one, other in zip(found.unbind(), expected.unbind(), strict=True):
        assert_close(one, other, factor=64)


@pytest.mark.parametrize("name", ["Linear", "GELU"])
def test_tensors_in_a_layout_of_onednn(name: str) -> None:
    module, kernel = pair(name)
    x = inputs(name)[0].to_mkldnn()
    assert_close(kernel(x).to_dense(), module(x).to_dense(), factor=64)
