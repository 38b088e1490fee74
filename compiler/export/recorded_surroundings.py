"""Notes what a forward asks for beside its module and arguments, while an example runs: see `runtime.surroundings`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernels_hub.compiler.export.noted_calls import Noting, is_of_known, outside_of
from kernels_hub.compiler.export.outer_data import IDENTITY
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
            if func in _OF_LAYOUT and not is_of_known(sys._getframe(1)):
                found["@layout"] = "plain"
            return func(*args, **(kwargs or {}))

    with _ENVIRONMENT.into(found), Asking():
        yield found


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
