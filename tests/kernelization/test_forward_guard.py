"""What changes around a kernelized model after `kernelize`: replaced forwards and functions, modes, subclasses."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernels_hub import Mode, kernelize, load_kernel_mapping, report, use_kernel_mapping

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
modeling = pytest.importorskip("transformers.models.llama.modeling_llama")

TOKENS = torch.arange(12)[None]


@pytest.fixture(autouse=True)
def default_mapping(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The default mapping, where kernels run for every shape."""
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", "ignore")
    with use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        yield


@pytest.fixture(params=["whole blocks", "functions"])
def models(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module]:
    """A kernelized Llama and the original."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=100,
    )  # fmt: skip
    original = transformers.LlamaForCausalLM(config).eval()
    model = copy.deepcopy(original)
    # No block of attention has a kernel for training.
    kernelize(model, mode=Mode.INFERENCE if request.param == "whole blocks" else Mode.TRAINING, wait=True)
    names = [row.layer_name for row in report(model).swapped]
    assert ("RotaryAttention" in names) == (request.param == "whole blocks")
    assert "rotary_pos_emb" in names or request.param == "whole blocks"
    return model, original


def assert_equal(models: tuple[nn.Module, nn.Module]) -> torch.Tensor:
    with torch.no_grad():
        actual, expected = (model(TOKENS).logits for model in models)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    return expected


def twice(function):
    def replaced(*args, **kwargs):
        found = function(*args, **kwargs)
        return (found[0] * 2, *found[1:]) if isinstance(found, tuple) else found * 2

    return replaced


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (modeling.LlamaRMSNorm, "forward"),
        (modeling.LlamaMLP, "forward"),
        (modeling.LlamaAttention, "forward"),
        (nn.Linear, "forward"),
        (modeling, "apply_rotary_pos_emb"),
        (modeling, "rotate_half"),
        (modeling, "repeat_kv"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_is_replaced_later_is_seen(models, monkeypatch: pytest.MonkeyPatch, of: object, name: str):
    before = assert_equal(models)
    monkeypatch.setattr(of, name, twice(getattr(of, name)))
    after = assert_equal(models)
    assert name == "repeat_kv" or not torch.equal(before, after)  # that one is eager attention's
    monkeypatch.undo()
    torch.testing.assert_close(assert_equal(models), before)


def test_globals_are_those_of_the_module(models, monkeypatch: pytest.MonkeyPatch):
    """Nothing of the module's namespace changes its meaning, and what a forward reads there is up to date."""
    assert modeling.apply_rotary_pos_emb.__module__ == modeling.__name__
    before = assert_equal(models)
    chosen = modeling.ALL_ATTENTION_FUNCTIONS.get_interface

    class Halved:
        @staticmethod
        def get_interface(*args):
            function = chosen(*args)
            return lambda *args, **kwargs: (function(*args, **kwargs)[0] / 2, None)

    if any(row.layer_name == "rotary_pos_emb" for row in report(models[0]).swapped):
        monkeypatch.setattr(modeling, "ALL_ATTENTION_FUNCTIONS", Halved)
        assert not torch.equal(assert_equal(models), before)


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found * 2 if func in (F.linear, F.silu) else found


class DoublingProducts(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found * 2 if func in (torch.ops.aten.mm.default, torch.ops.aten.rsqrt.default) else found


@pytest.mark.parametrize("mode", [Doubling, DoublingProducts])
def test_modes_see_the_calls_of_the_original(models, mode):
    before = assert_equal(models)
    with mode():
        assert not torch.equal(assert_equal(models), before)
    torch.testing.assert_close(assert_equal(models), before)


def test_a_default_device_keeps_kernels():
    model = kernelize(nn.Sequential(nn.SiLU()), mode=Mode.INFERENCE, device="cpu", wait=True)
    kernel = model[0].forward.func.__globals__["_kernel"]
    calls = []

    def counting(*args):
        calls.append(args)
        return kernel(*args)

    model[0].forward.func.__globals__["_kernel"] = counting
    try:
        with torch.device("cpu"):
            model(torch.ones(4))
        assert len(calls) == 1
        with Doubling():
            found = model(torch.ones(4))
        assert torch.equal(found, 2 * F.silu(torch.ones(4)))
        assert len(calls) == 1
    finally:
        model[0].forward.func.__globals__["_kernel"] = kernel


class Loud(torch.Tensor):
    """Says what was called with it."""

    called: list[object] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.called.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("size", [8, 1 << 17])
def test_subclasses_see_the_calls_of_the_original(size: int):
    model = kernelize(nn.Sequential(nn.SiLU()), mode=Mode.INFERENCE, device="cpu", wait=True)
    Loud.called.clear()
    found = model(torch.randn(size).as_subclass(Loud))
    assert type(found) is Loud and F.silu in Loud.called


def test_compiled_models_see_a_replaced_forward():
    class Norm(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    from kernels_hub.kernelization.forward_guard import guarded_forward

    def kernel(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x + x

    module = Norm()
    module.forward = types.MethodType(guarded_forward(kernel, Norm), module)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    Norm.forward = lambda self, x: x * 7
    assert compiled(torch.ones(2)).tolist() == [7.0, 7.0]


def test_names_of_attributes_are_left_alone():
    from kernels_hub.kernelization.function_places import attribute_names, with_names

    def forward(self, x):
        return [torch.abs(y) for y in self.abs(x)] + [len(x)]

    assert attribute_names(forward) == {"abs"}
    code = with_names(forward.__code__, {"len": "other_len"})
    renamed = types.FunctionType(code, {**globals(), "other_len": lambda _: 5}, closure=forward.__closure__)
    assert renamed(types.SimpleNamespace(abs=lambda x: x), torch.zeros(0)) == [5]
