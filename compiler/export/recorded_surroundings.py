"""Notes what a forward asks for beside its module and arguments, while an example runs: see `runtime.surroundings`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernels_hub.compiler.export.noted_calls import Noting, outside_of
from kernels_hub.compiler.importers.known_code import is_of_known
from kernels_hub.compiler.importers.outer_data import IDENTITY
from kernels_hub.compiler.importers.tensor_facts import OF_LAYOUT, OF_ONE_CALL
from kernels_hub.compiler.runtime.surroundings import ANSWERS

Asked = dict[str, object]
"""Facts, by name."""
UNFOLLOWED = "unfollowed"
"""In the place of a fact: what code does, in words, that no program does."""

_TENSOR: Any = torch.Tensor
_SWITCH_ON: Mapping[Any, int] = {
    torch._C._set_grad_enabled: 0, _TENSOR.requires_grad_: 1, _TENSOR.requires_grad.__set__: 1,
}  # fmt: skip
"""What switches gradients on -> the place of the argument that says so."""
_RESTORING = frozenset({"__exit__", "__call__"})
"""Functions by which context managers of autograd put back what was."""

_OF_PROCESS = frozenset({"@initial_seed", "@are_deterministic_algorithms_enabled"})
"""Of ANSWERS: what tracing leaves as it is."""
_ENVIRON: Any = type(os.environ)
_READ = _ENVIRON.__getitem__
_OF_READING = frozenset({"os", "_collections_abc", "collections.abc"})
"""Modules whose code reads the environment for others."""


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
            if func in OF_LAYOUT and not is_of_known(sys._getframe(1)):
                found["@layout"] = "plain"
            if func in OF_ONE_CALL and not is_of_known(sys._getframe(1)):
                found[UNFOLLOWED] = f"asks a tensor for its {OF_ONE_CALL[func]}, which is of one call"
            if func in _SWITCH_ON and not _is_restored(sys._getframe(1)):
                place = _SWITCH_ON[func]
                if args[place] if len(args) > place else (kwargs or {}).get("requires_grad", True):
                    found[UNFOLLOWED] = "switches gradients on, also where a call has them off"
            return func(*args, **(kwargs or {}))

    with _ENVIRONMENT.into(found), Asking():
        yield found


def _is_restored(frame: FrameType) -> bool:
    """Whether code puts back a mode of autograd: as it leaves a context manager, which may make another for that."""
    names = [frame.f_code.co_name] + ([frame.f_back.f_code.co_name] if frame.f_back is not None else [])
    return names[0] in _RESTORING or (names[0] == "__init__" and names[-1] in _RESTORING)


def _noted(self: object, name: str) -> object:
    outside = self is os.environ and not is_of_known(outside_of(sys._getframe(1), _OF_READING))
    value = None
    try:
        value = _READ(self, name)
    finally:
        if outside:
            for found in _ENVIRONMENT.here():
                found[f"@environ.{name}"] = value
    return value


_ENVIRONMENT: Noting[Asked] = Noting(
    lambda: setattr(_ENVIRON, "__getitem__", _noted), lambda: setattr(_ENVIRON, "__getitem__", _READ)
)
"""Reads of os.environ."""


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
