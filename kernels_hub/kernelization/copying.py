"""Shallow copies and replicas of a module on a kernel run it on themselves, not on the module that they are copies of.

A kernel's forward lies in the `__dict__` of its module and is bound to it. `copy.copy` and torch.nn.parallel.replicate
copy that table, so each is told by the module itself, beside the forward, how this one is copied. deepcopy and pickle
bind anew by `rebind`.
"""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any

from kernels_hub.kernelization.bind import Forward, KernelForward

if TYPE_CHECKING:
    from torch import nn

HOOKS = ("__reduce_ex__", "_replicate_for_data_parallel")
"""What `copy.copy` and `replicate` ask a module for."""


class Copied:
    """In a module's table in the place of these methods of its class, whose copy it binds the kernel to."""

    __slots__ = ("_module",)

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __call__(self, protocol: int | None = None) -> object:
        """What `__reduce_ex__(protocol)` or `_replicate_for_data_parallel()` returns."""
        module = self._module
        kind: Any = type(module)
        if protocol is None:
            return _bound_again(kind._replicate_for_data_parallel(module), module)
        if sys._getframe(1).f_code is copy.copy.__code__:
            return _shallow, (module,)
        return kind.__reduce_ex__(module, protocol)

    def __reduce__(self) -> tuple[type[Copied], tuple[nn.Module]]:
        return Copied, (self._module,)


def bind_forward(module: nn.Module, forward: Forward) -> KernelForward:
    """Have a module run on a kernel, and its copies likewise."""
    state = module.__dict__
    bound = state["forward"] = KernelForward(forward, module)
    copied = Copied(module)
    for name in HOOKS:
        state.setdefault(name, copied)
    return bound


def unbind_forward(module: nn.Module) -> None:
    """Have a module run its class's forward."""
    state = module.__dict__
    del state["forward"]
    for name in HOOKS:
        if type(state.get(name)) is Copied:
            del state[name]


def _shallow(module: nn.Module) -> nn.Module:
    """What `copy.copy` makes of a module of this class."""
    reduced: Any = type(module).__reduce_ex__(module, 4)
    if isinstance(reduced, str):  # there is one of it
        return module
    make, arguments, *rest = reduced
    made: nn.Module = make(*arguments)
    if rest and rest[0] is not None:
        made.__setstate__(rest[0])
    return _bound_again(made, module)


def _bound_again(made: nn.Module, module: nn.Module) -> nn.Module:
    state = made.__dict__
    for name in HOOKS:
        if type(state.get(name)) is Copied:
            del state[name]
    bound = state.get("forward")
    if type(bound) is KernelForward and bound.__self__ is module:
        bind_forward(made, bound.func).lost = bound.lost
    return made
