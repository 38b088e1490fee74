"""What tensors are, compared by native code: every change is seen, and what is none is not."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernels_hub.compiler.native import tensor_state
from kernels_hub.compiler.native.tensor_state import MOST_MISSES
from kernels_hub.compiler.native.weight_guard import Native, WeightGuard
from kernels_hub.compiler.runtime.toolchain import build, load


@pytest.fixture(scope="module")
def native() -> Native:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    found = Native.of(load(build('#include "weight_guard.h"\n', "weight_guard")))
    assert found is not None
    return found


def assign(make: Callable[[Tensor], Tensor]) -> Callable[[Tensor], None]:
    def change(tensor: Tensor) -> None:
        tensor.data = make(tensor.data)

    return change


def counted(write: Callable[[Tensor], Any]) -> Callable[[Tensor], None]:
    def change(tensor: Tensor) -> None:
        with torch.no_grad():
            write(tensor)

    return change


def emptied(tensor: Tensor) -> None:
    tensor.untyped_storage().resize_(0)


CHANGES: dict[str, Callable[[Tensor], None]] = {
    "memory": assign(lambda t: t.clone()),
    "offset": assign(lambda t: t.as_strided(t.shape, t.stride(), 6)),
    "strides alone": assign(lambda t: t.t()),
    "one stride": assign(lambda t: t.as_strided((6, 6), (7, 1))),
    "shape alone": assign(lambda t: t[:5]),
    "one size for another": assign(lambda t: t.as_strided((6, 4), (6, 1))),
    "more dims": assign(lambda t: t.view(6, 3, 2)),
    "seven dims": assign(lambda t: t.view(6, 3, 2, 1, 1, 1, 1)),
    "no dims": assign(lambda t: t[0, 0]),
    "dtype alone": assign(lambda t: t.view(torch.int32)),
    "freed": emptied,
    "written to": counted(lambda t: t.add_(1)),
    "written to through a view": counted(lambda t: t[0].zero_()),
    "written to as nothing": counted(lambda t: t.mul_(1)),
    "written to beside": lambda t: t.detach().add_(1),
    "set": counted(lambda t: t.set_(torch.zeros(6, 6))),
    "resized": counted(lambda t: t.resize_(6, 5)),
}
NO_CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "references": lambda t: [t] * 100,
    "views": lambda t: (t.detach(), t.view(-1), t.numpy(force=True)),
    "gradient": lambda t: (t.requires_grad_() * 2).sum().backward(),
    "hook": lambda t: t.requires_grad_().register_hook(lambda gradient: gradient),
    "read": lambda t: t @ t,
    "attribute": lambda t: setattr(t, "note", 3),
}


def square() -> Tensor:
    """Six by six, with room behind, so that an offset and other strides lie in the same memory."""
    tensor = torch.empty(0)
    tensor.data = torch.randn(48)[:36].view(6, 6)
    return tensor


def guarded(tensor: Tensor, native: Native) -> WeightGuard:
    guard = WeightGuard([tensor], native)
    guard.content = None  # what it holds is not the question
    assert guard._use is not None and guard._asked is not None
    guard._use.guard = None
    assert guard.holds([tensor]) and guard._known._misses == 0
    return guard


def test_where_pytorch_keeps_it_is_found_out() -> None:
    """Else the guard asks PyTorch, as before: right, and slower."""
    found = tensor_state.layout()
    assert found is not None
    assert found.words.bit_count() >= 15  # 5 sizes, 5 strides, their number, offset, storage, dtype, counter


def test_what_freed_tensors_left_behind_does_not_matter() -> None:
    """Such as a second pointer to the counter of versions: the whole process lost its native guard by one of those."""
    chance, others = random.Random(0), list[object]()
    expected = tensor_state.layout()
    for _ in range(200):
        for _ in range(20):
            tensor = torch.zeros(chance.choice([1, 3, 10, 50]))
            others.append(tensor.add_(1) if chance.random() < 0.5 else tensor)
            others.append(bytearray(chance.choice([16, 64, 100, 200, 300])))
        if len(others) > 3000:
            chance.shuffle(others)
            del others[:1500]
        assert tensor_state.layout.__wrapped__() == expected


@pytest.mark.parametrize("is_parameter", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(native: Native, name: str, is_parameter: bool) -> None:
    tensor = square()
    if is_parameter:
        tensor = nn.Parameter(tensor, requires_grad=False)
    guard = guarded(tensor, native)
    assert guard._asked is not None
    CHANGES[name](tensor)
    assert guard._asked((tensor,)) == 0
    assert not guard.holds([tensor])


@pytest.mark.parametrize("name", NO_CHANGES)
def test_what_is_none_is_not(native: Native, name: str) -> None:
    tensor = square()
    guard = guarded(tensor, native)
    kept = NO_CHANGES[name](tensor)
    for _ in range(3):
        assert guard.holds([tensor])
    assert guard._known._misses <= 1  # a first gradient may leave its mark
    del kept


def test_two_at_once(native: Native) -> None:
    one, other = square(), square()
    guard = WeightGuard([one, other], native)
    assert guard.holds((one, other)) and guard.holds([one, other]) and guard._known._misses == 0
    other.add_(1)
    assert not guard.holds((one, other))


def test_one_in_the_place_of_another(native: Native) -> None:
    """Objects that die leave addresses to others."""
    for _ in range(20):
        first = square()
        guard = guarded(first, native)
        del first
        other = square()
        held = guard._asked
        assert held is not None and (held((other,)) == 0 or guard.counted([other]))


def test_what_is_no_tensor_or_too_many_is_unknown(native: Native) -> None:
    tensor = square()
    guard = guarded(tensor, native)
    assert guard._asked is not None
    for given in ((), (tensor, tensor), (object(),), (None,)):
        assert guard._asked(given) == 0


def test_an_inference_tensor_counts_no_versions(native: Native) -> None:
    with torch.inference_mode():
        tensor = torch.randn(6, 6)
        guard = guarded(tensor, native)
        tensor.add_(1)
        assert guard.holds([tensor])
        tensor.data = torch.zeros(6, 6)
        assert not guard.holds([tensor])


def test_pytorch_is_asked_where_native_code_sees_what_is_none(native: Native) -> None:
    """Another object on the same memory at each use: right every time, and native code is not asked for ever."""
    tensor = square()
    guard = guarded(tensor, native)
    others = [tensor.detach() for _ in range(MOST_MISSES + 2)]
    assert all(guard.holds([one]) for one in others)
    assert guard._asked is None and guard.holds([tensor])
    tensor.add_(1)
    assert not guard.holds([tensor])


def test_where_memory_cannot_be_read(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(tensor_state.os, "open", refuse)
    monkeypatch.setattr(tensor_state, "layout", tensor_state.layout.__wrapped__)
    assert tensor_state.layout() is None
    tensor = square()
    guard = WeightGuard([tensor], native)
    assert guard._asked is None and guard.holds([tensor])
    tensor.data = tensor.data.t()
    assert not guard.holds([tensor])


@pytest.mark.parametrize("lost", ["words", "counter", "data"])
def test_a_place_that_is_wrong_is_noticed_here(
    native: Native, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changes above tell a layout that is wrong from the right one."""
    right = tensor_state.layout()
    assert right is not None
    wrong = {
        "words": right._replace(words=1 << right.counter // 8),
        "counter": right._replace(version=right.version - 8),
        "data": right._replace(data=right.data + 24),
    }[lost]
    monkeypatch.setattr(tensor_state, "layout", lambda: wrong)
    unseen = []
    for name, change in CHANGES.items():
        tensor = square()
        guard = WeightGuard([tensor], native)
        assert guard._asked is not None and guard._use is not None
        guard._use.guard = None
        change(tensor)
        if guard._asked((tensor,)) != 0:
            unseen.append(name)
    assert unseen or not guarded_is_right(native)


def guarded_is_right(native: Native) -> bool:
    tensor = square()
    guard = WeightGuard([tensor], native)
    return guard._asked is not None and guard._asked((tensor,)) != 0
