"""Kernels called past the dispatcher: only where nobody watches operators, and with the same numbers."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.tolerances import assert_close

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

LINEAR, MLP, NORM, POOLING, ROTARY = (
    import_kernel(source_variant(bundled_folder() / name, "cpu"))
    for name in ("linear", "mlp", "normalization", "pooling", "rotary")
)
WIDTH = 384


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, 640, bias=False), nn.Linear(WIDTH, 640, bias=False)
        self.down_proj, self.act_fn = nn.Linear(640, WIDTH, bias=False), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Turned(nn.Module):
    """Rotary embeddings of heads of 64, as queries and as keys."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.linspace(0, 3, 7 * 64).view(1, 7, 64)
        self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, x: Tensor, rotate: Callable[..., Any] = apply_rotary_pos_emb) -> Tensor:
        heads = x.unflatten(-1, (-1, 64)).transpose(1, 2)
        cos, sin = (one.to(x.dtype) for one in (self.cos, self.sin))
        q, k = rotate(heads, heads[:, :2], cos, sin)
        return torch.cat((q, k), dim=1)


class WithItself(nn.Module):
    """A norm of two inputs, which are one."""

    def __init__(self, norm: nn.Module, forward: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.norm = norm
        self.original = forward or type(norm).forward

    def forward(self, x: Tensor, forward: Callable[..., Any] | None = None) -> Tensor:
        result = (forward or self.original)(self.norm, x, x)
        return torch.cat(result) if isinstance(result, tuple) else result


def sum_and_norm(norm: nn.Module, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    return norm(x + residual), x + residual


CASES: dict[str, tuple[ModuleType, Callable[[], nn.Module], str]] = {
    "Linear": (LINEAR, lambda: nn.Linear(WIDTH, 640), "linear"),
    "GatedMLP": (MLP, Gated, "gated_mlp"),
    "RMSNorm": (NORM, lambda: LlamaRMSNorm(WIDTH), "rms_norm_inference"),
    "LayerNorm": (NORM, lambda: nn.LayerNorm(WIDTH), "layer_norm_inference"),
    "AddRMSNorm": (NORM, lambda: WithItself(LlamaRMSNorm(WIDTH), sum_and_norm), "add_rms_norm_inference"),
    "AddLayerNorm": (NORM, lambda: WithItself(nn.LayerNorm(WIDTH), sum_and_norm), "add_layer_norm_inference"),
    "RMSNormGated": (NORM, lambda: WithItself(Qwen3NextRMSNormGated(WIDTH)), "rms_norm_gated_inference"),
    "MaxPool2d": (POOLING, lambda: nn.MaxPool2d(3, 2, 1), "max_pool2d"),
    "AvgPool2d": (POOLING, lambda: nn.AvgPool2d(3, 2, 1), "avg_pool2d"),
    "rotary": (ROTARY, Turned, "rotate"),
}


class Case:
    """A module, its kernel's forward, and the name of the operator."""

    def __init__(self, name: str, package: ModuleType | None = None) -> None:
        cpu, make, operator = CASES[name]
        package = package or cpu
        torch.manual_seed(0)
        self.module = make().eval().requires_grad_(False)
        self.operator = f"{package.__name__.replace('.', '_')}::{operator}"
        self.direct: ModuleType = sys.modules[package.__name__ + ".direct"]
        forward = (
            package.rotation.apply_rotary_pos_emb
            if name == "rotary"
            else getattr(package.layers, name).forward
        )
        takes_it = isinstance(self.module, (Turned, WithItself))
        self._forward = (lambda module, x: module(x, forward)) if takes_it else forward

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = self._forward(self.module, x)
        return result


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


class Operators(TorchDispatchMode):
    """The names of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """The same, of functions."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, torch._ops.OpOverload):
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def profiled(run: Callable[[], object]) -> set[str]:
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        run()
    return {event.name for event in recorded.events()}


@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
def test_a_plain_call_is_direct(
    case: Case, mode: Callable[[], AbstractContextManager[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(1, 7, WIDTH)
    expected = case.module(x)
    with mode():
        direct = case(x)
        names = profiled(lambda: case(x))
        assert case.operator in names
        monkeypatch.setattr(case.direct, "_has_profiler", lambda: False)
        assert case.operator not in profiled(lambda: case(x)), "the operator runs only for the profiler"
    assert_close(direct, expected, factor=2)


def test_what_is_plain_does_not_depend_on_who_asks_first() -> None:
    direct = sys.modules[f"{LINEAR.__name__}.direct"]
    with torch.inference_mode():
        within = direct._plain_keys.__wrapped__("cpu")
    assert within == direct._plain_keys.__wrapped__("cpu")
    assert len(within) == 2  # those of inference tensors are others


@pytest.mark.parametrize("kind", [Operators, Functions])
def test_modes_see_the_operator(case: Case, kind: type[Any]) -> None:
    x = torch.randn(1, 7, WIDTH)
    with kind() as seen:
        result = case(x)
    assert case.operator in seen.names
    assert_close(result, case.module(x), factor=2)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit", "ignore::torch.jit.TracerWarning"
)  # deprecated, by each release otherwise
def test_traces_hold_the_operator(case: Case) -> None:
    x = torch.randn(1, 7, WIDTH)
    graph = make_fx(lambda x: case(x))(x)
    assert case.operator in {getattr(node.target, "name", str)() for node in graph.graph.nodes}
    traced = torch.jit.trace(lambda x: case(x), (x,), check_trace=False)
    other = torch.randn(1, 7, WIDTH)
    for run in (graph, traced):
        assert_close(run(other), case.module(other), factor=2)


def test_transforms_are_seen(case: Case) -> None:
    seen: list[bool] = []

    def look(x: Tensor) -> Tensor:
        seen.append(case.direct.is_observed())
        return x * 2

    torch.func.vmap(look)(torch.randn(3, 2))
    torch.func.grad(lambda x: look(x).sum())(torch.randn(3))
    torch.func.jvp(look, (torch.randn(3),), (torch.randn(3),))
    assert seen == [True, True, True]
    assert not case.direct.is_observed()


def test_tensors_that_are_no_plain_memory(case: Case) -> None:
    """The imaginary part of a conjugate is memory with a bit that says: negate."""
    whole = torch.randn(1, 7, WIDTH, dtype=torch.complex64)
    for x in (whole.conj().imag, torch._neg_view(torch.randn(1, 7, WIDTH))):
        assert x.is_neg()
        assert not case.direct.is_plain(x)
        assert_close(case(x), case.module(x.resolve_neg()), factor=2)
    assert case.direct.is_plain(torch.randn(2)) and case.direct.is_plain(nn.Parameter(torch.randn(2)))
    assert not case.direct.is_plain(torch.randn(2, device="meta"))
    assert not case.direct.is_plain(torch.eye(2).to_sparse())


def test_gradients(case: Case) -> None:
    x = torch.randn(1, 7, WIDTH, requires_grad=True)
    probe = torch.randn_like(case(x))
    (case(x) * probe).sum().backward()
    assert x.grad is not None
    expected = x.detach().clone().requires_grad_()
    (case.module(expected) * probe).sum().backward()
    assert_close(x.grad, expected.grad, factor=8)


def test_autocast(case: Case) -> None:
    x = torch.randn(1, 7, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        assert case.direct.is_observed()
        assert case(x).dtype is case.module(x).dtype
    assert not case.direct.is_observed()


def test_forward_mode(case: Case) -> None:
    x, tangent = torch.randn(1, 7, WIDTH), torch.randn(1, 7, WIDTH)
    found = torch.func.jvp(lambda x: case(x), (x,), (tangent,))[1]
    assert_close(found, torch.func.jvp(lambda x: case.module(x), (x,), (tangent,))[1], factor=8)


@pytest.mark.parametrize(
    "name", ["RMSNorm", "LayerNorm", "AddRMSNorm", "AddLayerNorm", "RMSNormGated", "rotary"]
)
def test_memory_of_another_device_goes_through_the_operator(name: str) -> None:
    """A variant for GPUs, called with tensors of the CPU: as where a kernelized model is moved."""
    pytest.importorskip("triton", reason="needs Triton")
    repository = "rotary" if name == "rotary" else "normalization"
    package = import_kernel(source_variant(bundled_folder() / repository, "cuda"))
    case, x = Case(name, package), torch.randn(1, 7, WIDTH)
    with torch.inference_mode():
        assert case.operator in profiled(lambda: case(x))
        assert_close(case(x), case.module(x), factor=2)


def test_a_release_of_pytorch_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operator is called."""
    source = Path(sys.modules[LINEAR.__name__ + ".direct"].__file__ or "")
    monkeypatch.delattr(torch._C, "_len_torch_function_stack")
    scope: dict[str, Any] = {"__name__": "direct_of_another_release"}
    exec(compile(source.read_text(), str(source), "exec"), scope)
    assert scope["is_observed"]() and not scope["is_plain"](torch.ones(2))
