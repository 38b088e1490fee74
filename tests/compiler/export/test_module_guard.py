"""What a state was made of: each change to a module is seen, by Python and by native code, and nothing else is."""

from __future__ import annotations

import gc
import re
import shutil
import subprocess
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub.compiler.native import weight_guard
from kernels_hub.compiler.runtime import module_guard
from kernels_hub.compiler.runtime.facts import CellHolds, FunctionHolds, HasKeys, Held
from kernels_hub.compiler.runtime.function_fields import offset_of_content, offsets_of_functions
from kernels_hub.compiler.runtime.module_guard import ModuleGuard
from kernels_hub.compiler.runtime.toolchain import build, load


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32, eps=1e-3)
        self.limit = None
        self.config = SimpleNamespace(scale=2.0)


Watch = Callable[..., ModuleGuard]


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """`gc.collect` looks at what the test made, not at a million objects of the libraries."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["python", "native", "without versions of dicts"])
def watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Watch:
    if request.param == "python":
        return ModuleGuard
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    if request.param != "native":
        monkeypatch.setattr(module_guard, "place_of_versions", lambda library: None)
    return partial(ModuleGuard, library=load(build('#include "module_guard.h"\n', "module_guard")))


def watched(block: Block, watch: Watch, *, copied: bool = True) -> ModuleGuard:
    weights = list(block.parameters())
    held = [
        *(Held(block._modules, name, part) for name, part in block._modules.items()),
        *(
            Held(part.__dict__, "forward", part.__dict__.get("forward"))
            for part in (block.linear, block.norm)
        ),
        *(Held(part._parameters, "weight", part.weight) for part in (block.linear, block.norm)),
        Held(block.__dict__, "limit", block.limit),
        Held(block.__dict__, "config", block.config),
        Held(block.config.__dict__, "scale", block.config.scale),
        Held(block.norm.__dict__, "eps", block.norm.eps),
    ]
    parts = [block.linear, block.norm]
    return watch(block.__dict__, held, parts, weights, weights, weights if copied else [])


def hook(block: Block) -> None:
    block.linear.register_forward_hook(lambda *_: None)


def early_hook(block: Block) -> None:
    block.norm.register_forward_pre_hook(lambda *_: None)


def other_hooks(block: Block) -> None:
    block.norm._forward_hooks = OrderedDict()


def other_class(block: Block) -> None:
    block.linear.__class__ = nn.modules.linear.NonDynamicallyQuantizableLinear


def other_module(block: Block) -> None:
    block.norm = nn.LayerNorm(32, eps=1e-3)


def own_forward(block: Block) -> None:
    block.linear.forward = lambda x: x


def none_no_more(block: Block) -> None:
    block.limit = 3


def other_config(block: Block) -> None:
    block.config = SimpleNamespace(scale=2.0)


def inside_config(block: Block) -> None:
    block.config.scale = 3.0


def attribute(block: Block) -> None:
    block.norm.eps = 2e-3


def removed(block: Block) -> None:
    del block.linear


def parameter(block: Block) -> None:
    block.linear.weight = nn.Parameter(block.linear.weight.detach().clone())


def other_table(block: Block) -> None:
    """As code does that turns one module into another."""
    block.linear.__dict__ = nn.Linear(16, 32).__dict__


def in_place(block: Block) -> None:
    with torch.no_grad():
        block.norm.bias.add_(1)


def moved(block: Block) -> None:
    block.linear.bias.data = torch.zeros(32)


def through_data(block: Block) -> None:
    block.linear.weight.data *= 2


def to_nan(block: Block) -> None:
    block.norm.weight.data.fill_(torch.nan)


def transposed(block: Block) -> None:
    """The same memory and version, read along other strides."""
    block.linear.weight.data = block.linear.weight.data.as_strided((32, 16), (1, 32))


def shortened(block: Block) -> None:
    block.norm.weight.data = block.norm.weight.data[:16]


def of_another_dtype(block: Block) -> None:
    block.norm.bias.requires_grad_(False).data = block.norm.bias.data.view(torch.int32)


CHANGES: list[Any] = [
    hook, early_hook, other_hooks, other_class, other_module, own_forward, none_no_more, other_config, inside_config,
    attribute, removed, parameter, other_table, in_place, moved, through_data, to_nan,
    transposed, shortened, of_another_dtype,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: Callable[[Block], None], watch: Watch):
    block = Block()
    one = watched(block, watch)
    assert one.holds(block.__dict__) and one.holds(block.__dict__)
    change(block)
    gc.collect()
    assert not one.holds(block.__dict__)
    if change is not removed:
        assert watched(block, watch).holds(block.__dict__) is (change not in {hook, early_hook})


def test_what_is_not_watched_may_change(watch: Watch):
    block = Block()
    one = watched(block, watch, copied=False)
    block.linear.in_features = 5
    block.linear.weight.data *= 2
    block.requires_grad_(False).eval()
    hook_of_another = Block()
    hook(hook_of_another)
    assert one.holds(block.__dict__)


def test_a_change_is_seen_after_one_that_does_not_matter(watch: Watch):
    block = Block()
    one = watched(block, watch)
    assert one.holds(block.__dict__)
    block.norm.note = "not watched, in a table that is"
    assert one.holds(block.__dict__) and one.holds(block.__dict__)
    eps, block.norm.eps = block.norm.eps, 2e-3
    assert not one.holds(block.__dict__) and not one.holds(block.__dict__)
    block.norm.eps = eps
    assert one.holds(block.__dict__)


def test_the_module_ends_and_its_table_is_asked_for(watch: Watch):
    """Its own table holds its forward, which holds the module."""
    block = Block()
    block.forward = partial(Block.forward, block)
    one, whole = watched(block, watch), weakref.ref(block)
    own = dict(block.__dict__)
    assert one.holds(own)
    assert not one.holds(own | {"limit": 3})
    assert not one.holds({name: value for name, value in own.items() if name != "config"})
    del block, own
    gc.collect()
    assert whole() is None


def test_nothing_to_watch(watch: Watch):
    assert watch({}, [], [], [], [], []).holds({})


def test_weights_of_every_size(watch: Watch):
    sizes = [0, 1, 7, 63, 64, 65, 1000]
    weights = [torch.randn(size).to(dtype) for size in sizes for dtype in (torch.float32, torch.bfloat16)]
    weights += [torch.tensor(3.0), torch.arange(5), torch.randn(8, 8).T]
    one = watch({}, [], [], weights, weights, weights)
    assert one.holds({})
    for weight in weights:
        if weight.numel() and weight.is_contiguous():
            before = weight.clone()
            weight.data[...] = weight.data + 1
            assert not one.holds({})
            weight.data[...] = before
            assert one.holds({})


def test_what_a_closure_holds_is_seen(watch: Watch) -> None:
    first, second = object(), object()
    cell = types.CellType(first)
    guard = watch({}, [], [], [], [], [], same=[CellHolds(cell, first), CellHolds(cell, first)])
    assert guard.holds({}) and guard.holds({})
    cell.cell_contents = second
    assert not guard.holds({})
    cell.cell_contents = first
    assert guard.holds({})
    del cell.cell_contents
    assert not guard.holds({})


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
def test_lines_are_asked_for_ahead() -> None:
    """GCC leaves out calls of functions that do nothing but prefetch."""
    native = Path(weight_guard.__file__).parent
    sources = [(native / name).read_text() for name in ("module_guard.h", "weight_guard.h")]
    wanted = sum(source.count("kh_ahead(") for source in sources) - 1
    library = build('#include "module_guard.h"\n', "module_guard")
    code = subprocess.run(["objdump", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    asked = code.partition("<kh_module_guard_asked>:")[2].partition("\n\n")[0]
    assert len(re.findall(r"\bprefetch|\bprfm\b", asked)) >= wanted > 10


def test_functions_and_the_order_of_keys_are_seen(watch: Watch) -> None:
    def function(x: int = 300, *, y: int = 400) -> int:
        return x + y

    assert len(offsets_of_functions()) == 3
    assert offset_of_content() is not None
    table: dict[str, object] = {"a": 1, "b": 2}
    same = [FunctionHolds(function), HasKeys(table, tuple(table))]
    guard = watch({}, [], [], [], [], [], same=same)
    assert guard.holds({})
    for name, other in (
        ("__code__", (lambda x=0, *, y=0: x).__code__),
        ("__defaults__", (1,)),
        ("__kwdefaults__", None),
    ):
        before = getattr(function, name)
        setattr(function, name, other)
        assert not guard.holds({})
        setattr(function, name, before)
        assert guard.holds({})
    table["a"] = table.pop("a")
    assert not guard.holds({})
    table["b"] = table.pop("b")
    assert guard.holds({})
    del table["b"]
    assert not guard.holds({})


def test_the_order_of_hooks_is_seen(watch: Watch) -> None:
    """An OrderedDict has an order of its own, which is not that of the dict that it is."""
    table: OrderedDict[str, object] = OrderedDict(a=1, b=2)
    table.move_to_end("b", last=False)  # as `prepend=True` does
    guard = watch({}, [], [], [], [], [], same=[HasKeys(table, ("b", "a"))])
    assert guard.holds({}) and guard.holds({})
    table.move_to_end("b")
    assert not guard.holds({})
    table.move_to_end("a")
    assert guard.holds({})
    table["c"] = 3
    assert not guard.holds({})
