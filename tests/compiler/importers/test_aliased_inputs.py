"""Examples that share memory: the same tensor twice, views of one storage, a module's own state; and calls like that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub import CompiledLayer, Mode, get_local_kernel, kernelize, report, use_kernel_mapping
from kernels_hub import replace_kernel_forward_from_hub as tag
from kernels_hub.compiler import compile, import_torch
from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.export.emit_layer import emit_layer
from kernels_hub.compiler.importers.torch_trace import distinct
from kernels_hub.compiler.jit import store as layer_store
from kernels_hub.compiler.runtime.toolchain import find_compiler
from kernels_hub.kernelization import jit


def assert_close(found: Any, expected: Any) -> None:
    """Every element of every tensor, as close as float32 has it."""
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6)


needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")


class Mixed(nn.Module):
    """Each input counts in a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("table", torch.randn(4, 4))
        self.plain = torch.randn(4, 4)

    def forward(self, a: Any, b: Any, c: Any) -> Any:
        return a * 2 - torch.tanh(b) + c * self.weight + self.table, a @ c + self.plain


class Nested(nn.Module):
    def forward(self, pair: Any, more: dict[str, Any], *, last: Any) -> Any:
        return pair[0] * 2 - pair[1] + more["u"] * 3 - more["v"][0] * last


def _random(*_: Any) -> torch.Tensor:
    return torch.randn(4, 4)


def _three(first: Callable[[Mixed], torch.Tensor], second: Any = None, third: Any = None) -> Any:
    def made(module: Mixed) -> tuple[torch.Tensor, ...]:
        one = first(module)
        return one, (second or (lambda _, x: x))(module, one), (third or _random)(module, one)

    return made


EXAMPLES = {
    "the same twice": _three(_random),
    "the same three times": _three(_random, None, lambda _, x: x),
    "two views of one storage": _three(lambda _: torch.randn(8, 4)[:4], lambda _, x: x._base[4:]),
    "the same view twice": _three(lambda _: torch.randn(8, 4)[:4], lambda _, x: x._base[:4]),
    "overlapping views": _three(lambda _: torch.randn(7, 4)[:4], lambda _, x: x._base[3:]),
    "a tensor and its transpose": _three(_random, lambda _, x: x.T),
    "a tensor and itself detached": _three(_random, lambda _, x: x.detach()),
    "a parameter": _three(lambda module: module.weight),
    "a parameter's data": _three(lambda module: module.weight.data, _random),
    "a parameter transposed": _three(lambda module: module.weight.detach().T, _random),
    "a buffer": _three(lambda module: module.table),
    "a tensor of the module": _three(lambda module: module.plain),
    "expanded": _three(lambda _: torch.randn(1, 4).expand(4, 4)),
    "a leaf with a gradient": _three(lambda _: torch.randn(4, 4, requires_grad=True)),
    "the result of an op": _three(lambda _: torch.randn(4, 4, requires_grad=True) * 2),
}  # fmt: skip


@pytest.mark.parametrize("made", EXAMPLES.values(), ids=EXAMPLES)
def test_inputs_stay_apart(made: Any):
    torch.manual_seed(1)
    module = Mixed()
    compiled = compile(module_and(module, made(module)))
    others = tuple(torch.randn(4, 4) for _ in range(3))
    with torch.no_grad():
        assert_close(compiled(*others), module(*others))
        same = (others[0], others[0], others[0].T)
        assert_close(compiled(*same), module(*same))


def module_and(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
    return (module, args, kwargs) if kwargs else (module, args)


def test_inputs_in_trees_and_by_name_stay_apart():
    x = torch.randn(4, 4)
    module = Nested()
    compiled = compile((module, ((x, x), {"u": x, "v": [x[:2].repeat(2, 1)]}), {"last": x}))
    one, two, three, four, five = (torch.randn(4, 4) for _ in range(5))
    args, kwargs = ((one, two), {"u": three, "v": [four]}), {"last": five}
    assert_close(compiled(*args, **kwargs), module(*args, **kwargs))


def test_all_inputs_are_inputs_of_the_graph():
    x = torch.randn(4, 4)
    for strict in (False, True):
        graph = import_torch(Mixed(), (x, x, x), strict=strict)
        assert [graph.uses(graph.inputs[name]) > 0 for name in ("a", "b", "c")] == [True] * 3


def test_a_copy_is_like_its_tensor():
    """Shape, strides of dense tensors, dtype, whether it requires a gradient; nothing that is no tensor changes."""
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    learned = nn.Parameter(torch.randn(3))
    ids = torch.arange(4)
    found = distinct(((image, learned), {"ids": ids, "n": 3, "no": None}))
    (image2, learned2), more = found
    assert image2.stride() == image.stride() and learned2.requires_grad and learned2.is_leaf
    assert more["n"] == 3 and more["no"] is None and torch.equal(more["ids"], ids)
    pointers = {one.data_ptr() for one in (image, learned, ids, image2, learned2, more["ids"])}
    assert len(pointers) == 6


class Writes(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a * b


class WritesView(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        b[0].mul_(3)
        return a * b


@pytest.mark.parametrize(("module", "named"), [(Writes(), "a"), (WritesView(), "b")], ids=["whole", "view"])
def test_a_module_that_writes_its_inputs_is_refused(module: nn.Module, named: str):
    x = torch.randn(4, 4)
    with pytest.raises(ImportFailure, match=rf"{named}: a call changes this input"):
        import_torch(module, (x, x))


SHAPES = torch.randn(200)
CALLS = {
    "the same": lambda x: (x, x, x),
    "transposed": lambda x: (x, x.T, x),
    "overlapping": lambda _: tuple(SHAPES.as_strided((4, 4), (4, 1), start) for start in (0, 1, 5)),
    "every row is the next one's": lambda x: (SHAPES.as_strided((4, 4), (1, 1)), x, SHAPES.as_strided((4, 4), (2, 1))),
    "expanded": lambda x: (x[:1].expand(4, 4), x[:, :1].expand(4, 4), x[0, 0].expand(4, 4)),
    "state of the module": lambda x: (x, x, x),
}  # fmt: skip


@pytest.mark.parametrize("made", CALLS.values(), ids=CALLS)
def test_calls_with_tensors_that_share_memory(made: Any):
    torch.manual_seed(2)
    module = Mixed()
    compiled = compile((module, (torch.randn(4, 4),) * 3))
    args = made(module.weight.detach() if made is CALLS["state of the module"] else torch.randn(4, 4))
    before = [one.clone() for one in args]
    with torch.no_grad():
        expected = module(*args)
        found = compiled(*args)
    assert_close(found, expected)
    assert all(map(torch.equal, args, before))
    storages = {one.untyped_storage().data_ptr() for one in (*args, *module.state_dict().values())}
    assert not storages & {one.untyped_storage().data_ptr() for one in found}


class Pair(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(a) * 2 - b


tag(Pair, "AliasedPair")


@needs_compiler
def test_an_emitted_layer_keeps_its_inputs_apart(tmp_path: Path):
    x = torch.randn(3, 8)
    module = Pair()
    emitted = emit_layer(
        (module, (x, x)), layer_name="Pair", out=tmp_path / "pair", triton=False, benchmark=False
    )
    forward = get_local_kernel(emitted.path, backend="cpu").layers.Pair.forward
    a, b = (torch.randn(3, 8, requires_grad=True) for _ in range(2))
    found = forward(module, a, b)
    assert_close(found, module(a, b))
    weights = torch.randn(3, 8)
    ours, theirs = (torch.autograd.grad(one, (a, b), weights) for one in (found, module(a, b)))
    assert_close(ours, theirs)
    same = torch.randn(3, 8, requires_grad=True)
    ours, theirs = (torch.autograd.grad(call(same), same, weights) for call in (
        lambda x: forward(module, x, x), lambda x: module(x, x)
    ))  # fmt: skip
    assert_close(ours, theirs)


@needs_compiler
def test_a_layer_compiled_at_its_first_call_keeps_its_inputs_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(layer_store, "store_folder", lambda: tmp_path)
    jit._forward_of.cache_clear()
    model = nn.ModuleList([Pair()])
    with use_kernel_mapping({"AliasedPair": {"cpu": CompiledLayer("Pair")}}, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    x = torch.randn(3, 8)
    with torch.no_grad():
        model[0](x, x)
        a, b = torch.randn(3, 8), torch.randn(3, 8)
        assert_close(model[0](a, b), Pair()(a, b))
    assert report(model).rows[-1].swapped


def _set_first(x: torch.Tensor, held: Any) -> torch.Tensor:
    held[0] = x + 1
    return held[0] * 2  # type: ignore[no-any-return]


CHANGES: dict[str, tuple[Callable[[torch.Tensor, Any], torch.Tensor], Callable[[torch.Tensor], Any]]] = {
    "a list": (lambda x, held: (held.append(x), x * 2)[1], lambda x: [x]),
    "a list, an element": (_set_first, lambda x: [x]),
    "a dict": (lambda x, held: held.pop("a") * x, lambda x: {"a": x, "b": x}),
    "a list inside": (lambda x, held: held["a"][0].pop() * x, lambda x: {"a": ([x],)}),
}


@pytest.mark.parametrize("case", CHANGES)
def test_lists_and_dicts_that_a_forward_changes_are_no_lost_writes(case: str) -> None:
    class Changes(nn.Module):
        def forward(self, x: torch.Tensor, held: Any) -> torch.Tensor:
            return CHANGES[case][0](x, held)

    x = torch.randn(3)
    with pytest.raises(
        ImportFailure, match=f"the forward changes {case.partition(',')[0].removesuffix(' inside')}"
    ):
        import_torch(Changes(), (x, CHANGES[case][1](x)))
