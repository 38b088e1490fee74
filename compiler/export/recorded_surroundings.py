"""Notes what a forward asks for beside its module and arguments, while an example runs: see `runtime.surroundings`."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernels_hub.compiler.export.outer_data import IDENTITY, KNOWN
from kernels_hub.compiler.runtime.surroundings import ANSWERS

Asked = dict[str, object]
"""Facts, by name."""

_TENSOR: Any = torch.Tensor
_OF_LAYOUT = frozenset({
    _TENSOR.stride, _TENSOR.is_contiguous, _TENSOR.storage_offset, _TENSOR.data_ptr,
    _TENSOR.requires_grad.__get__, _TENSOR.is_leaf.__get__,
})  # fmt: skip

_OF_PROCESS = frozenset({"@initial_seed", "@are_deterministic_algorithms_enabled"})
"""Of ANSWERS: what tracing leaves as it is."""
_ENVIRON: Any = type(os.environ)
_READ = _ENVIRON.__getitem__
_OPEN: list[tuple[int, Asked]] = []
"""Threads whose reads of the environment are noted, and where."""
_LOCK = threading.Lock()


@contextmanager
def asked() -> Iterator[Asked]:
    """While it is open, what code asks the environment and tensors for; code of known packages apart."""
    found: Asked = {}

    class Asking(TorchFunctionMode):
        def __torch_function__(
            self,
            func: Callable[..., object],
            types: object,
            args: tuple[object, ...] = (),
            kwargs: Mapping[str, object] | None = None,
        ) -> object:
            if func in _OF_LAYOUT and not _is_of_known(sys._getframe(1)):
                found["@layout"] = "plain"
            return func(*args, **(kwargs or {}))

    with _noting_environment(found), Asking():
        yield found


@contextmanager
def _noting_environment(found: Asked) -> Iterator[None]:
    """Note what code of this thread reads of os.environ. Threads may have it open at once, and end in any order."""
    mine = (threading.get_ident(), found)
    with _LOCK:
        _OPEN.append(mine)
        _ENVIRON.__getitem__ = _noted
    try:
        yield
    finally:
        with _LOCK:
            _OPEN[:] = [one for one in _OPEN if one[1] is not found]
            if not _OPEN:
                _ENVIRON.__getitem__ = _READ


def _noted(self: object, name: str) -> object:
    outside = self is os.environ and not _is_of_known(_beyond_os(sys._getframe(1)))
    value = None
    try:
        value = _READ(self, name)
    finally:
        if outside:
            for thread, found in tuple(_OPEN):
                if thread == threading.get_ident():
                    found[f"@environ.{name}"] = value
    return value


def named_answers(names: frozenset[str]) -> Asked:
    """Facts for code that has such names: what a forward is told while it is traced."""
    found: Asked = {name: False for name in ANSWERS if name[1:] in names}
    found |= {name: ANSWERS[name]() for name in _OF_PROCESS & found.keys()}
    found |= {"@apart": "tensors"} if IDENTITY in names else {}
    return found | ({"@layout": "plain"} if "Parameter" in names else {})


def default_dtype() -> Asked:
    """The fact of the default dtype, where it is not the usual one."""
    dtype = torch.get_default_dtype()
    return {} if dtype is torch.float32 else {"@default_dtype": str(dtype).removeprefix("torch.")}


def _beyond_os(frame: FrameType | None) -> FrameType | None:
    while frame is not None and frame.f_globals.get("__name__") in {
        "os",
        "_collections_abc",
        "collections.abc",
    }:
        frame = frame.f_back
    return frame


def _is_of_known(frame: FrameType | None) -> bool:
    return frame is None or str(frame.f_globals.get("__name__", "")).partition(".")[0] in KNOWN
