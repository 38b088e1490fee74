"""Emitted layers in the place of what they were made of: numbers, weights that change, calls that do not fit."""

from __future__ import annotations

import copy
import functools
import gc
import logging
import os
import pickle
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub import (
    LocalLayerRepository,
    Mode,
    get_local_kernel,
    kernelize,
    replace_kernel_forward_from_hub,
    report,
    restore,
    use_kernel_mapping,
)
from kernels_hub.compiler.export import emit_layer as emit
from kernels_hub.compiler.export.emit_layer import Emitted
from kernels_hub.compiler.runtime.errors import Misfit
from kernels_hub.compiler.runtime.module_guard import ModuleGuard
from kernels_hub.compiler.runtime.modules import check_module
from kernels_hub.compiler.runtime.parts import Module
from kernels_hub.repository.build import build_repository
from tests.compiler.export.emitted_layers import GatedMLP, Normed, bert, gated_mlp, llama, normed, token_ids
from tests.tolerances import assert_close
from tests.warm_process import run_script

replace_kernel_forward_from_hub(GatedMLP, "GatedMLP")
replace_kernel_forward_from_hub(Normed, "Normed")


def swap(module: nn.Module, emitted: Emitted, folder: Any = None, *, alone: bool = True) -> Any:
    """Put the layer into the module; gives the layer's LAYER. alone: nothing else there may have a tag."""
    layer = LocalLayerRepository(folder or emitted.path, layer_name=emitted.layer_name)
    with use_kernel_mapping({emitted.layer_name: {"cpu": layer}}, inherit_mapping=False):
        kernelize(module, mode=Mode.INFERENCE, device="cpu", use_fallback=not alone)
    assert any(row.swapped for row in report(module).rows)
    program = get_local_kernel(folder or emitted.path, backend="cpu").program.LAYER
    program.fallbacks.clear()
    return program


@contextmanager
def swapped(module: nn.Module, emitted: Emitted, folder: Any = None, *, alone: bool = True) -> Iterator[Any]:
    """The module with the layer in it; gives the layer's LAYER."""
    program = swap(module, emitted, folder, alone=alone)
    try:
        yield program
    finally:
        restore(module)
        program.fallbacks.clear()


@torch.no_grad()
def compare(module: nn.Module, program: Any, *args: Any, **kwargs: Any) -> None:
    """The program ran, and gave what the class's forward gives in float64."""
    wide = copy.deepcopy(restore_copy(module)).double()
    to_double = torch.utils._pytree.tree_map(
        lambda one: one.double() if isinstance(one, torch.Tensor) else one, (args, kwargs)
    )
    expected = wide(*to_double[0], **to_double[1])
    actual = module(*args, **kwargs)
    assert not program.fallbacks
    leaves, others = map(torch.utils._pytree.tree_leaves, (actual, expected))
    assert len(leaves) == len(others) and type(actual) is type(expected)
    for one, other in zip(leaves, others, strict=True):
        if isinstance(other, torch.Tensor):
            assert_close(one, other, dtype=one.dtype, factor=4)  # sums of sums
        else:
            assert one == other


def restore_copy(module: nn.Module) -> nn.Module:
    return restore(copy.deepcopy(module))


@pytest.mark.parametrize("shape", [(2, 5, 64), (1, 1, 64), (3, 33, 64), (0, 4, 64)], ids=str)
def test_mlp(mlp: Emitted, shape: tuple[int, ...]):
    module = gated_mlp().module
    with swapped(module, mlp) as program:
        compare(module, program, torch.randn(shape))
        compare(module, program, torch.randn(shape[1], shape[0], 64).transpose(0, 1))


class Adapted(nn.Module):
    """A linear layer whose weight is made of others at every call, by a product of them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48, 40))
        self.down, self.up = nn.Parameter(torch.randn(8, 40)), nn.Parameter(torch.randn(48, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight + 0.5 * (self.up @ self.down))


replace_kernel_forward_from_hub(Adapted, "Adapted")


def test_products_of_weights(tmp_path: Path):
    """They are made once, before what calls multiply by is packed, and again when a weight changes."""
    torch.manual_seed(0)
    module, x = Adapted().eval(), torch.randn(5, 40)
    emitted = emit.emit_layer(
        (module, (x,)), layer_name="Adapted", out=tmp_path / "out", benchmark=False, training=False
    )
    with swapped(module, emitted) as program, torch.no_grad():
        compare(module, program, x)
        module.down.mul_(-2)
        compare(module, program, x)


def test_everything_else_of_a_module(normed_layer: Emitted):
    """A folded norm, tied weights, a buffer, keyword arguments, nested arguments and results."""
    case = normed()
    module = case.module.eval()
    with swapped(module, normed_layer) as program:
        for rows in (4, 1, 9):
            pair = (torch.randn(rows, 48), torch.randn(48))
            compare(module, program, torch.randn(rows, 48), pair, double=True)


def test_built_and_packed(mlp: Emitted, tmp_path: Any):
    """What `kernels-hub build` makes of it, and what `kernelize` says of its packed weights."""
    build_repository(mlp.path, tmp_path, check=True)
    module = gated_mlp().module
    with swapped(module, mlp, tmp_path) as program:
        compare(module, program, torch.randn(2, 3, 64))
        assert program.known(module).nbytes >= 3 * 64 * 96 * 4
    assert program.known(module) is None


@pytest.mark.parametrize(
    ("build", "fixture"), [(bert, "bert_layer"), (llama, "llama_layer")], ids=["bert", "llama"]
)
def test_layers_of_a_model(
    build: Any, fixture: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    """A layer of a transformers model serves all of its kind, whatever index and weights they have."""
    from transformers.models.bert.modeling_bert import BertLayer
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    emitted = request.getfixturevalue(fixture)
    kind = {"bert": BertLayer, "llama": LlamaDecoderLayer}[build.__name__]
    # The tag that replace_kernel_forward_from_hub sets, for this test alone.
    monkeypatch.setattr(kind, "kernel_layer_name", emitted.layer_name, raising=False)
    model, sizes = build(), ((2, 7), (3, 12), (1, 4))
    with torch.no_grad():
        expected = [model(token_ids(*one), use_cache=False).last_hidden_state for one in sizes]
    # Where kernels_hub.transformers was imported before, transformers has tagged norms and functions of its models.
    with swapped(model, emitted, alone=False) as program, torch.no_grad():
        for one, other in zip(sizes, expected, strict=True):
            assert_close(model(token_ids(*one), use_cache=False).last_hidden_state, other, factor=4)
        assert not program.fallbacks
        assert sum(row.swapped for row in report(model).rows) == 2


def test_onnx(onnx_layer: Emitted):
    """On its own, with weights that follow; and for a module that has none."""
    kernel = get_local_kernel(onnx_layer.path, backend="cpu")
    model = kernel.load()
    assert {"table", "layer.q.weight", "norm.scale"} <= model.state_dict().keys()
    ids = torch.randint(0, 40, (2, 9))

    def expected(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        state = {name: one.double() for name, one in model.state_dict().items()}
        x = state["table"][ids]
        q, k, v = (x @ state[f"layer.{one}.weight"] for one in "qkv")
        mixed = torch.softmax(q @ k.mT * 32**-0.5, -1) @ v + x
        return nn.functional.layer_norm(mixed, (32,), state["norm.scale"], state["norm.bias"])

    first = model(input_ids=ids)["last"]
    assert_close(first, expected(model, ids), dtype=torch.float32, factor=4)
    with torch.no_grad():
        model.get_parameter("layer.v.weight").mul_(2)
    assert_close(model(ids)["last"], expected(model, ids), dtype=torch.float32, factor=4)

    class Encoder(nn.Module):
        def forward(self, input_ids):
            raise AssertionError("the original ran")

    replace_kernel_forward_from_hub(Encoder, "Encoder")
    with swapped(empty := Encoder(), onnx_layer):
        assert torch.equal(empty(ids)["last"], first)
    with pytest.raises(RuntimeError, match="input_ids is int32, it was compiled for int64.*no other forward"):
        model(ids.int())
    with pytest.raises(IndexError, match="out of range"):
        model(ids + 40)


# -- weights --------------------------------------------------------------------------------------------


def double_in_place(module: nn.Module) -> None:
    module.down_proj.weight.mul_(2)


def assign_data(module: nn.Module) -> None:
    module.up_proj.weight.data = torch.randn(96, 64)


def edit_data(module: nn.Module) -> None:
    module.gate_proj.weight.data += 0.25


def new_parameter(module: nn.Module) -> None:
    module.gate_proj.weight = nn.Parameter(torch.randn(96, 64))


def load(module: nn.Module) -> None:
    module.load_state_dict(GatedMLP().state_dict())


def strided(module: nn.Module) -> None:
    module.down_proj.weight = nn.Parameter(torch.randn(96, 64).T)


@pytest.mark.parametrize("change", [double_in_place, assign_data, edit_data, new_parameter, load, strided])
def test_weights_that_change(mlp: Emitted, change: Any):
    module, x = gated_mlp().module, torch.randn(2, 4, 64)
    with swapped(module, mlp) as program:
        compare(module, program, x)
        before = module.forward(x) if not torch.is_grad_enabled() else None
        with torch.no_grad():
            before = module(x)
            change(module)
            assert not torch.allclose(module(x), before)
        compare(module, program, x)


@pytest.mark.parametrize(
    "name", ["norm.running_mean", "norm.running_var", "norm.weight", "norm.bias", "shift", "other.bias"]
)
def test_what_was_folded_follows(normed_layer: Emitted, name: str):
    """Weights that rewriting folds into others, and buffers."""
    module = normed().module.eval()
    args = (torch.randn(4, 48), (torch.randn(4, 48), torch.randn(48)))
    with swapped(module, normed_layer) as program, torch.no_grad():
        before = module(*args, double=True)["out"]
        (module.get_parameter if "running" not in name and name != "shift" else module.get_buffer)(name).add_(
            0.5
        )
        assert not torch.allclose(module(*args, double=True)["out"], before)
        compare(module, program, *args, double=True)


def test_copies_and_pickles_are_modules_of_their_own(mlp: Emitted):
    module, x = gated_mlp().module, torch.randn(1, 4, 64)
    with swapped(module, mlp) as program, torch.no_grad():
        before = module(x)
        other = copy.deepcopy(module)
        other.down_proj.weight.zero_()
        assert other(x).abs().max() == 0 and torch.equal(module(x), before)
        assert torch.equal(pickle.loads(pickle.dumps(module))(x), before)
        assert not program.fallbacks


@pytest.mark.parametrize("end", ["deleted", "restored"])
@pytest.mark.parametrize("layer", ["mlp", "normed_layer"])
def test_what_is_made_of_a_module_ends_with_it(layer: str, end: str, request: pytest.FixtureRequest):
    """One whose forward reads attributes of its own, too."""
    emitted = request.getfixturevalue(layer)
    case = gated_mlp() if layer == "mlp" else normed()
    module = case.module.eval()
    program = swap(module, emitted)
    with torch.no_grad():
        module(*case.args, **case.kwargs)
    state, weight = weakref.ref(program.known(module)), weakref.ref(next(module.parameters()))
    if end == "deleted":
        del module, case
    else:
        restore(module)
    gc.collect()
    gc.collect()  # the module first, then what was kept of it
    assert state() is None
    assert (weight() is None) == (end == "deleted")
    assert not program.fallbacks


def test_threads(mlp: Emitted):
    """Several modules, several sizes, several threads at once, while weights change."""
    modules = [gated_mlp().module for _ in range(3)]
    wrong: list[int] = []

    def work(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        for turn in range(20):
            module = modules[(number + turn) % 3]
            x = torch.randn(1 + turn % 3, 1 + number, 64, generator=generator)
            with torch.no_grad():
                actual, expected = module(x), GatedMLP.forward(module, x)
            if not torch.allclose(actual, expected, atol=1e-5):
                wrong.append(turn)

    contexts = [swapped(module, mlp) for module in modules]
    program, *_ = [context.__enter__() for context in contexts]
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and not program.fallbacks
    for context in contexts:
        context.__exit__(None, None, None)


# -- calls and modules that it was not compiled for ---------------------------------------------------------


def half(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    module.bfloat16()
    return x.bfloat16()


def other_rank(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x[0]


def wants_gradient(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x.requires_grad_()


def autocast(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    torch.set_autocast_enabled("cpu", True)
    return x


def hook_inside(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    module.up_proj.register_forward_hook(lambda *_: torch.zeros(()))
    return x


def other_hooks(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    module.gate_proj._forward_pre_hooks = OrderedDict({0: lambda *_: None})
    return x


def adapter(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    class Adapter(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    adapted = Adapter(96, 64, bias=False)
    adapted.weight = module.down_proj.weight
    module.down_proj = adapted
    return x


def parametrized(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    nn.utils.parametrizations.weight_norm(module.up_proj)
    return x


def activation(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    module.act_fn = nn.GELU()
    return x


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (half, "x is bfloat16, it was compiled for float32"),
        (other_rank, "x, compiled for [batch, length, 64], got [5, 64], which has rank 2, not 3"),
        (wants_gradient, "a gradient is asked for"),
        (autocast, "torch.autocast is on"),
        (hook_inside, "its up_proj has hooks"),
        (other_hooks, "its gate_proj has hooks"),
        (adapter, "its down_proj is a tests.compiler.export.test_emit_layer.adapter.<locals>.Adapter"),
        (parametrized, "its up_proj is a torch.nn.utils.parametrize.ParametrizedLinear"),
        (activation, "its act_fn is a torch.nn.modules.activation.GELU"),
    ],
)
def test_the_original_runs(mlp: Emitted, caplog: pytest.LogCaptureFixture, change: Any, reason: str):
    """After calls that the program ran, too; it is said once, and the numbers are the original's own."""
    module = gated_mlp().module
    with swapped(module, mlp) as program, caplog.at_level(logging.WARNING, "kernels_hub"):
        with torch.no_grad():
            compare(module, program, torch.randn(2, 5, 64))
        gradients = change is wants_gradient
        try:
            with torch.set_grad_enabled(gradients):
                x = change(module, torch.randn(2, 5, 64))
                results = [module(x), module(x)]
                expected = type(module).forward(module, x)
        finally:
            torch.set_autocast_enabled("cpu", False)
        assert torch.equal(results[0], expected) and torch.equal(results[1], expected)
        assert results[0].requires_grad == gradients
        (record,) = [
            one
            for one in caplog.records
            if one.name.startswith("kernels_hub.") and one.levelno >= logging.WARNING
        ]
        assert "GatedMLP runs the original forward: " in record.getMessage()
        assert reason in record.getMessage()


def set_scale(module: nn.Module) -> None:
    module.scale = 2.5


def untie(module: nn.Module) -> None:
    module.other.weight = nn.Parameter(torch.randn(48, 48))


def edit_table(module: nn.Module) -> None:
    module.table[1] = 9


def eps(module: nn.Module) -> None:
    module.norm.eps = 0.5


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (set_scale, "it has scale = 2.5, it was compiled with 1.5"),
        (eps, "its norm has eps = 0.5, it was compiled with 1e-05"),
        (edit_table, "it has table = 'torch.float32[2]"),
        (untie, "its other.weight is no longer the same tensor as its linear.weight"),
        (nn.Module.train, "has training = True, it was compiled with False"),
    ],
)
def test_what_the_result_depends_on(normed_layer: Emitted, change: Any, reason: str):
    module = normed().module.eval()
    args = (torch.randn(4, 48), (torch.randn(4, 48), torch.randn(48)))
    with swapped(module, normed_layer) as program, torch.no_grad():
        module.index = 7  # which no forward reads
        compare(module, program, *args, double=True)
        change(module)
        torch.manual_seed(0)
        actual = module(*args, double=True)["out"]
        torch.manual_seed(0)
        module.norm.num_batches_tracked.zero_()
        expected = Normed.forward(module, *args, double=True)["out"]
        if change is not nn.Module.train:  # which moves the running statistics at every call
            assert torch.equal(actual, expected)
        assert any(reason in one for one in program.fallbacks.values()), program.fallbacks


def test_what_a_forward_reads_of_a_class_is_held_with_what_names_the_class():
    class Settings:
        scale = 2.0

    class Scaled(nn.Module):
        kind = Settings

    module = Scaled()
    module.own = Settings
    _, read = check_module(module, [Module("", "", "", {"kind.scale": 2.0, "own.scale": 2.0})])
    found = [(one.holder is module.__dict__, one.name) for one in read.held]
    assert found == [(False, "scale"), (True, "own"), (False, "scale")]
    guard = ModuleGuard(module.__dict__, read.held, [], [], [], [])
    assert guard.holds(module.__dict__)
    Settings.scale = 3.0
    assert not guard.holds(module.__dict__)


def test_what_a_forward_reads_of_an_object_is_held_with_the_object():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = SimpleNamespace(scale=2.0)

    module, facts = Scaled(), {"config.scale": 2.0}
    _, (held, *_) = check_module(module, [Module("", "", "", facts)])
    assert [one.holder.get(one.name) is one.value for one in held] == [True, True]
    module.config = SimpleNamespace(scale=3.0)
    assert [one.holder.get(one.name) is one.value for one in held] == [False, True]
    with pytest.raises(Misfit, match=r"config\.scale = 3\.0, it was compiled with 2\.0"):
        check_module(module, [Module("", "", "", facts)])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"double": False}, "double is False, it was compiled with True"),
        ({"double": True, "extra": 1}, "more is a dict of 1, it was compiled with a dict of 0"),
        ({"double": True, "pair": None}, "pair is None, it was compiled with a tuple of 2"),
    ],
)
def test_other_arguments(normed_layer: Emitted, arguments: dict[str, Any], reason: str):
    module = normed().module.eval()
    x = torch.randn(4, 48)
    arguments = {"pair": (torch.randn(4, 48), torch.randn(48)), **arguments}
    with swapped(module, normed_layer) as program, torch.no_grad():
        assert torch.equal(module(x, **arguments)["out"], Normed.forward(module, x, **arguments)["out"])
        assert list(program.fallbacks.values()) == [reason]


def test_weights_of_another_module(mlp: Emitted):
    module, x = GatedMLP(inner=32), torch.randn(1, 2, 64)
    with swapped(module, mlp) as program, torch.no_grad():
        assert torch.equal(module(x), GatedMLP.forward(module, x))
        assert list(program.fallbacks.values()) == [
            "its gate_proj.weight has shape (32, 64), it was compiled for (96, 64)"
        ]


def test_torch_compile_and_export_run_the_original(mlp: Emitted):
    module, x = gated_mlp().module, torch.randn(1, 2, 64)
    with swapped(module, mlp), torch.no_grad():
        expected = GatedMLP.forward(module, x)
        torch.testing.assert_close(torch.compile(module, backend="eager", fullgraph=True)(x), expected)
        torch.testing.assert_close(torch.func.vmap(module)(x[None])[0], expected)


def test_the_original_is_called_by_the_names_of_its_arguments(mlp: Emitted, monkeypatch: pytest.MonkeyPatch):
    """Wrappers around forwards, as transformers has them, look for some there; under torch.compile, too."""
    forward = GatedMLP.forward
    seen: list[tuple[int, list[str]]] = []

    @functools.wraps(forward)
    def wrapped(self: GatedMLP, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append((len(args), list(kwargs)))
        return forward(self, *args, **kwargs)

    module, x = gated_mlp().module, torch.randn(1, 2, 64)
    monkeypatch.setattr(GatedMLP, "forward", wrapped)
    with swapped(module, mlp), torch.no_grad():
        expected = forward(module, x)
        torch.testing.assert_close(torch.func.vmap(module)(x[None])[0], expected)
        torch.testing.assert_close(torch.compile(module, backend="eager", fullgraph=True)(x), expected)
    assert seen == [(0, ["x"]), (0, ["x"])]


def test_without_a_compiler(mlp: Emitted, tmp_path: Any):
    """In a process that finds none, the original runs, and the reason names what to do."""
    program = """
import logging, sys, torch
from kernels_hub import get_local_kernel
from tests.compiler.export.emitted_layers import gated_mlp

logging.basicConfig()
kernel, module = get_local_kernel(sys.argv[1], backend="cpu"), gated_mlp().module
with torch.no_grad():
    for x in (torch.randn(1, 2, 64), torch.randn(2, 2, 64)):
        assert torch.equal(kernel.layers.GatedMLP.forward(module, x), module(x))
"""
    environment = {
        **os.environ, "KERNELS_HUB_CXX": "none", "KERNELS_HUB_PREBUILT": "ignore",
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }  # fmt: skip
    done = run_script(program, str(mlp.path), env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    (line,) = [one for one in done.stderr.splitlines() if "kernels_hub" in one]
    assert (
        "GatedMLP runs the original forward: " in line
        and "no C++ compiler found; set KERNELS_HUB_CXX" in line
    )


def test_dtypes_of_16_bits(tmp_path: Path):
    case = gated_mlp()
    emitted = emit.emit_layer(
        (case.module.bfloat16(), (case.args[0].bfloat16(),)),
        layer_name="GatedMLP",
        out=tmp_path / "out",
        dynamic_shapes=case.dynamic_shapes,
        benchmark=False,
    )
    module = gated_mlp().module.bfloat16()
    with swapped(module, emitted) as program:
        compare(module, program, torch.randn(3, 4, 64).bfloat16())
        with torch.no_grad():
            module.float()(torch.randn(3, 4, 64))
        assert program.fallbacks == {"dtype float32": "x is float32, it was compiled for bfloat16"}
