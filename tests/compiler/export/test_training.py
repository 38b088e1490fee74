"""Emitted layers in training: gradients, steps of an optimizer, what is frozen or changed, what is left to the original."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
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
from kernels_hub.compiler.autodiff.rule import Derivative
from kernels_hub.compiler.autodiff.rules import DERIVATIVES
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.export.emit_layer import Emitted, emit_layer
from kernels_hub.compiler.importers.aten_ops import HANDLERS
from tests.compiler.autodiff.modules import Embedded
from tests.compiler.autodiff.tricky_modules import Tripled
from tests.compiler.export.emitted_layers import BATCH, LENGTH, GatedMLP, gated_mlp, llama, normed, token_ids
from tests.tolerances import assert_close

replace_kernel_forward_from_hub(GatedMLP, "GatedMLP")
replace_kernel_forward_from_hub(Embedded, "Embedded")

FACTOR = 4.0
"""Gradients are sums of sums."""


@pytest.fixture(scope="module")
def mlp(emitted_folder: Any) -> Emitted:
    case = gated_mlp()
    return emit_layer(
        (case.module, case.args), layer_name="GatedMLP", out=emitted_folder / "TrainedMLP",
        dynamic_shapes=case.dynamic_shapes, triton=False, benchmark=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def decoder(emitted_folder: Any) -> Emitted:
    return emit_layer(
        llama(), kwargs={"input_ids": token_ids(), "use_cache": False}, layer_name="Decoder",
        out=emitted_folder / "TrainedDecoder", dynamic_shapes={"input_ids": {0: BATCH, 1: LENGTH}, "use_cache": None},
        submodule="layers.0", triton=False, benchmark=False,
    )  # fmt: skip


def train(module: nn.Module, emitted: Emitted, *, alone: bool = True) -> Any:
    """Put the layer into the module, in training; gives the layer's LAYER. alone: nothing else there may have a tag."""
    layer = LocalLayerRepository(emitted.path, layer_name=emitted.layer_name)
    with use_kernel_mapping({emitted.layer_name: {"cpu": layer}}, inherit_mapping=False):
        kernelize(module.train(), mode=Mode.TRAINING, device="cpu", use_fallback=not alone)
    assert any(row.swapped for row in report(module).rows)
    program = get_local_kernel(emitted.path, backend="cpu").program.LAYER
    program.fallbacks.clear()
    return program


@contextmanager
def trained(module: nn.Module, emitted: Emitted, *, alone: bool = True) -> Iterator[Any]:
    """The module with the layer in it, in training; gives the layer's LAYER."""
    program = train(module, emitted, alone=alone)
    try:
        yield program
    finally:
        restore(module)
        program.fallbacks.clear()


def gradients(module: nn.Module, *inputs: torch.Tensor) -> list[torch.Tensor | None]:
    """Of the inputs that require one and of all parameters, of a weighed sum of the result."""
    module.zero_grad()
    given = [one.detach().clone().requires_grad_(one.requires_grad) for one in inputs]
    result = module(*given)
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(2)).to(result.dtype)
    (result * weights).sum().backward()
    return [one.grad for one in (*given, *module.parameters())]


def compare(module: nn.Module, program: Any, *inputs: torch.Tensor) -> None:
    """The programs ran, and gave the gradients that the module has in float64."""
    wide = restore(copy.deepcopy(module)).double()
    expected = gradients(wide, *(one.detach().double().requires_grad_(one.requires_grad)
                                 if one.is_floating_point() else one for one in inputs))  # fmt: skip
    found = gradients(module, *inputs)
    assert not program.fallbacks
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert_close(one, other, factor=FACTOR)


@pytest.mark.parametrize("shape", [(2, 5, 64), (1, 1, 64), (3, 33, 64), (0, 4, 64)], ids=str)
def test_gradients_of_a_layer(mlp: Emitted, shape: tuple[int, ...]):
    module = gated_mlp().module
    with trained(module, mlp) as program:
        compare(module, program, torch.randn(shape).requires_grad_())
        compare(module, program, torch.randn(shape))
        mixed = torch.randn(shape[1], shape[0], 64).requires_grad_()
        (module(mixed.transpose(0, 1)) ** 2).sum().backward()
        expected = torch.autograd.grad((GatedMLP.forward(module, mixed.transpose(0, 1)) ** 2).sum(), mixed)[0]
        assert_close(mixed.grad, expected, factor=FACTOR)
        assert not program.fallbacks


def test_the_card_and_the_flag(mlp: Emitted):
    assert mlp.gradients is not None and mlp.gradients.asked == ("x",)
    assert all(case.error < 1e-4 for case in mlp.gradients.cases) and len(mlp.gradients.cases) == 3
    card = (mlp.path / "README.md").read_text()
    assert "## In training" in card and "largest error of any gradient" in card
    kernel = get_local_kernel(mlp.path, backend="cpu")
    assert kernel.layers.GatedMLP.has_backward is True
    assert {"cpu/program_training.cpp", "cpu/program_backward.cpp", "cpu/table_gradient.py"} <= set(mlp.files)


def test_a_training_run_is_the_same(mlp: Emitted):
    """Weights are others at each step; losses are those of the module itself."""
    runs = []
    for swap in (False, True):
        torch.manual_seed(4)
        module, x, target = gated_mlp().module, torch.randn(3, 7, 64), torch.randn(3, 7, 64)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        losses = []

        def steps(module=module, x=x, target=target, optimizer=optimizer, losses=losses):
            for _ in range(20):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(module(x), target)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())

        if swap:
            with trained(module, mlp) as program:
                steps()
                assert not program.fallbacks
                assert program.known(module) is None, "nothing was packed"
        else:
            steps()
        runs.append(losses)
    assert runs[0][-1] < runs[0][0] * 0.9
    assert runs[1] == pytest.approx(runs[0], rel=1e-4)


def test_out_of_training_the_original_runs(mlp: Emitted):
    """Nobody waits for programs to be built who has only forgotten torch.no_grad()."""
    module = gated_mlp().module
    with trained(module, mlp) as program:
        module.eval()
        assert module(torch.randn(2, 5, 64)).requires_grad
        assert "or train() to have it computed" in program.fallbacks.pop("gradient")
        module.train()
        compare(module, program, torch.randn(2, 5, 64))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.shift = nn.Parameter(torch.randn(8, 4).T)
        self.register_buffer("scale", torch.rand(4, 8))

    def forward(self, x: torch.Tensor, more: dict[str, torch.Tensor]) -> dict[str, Any]:
        hidden = self.second(self.first(x).tanh() * self.scale)
        return {"out": hidden + self.shift, "greatest": hidden.argmax(-1), "more": more["of"] * 2}


replace_kernel_forward_from_hub(Tied, "Tied")


def test_tied_weights_buffers_and_several_results(emitted_folder: Any):
    """A weight of two uses, one that is not contiguous, arguments and results in dicts, one of integers."""
    torch.manual_seed(5)
    module = Tied()
    args = (torch.randn(2, 4, 8), {"of": torch.randn(3).requires_grad_()})
    emitted = emit_layer(
        (module, args), layer_name="Tied", out=emitted_folder / "Tied", triton=False, benchmark=False
    )  # fmt: skip
    assert emitted.gradients is not None and emitted.gradients.asked == ("more.of",)
    with trained(module, emitted) as program:
        found = []
        for forward in (module, lambda *args: Tied.forward(module, *args)):
            more = args[1]["of"].detach().clone().requires_grad_()
            result = forward(args[0], {"of": more})
            assert not result["greatest"].requires_grad
            loss = (result["out"] ** 2).sum() + (result["more"] ** 3).sum()
            found.append(torch.autograd.grad(loss, [more, *module.parameters()]))
        for one, other in zip(*found, strict=True):
            assert_close(one, other, factor=FACTOR)
        assert not program.fallbacks


def test_what_is_frozen_is_not_computed(mlp: Emitted):
    """Gradients of frozen weights are not there, and their kernels do not run."""
    module = gated_mlp().module
    x = torch.randn(2, 5, 64).requires_grad_()
    with trained(module, mlp) as program:
        module.down_proj.requires_grad_(False)
        module.gate_proj.requires_grad_(False)
        compare(module, program, x)
        part = program.gradient.part([0, 2])
        assert 0 < len(part.steps) < len(program.gradient.gradient.writes)
        module.requires_grad_(False)
        compare(module, program, x)
        assert not module(torch.randn(2, 5, 64)).requires_grad
        module.requires_grad_(True)
        compare(module, program, x.detach())


def test_what_is_changed_in_place_raises(mlp: Emitted):
    module = gated_mlp().module
    with trained(module, mlp) as program:
        x = torch.randn(2, 5, 64)
        for change in (lambda: x.mul_(2), lambda: module.up_proj.weight.mul_(2)):
            result = module(x)
            with torch.no_grad():
                change()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                result.sum().backward()
        assert not program.fallbacks


def test_gradients_of_gradients_are_refused(mlp: Emitted):
    module = gated_mlp().module
    with trained(module, mlp):
        x = torch.randn(2, 5, 64).requires_grad_()
        (first,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="no gradients of gradients"):
            first.sum().backward()
        assert not torch.autograd.grad(module(x).sum(), x)[0].requires_grad


def test_checkpointing_hooks_and_threads(mlp: Emitted):
    module = gated_mlp().module
    with trained(module, mlp) as program:
        x = torch.randn(2, 5, 64).requires_grad_()
        expected = gradients(module, x)
        seen: list[torch.Tensor] = []
        handle = module.up_proj.weight.register_hook(seen.append)
        module.zero_grad()
        again = x.detach().clone().requires_grad_()
        result = torch.utils.checkpoint.checkpoint(module, again, use_reentrant=False)
        weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(2))
        (result * weights).sum().backward()
        handle.remove()
        assert torch.equal(again.grad, expected[0]) and len(seen) == 1
        found: list[torch.Tensor] = []

        def work() -> None:
            mine = x.detach().clone().requires_grad_()
            found.append(torch.autograd.grad((module(mine) * weights).sum(), mine)[0])

        workers = [threading.Thread(target=work) for _ in range(4)]
        for one in workers:
            one.start()
        for one in workers:
            one.join()
        assert all(torch.equal(one, expected[0]) for one in found) and len(found) == 4
        assert not program.fallbacks


def test_without_a_gradient_the_packed_program_runs(mlp: Emitted):
    module = gated_mlp().module
    with trained(module, mlp) as program:
        x = torch.randn(2, 5, 64)
        with torch.no_grad():
            result = module(x)
        assert program.known(module) is not None
        assert_close(result, module(x), factor=FACTOR)
        assert not program.fallbacks


def test_what_is_known_of_a_module_ends_with_it(mlp: Emitted):
    module = gated_mlp().module
    program = train(module, mlp)
    module(torch.randn(2, 5, 64)).sum().backward()
    assert not program.fallbacks
    weight = weakref.ref(module.down_proj.weight)
    del module
    gc.collect()
    assert weight() is None


def test_a_decoder_layer(decoder: Emitted, monkeypatch: pytest.MonkeyPatch):
    """In a model in training; the tables of its rotary embedding have no gradient, and calls that ask for one run
    the original."""
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    monkeypatch.setattr(LlamaDecoderLayer, "kernel_layer_name", "Decoder", raising=False)
    assert decoder.gradients is not None and decoder.gradients.asked == ("hidden_states",)
    model = llama()
    wide = copy.deepcopy(model).double()
    ids = token_ids(3, 9)
    # Where kernels_hub.transformers was imported before, transformers has tagged norms and functions of its models.
    with trained(model, decoder, alone=False) as program:
        assert sum(row.swapped for row in report(model).rows) == 2
        weights = torch.randn(3, 9, 64)
        (model(ids, use_cache=False).last_hidden_state * weights).sum().backward()
        (wide(ids, use_cache=False).last_hidden_state * weights.double()).sum().backward()
        assert not program.fallbacks
        for (name, one), other in zip(model.named_parameters(), wide.parameters(), strict=True):
            assert one.grad is not None, name
            assert_close(one.grad, other.grad, factor=FACTOR)
        layer = model.layers[0]
        x = torch.randn(1, 4, 64)
        cos, sin = (torch.randn(1, 4, 16).requires_grad_() for _ in range(2))
        layer(x, position_embeddings=(cos, sin), position_ids=torch.arange(4)[None]).sum().backward()
        assert cos.grad is not None
        assert any("a gradient of position_embeddings" in one for one in program.fallbacks.values())


def test_an_embedding(emitted_folder: Any):
    """Its gradient is added up by index, on top of what the table's other use gives."""
    torch.manual_seed(3)
    module = Embedded()
    emitted = emit_layer(
        (module, (token_ids(2, 5) % 12,)), layer_name="Embedded", out=emitted_folder / "Embedded",
        dynamic_shapes={"ids": {0: BATCH, 1: LENGTH}}, triton=False, benchmark=False,
    )  # fmt: skip
    with trained(module, emitted) as program:
        compare(module, program, token_ids(3, 4) % 12)
        compare(module, program, torch.tensor([[1, 1, 1, 0, 11]]))


def test_the_padding_row_is_not_trained(emitted_folder: Any):
    """The example lacks the padding id: the row's gradient is zero all the same."""
    torch.manual_seed(4)
    module = nn.Embedding(7, 4, padding_idx=0)
    emitted = emit_layer(
        (module, (torch.tensor([[1, 2, 3], [6, 5, 1]]),)), layer_name="Padded", out=emitted_folder / "Padded",
        triton=False, benchmark=False,
    )  # fmt: skip
    assert emitted.gradients is not None and not emitted.gradients.reason
    forward = get_local_kernel(emitted.path, backend="cpu").layers.Padded.forward
    ids = torch.tensor([[0, 2, 0], [0, 5, 1]])
    weights = torch.randn(2, 3, 4)
    module.train()
    (ours,) = torch.autograd.grad(forward(module, ids), [module.weight], weights)
    (theirs,) = torch.autograd.grad(module(ids), [module.weight], weights)
    assert torch.equal(ours, theirs) and not ours[0].any()


def test_a_gradient_that_is_wrong_for_other_inputs_is_not_written(
    emitted_folder: Any, monkeypatch: pytest.MonkeyPatch
):
    """Of an id that is not in the example, which inputs made for the graph have."""
    monkeypatch.setitem(HANDLERS, "embedding.default", lambda call, weight, ids, *_: weight.gather(ids, 0))
    module = nn.Embedding(7, 4, padding_idx=0)
    out = emitted_folder / "WronglyPadded"
    with pytest.raises(EngineError, match=r"a gradient of weight that differs .* on inputs 'ids"):
        emit_layer(
            (module, (torch.tensor([[1, 2, 3]]),)),
            layer_name="Padded",
            out=out,
            triton=False,
            benchmark=False,
        )
    assert not out.exists()


class Straight(nn.Module):
    """Its gradient ends in places, and goes on in others."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-3)
        y = x / scale * self.weight
        y = y + (y.round() - y).detach()
        return torch.nn.functional.softplus(y) * torch.nn.functional.normalize(x, dim=-1)


def test_a_gradient_that_ends_in_places(emitted_folder: Any):
    torch.manual_seed(5)
    module = Straight()
    emitted = emit_layer(
        (module, (torch.randn(5, 6),)), layer_name="Straight", out=emitted_folder / "Straight", triton=False,
        benchmark=False,
    )  # fmt: skip
    assert emitted.gradients is not None and not emitted.gradients.reason
    forward = get_local_kernel(emitted.path, backend="cpu").layers.Straight.forward
    x = torch.randn(5, 6)
    x[1], x[2, :3] = 0, x[2, 3:]
    module.train()
    x.requires_grad_()
    weights = torch.randn(5, 6)
    ours, theirs = (
        torch.autograd.grad(one, [x, module.weight], weights) for one in (forward(module, x), module(x))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_what_has_a_backward_of_its_own_keeps_it(emitted_folder: Any):
    """A torch.autograd.Function: no gradient is derived, and the report says why."""
    emitted = emit_layer(
        (OwnBackward(), (torch.randn(3, 6),)), layer_name="OwnBackward", out=emitted_folder / "OwnBackward",
        triton=False, benchmark=False,
    )  # fmt: skip
    assert emitted.gradients is not None
    assert "Tripled is a torch.autograd.Function, whose backward is its own" in emitted.gradients.reason


class OwnBackward(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Tripled.apply(x) * 2  # type: ignore[no-any-return, no-untyped-call]


def test_another_forward_in_training_has_no_backward(emitted_folder: Any):
    """Dropout, a batch norm: the reason is in the card, and kernelize says that there is no backward."""
    case = normed()
    emitted = emit_layer(
        (case.module, case.args, case.kwargs), layer_name="Normed", out=emitted_folder / "Untrained",
        dynamic_shapes=case.dynamic_shapes, triton=False, benchmark=False,
    )  # fmt: skip
    assert emitted.gradients is not None and emitted.gradients.reason.startswith("in training, its forward")
    assert "`has_backward` is `False`" in (emitted.path / "README.md").read_text()
    assert get_local_kernel(emitted.path, backend="cpu").layers.Normed.has_backward is False
    assert not any("backward" in one for one in emitted.files)


def test_a_wrong_gradient_is_not_written(emitted_folder: Any, monkeypatch: pytest.MonkeyPatch):
    out = emitted_folder / "Wrong"
    right = DERIVATIVES["matmul"]
    wrong = Derivative(
        "matmul", lambda site: [one if one is None else one * 1.5 for one in right.pull(site)], "wrong"
    )
    monkeypatch.setitem(DERIVATIVES, "matmul", wrong)
    case = gated_mlp()
    with pytest.raises(EngineError, match=r"a gradient of \S+ that differs from the original module's"):
        emit_layer(
            (case.module, case.args), layer_name="GatedMLP", out=out, dynamic_shapes=case.dynamic_shapes,
            triton=False, benchmark=False,
        )  # fmt: skip
    assert not out.exists()
