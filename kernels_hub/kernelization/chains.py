"""Chains: modules that a forward calls one after the other, run as one by the kernel of the first.

A convolution, its batch norm and its activation, or a linear layer and its activation, are three kernels and two
tensors in between where each module is called for itself. A kernel's package may compute what follows a layer with it:
its module `followers` has

    count(module, followers) -> int                     how many of the modules after it, from the first on
    takes(module, input) -> bool                        whether a call may be one for `forward`: asked first, and cheap
    forward(module, input, followers) -> Tensor | None  what the last of them returns; None for calls that it leaves
    gains_as(module, follower) -> str | None            optional: the layer whose gain is that of both

An activation that is called as a function (`chain_functions`) comes as its module. The forward of the module that holds
them then calls the chain in place of its children, where its source proves that nothing else sees what is in between
(`chain_syntax`). At every call the children are asked whether they still are what was planned; where one has hooks, or
another forward, they are called one after the other.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Protocol, TypeGuard, cast

from kernels_hub.hub.references import BundledLayerRepository, Reference
from kernels_hub.kernelization.bind import Forward, KernelForward
from kernels_hub.kernelization.chain_functions import chain_function, is_function
from kernels_hub.kernelization.chain_syntax import Names, runs_of, with_calls
from kernels_hub.kernelization.decoration import innermost
from kernels_hub.kernelization.native_builds import is_decided
from kernels_hub.kernelization.outcome import RECORD_ATTRIBUTE, SwapDecision

if TYPE_CHECKING:
    from torch import Tensor, nn


class Followers(Protocol):
    """The module `followers` of a kernel's package."""

    def count(self, module: nn.Module, followers: Sequence[nn.Module]) -> int:
        """How many of the modules that get the result one after the other are computed with it."""

    def takes(self, module: nn.Module, input: Tensor) -> bool:  # noqa: A002 - as torch.nn has it
        """Whether a call may be one for `forward`."""

    def forward(
        self,
        module: nn.Module,
        input: Tensor,  # noqa: A002 - as torch.nn has it
        followers: Sequence[nn.Module],
    ) -> Tensor | None:
        """What the last of them returns; None for calls that it leaves."""


Place = tuple[Names, Reference, Followers | None]
"""A chain: its children's names, the layer of the first one's kernel, and what computes the others with it; None where
another release was loaded, which does not."""


def layer_of_both(protocol: Followers | None, module: nn.Module, follower: nn.Module) -> str | None:
    """The layer whose gain is that of a module together with what gets its result; None where its own is."""
    gains_as: Callable[[nn.Module, nn.Module], str | None] | None = getattr(protocol, "gains_as", None)
    return None if gains_as is None else gains_as(module, follower)


def followers_in(package: ModuleType | None) -> Followers | None:
    """The module `followers` of a kernel's package; None where it computes nothing else."""
    found = getattr(package, "followers", None)
    return cast("Followers", found) if hasattr(found, "takes") else None


def may_follow(decision: SwapDecision | None) -> bool:
    """Whether a module may be computed with one before it: a kernel of somebody else's is to run."""
    if decision is None or not decision.swapped:
        return True
    return isinstance(decision.source, BundledLayerRepository)


def is_sequential(cls: type[nn.Module]) -> bool:
    """Whether the forward of a class is that of nn.Sequential."""
    from torch import nn

    written = nn.Sequential
    return issubclass(cls, written) and cls.forward is written.forward and cls.__iter__ is written.__iter__


def runs_in(module: nn.Module) -> tuple[Names, ...]:
    """The names of children that a module's forward calls one after the other."""
    cls = type(module)
    if is_sequential(cls):
        return (tuple(module._modules),)
    return runs_of(cls.forward) if isinstance(cls.forward, FunctionType) else ()


def with_chains(cls: type[nn.Module], places: tuple[Place, ...]) -> FunctionType:
    """The forward of a class that calls chains of its children as one, not guarded yet."""
    forward = cls.forward
    assert isinstance(forward, FunctionType)
    return _with_chains(forward, is_sequential(cls), places)


@functools.lru_cache(maxsize=4096)
def _with_chains(forward: FunctionType, is_sequential: bool, places: tuple[Place, ...]) -> FunctionType:
    calls = {place[0]: _chain(*place) for place in places}
    if is_sequential:
        return _sequential(calls)
    return with_calls(forward, {names: _placed(call, forward, names[0]) for names, call in calls.items()})


_COUNT = itertools.count()


def _placed(call: Forward, forward: FunctionType, name: str) -> str:
    """A global name for `call` beside a forward, or the function inside its decorators: nobody else has it."""
    own = f"_chain_{next(_COUNT)}_of_{name}"
    innermost(forward).__globals__[own] = call
    return own


# -- calls ---------------------------------------------------------------------------------------


def _sequential(calls: Mapping[Names, Forward]) -> FunctionType:
    """The forward of an nn.Sequential with chains; as the children are at the call."""
    by_first = {names[0]: (names, call) for names, call in calls.items()}

    def forward(self: nn.Module, input: object) -> object:  # noqa: A002 - as the original has it
        value = input
        names = tuple(self._modules)
        index = 0
        while index < len(names):
            chain, call = by_first.get(names[index], _NONE)
            if call is not None and names[index : index + len(chain)] == chain:
                value = call(self, value)
                index += len(chain)
            else:
                value = self._modules[names[index]](value)  # type: ignore[misc]  # None raises TypeError, as it did
                index += 1
        return value

    return forward  # type: ignore[return-value]


_NONE: tuple[Names, None] = ((), None)


def _chain(names: Names, source: Reference, protocol: Followers | None) -> Forward:
    """A call of children one after the other, as one where that is right."""
    import torch

    first = names[0]
    steps = [(name, chain_function(name) if is_function(name) else None) for name in names]
    after_first = steps[1:]
    originals = tuple(function.original for _, function in steps if function is not None)
    plain = torch.Tensor
    is_compiling, is_tracing = torch.compiler.is_compiling, torch._C._is_tracing
    hooks = _global_hooks()

    def call(self: nn.Module, value: object, *functions: Callable[..., object]) -> object:
        if protocol is not None and type(value) is plain and not is_compiling() and not is_tracing():
            modules = self._modules
            head = modules.get(first)
            if head is not None and _runs_kernel(head, source, value) and protocol.takes(head, value):
                followers = [
                    modules.get(name) if function is None else function.module
                    for name, function in after_first
                ]
                are_pytorchs = all(map(operator.is_, functions, originals))
                if are_pytorchs and not any(hooks) and not _has_hooks(head) and _run_plainly(followers):
                    result = protocol.forward(head, value, followers)
                    if result is not None:
                        return result
        given = iter(functions)
        for name, function in steps:
            value = (
                getattr(self, name)(value) if function is None else next(given)(value, **function.settings)
            )
        return value

    return call


def _runs_kernel(head: nn.Module, source: Reference, value: Tensor) -> bool:
    """Whether a module runs the kernel of a layer for an argument of this size, and its native code is there."""
    state = head.__dict__
    bound, record = state.get("forward"), state.get(RECORD_ATTRIBUTE)
    if record is None or type(bound) is not KernelForward or not is_decided(bound.func):
        return False
    own = record.own
    if own is None or not own.swapped or not own.copies:
        return False
    if own.source is not source and own.source != source:
        return False
    return not own.sizes or any(low <= value.numel() <= high for low, high in own.sizes)


@functools.cache
def _global_hooks() -> tuple[Mapping[int, object], ...]:
    """Those that see the calls of all modules: dictionaries that PyTorch fills."""
    from torch.nn.modules import module

    return (
        module._global_forward_hooks,
        module._global_forward_pre_hooks,
        module._global_backward_hooks,
        module._global_backward_pre_hooks,
    )


def _run_plainly(modules: Collection[nn.Module | None]) -> TypeGuard[Sequence[nn.Module]]:
    """Whether calling modules runs the forwards of their classes, or kernels of this library; and so inside of them."""
    for module in modules:
        if module is None or _has_hooks(module):
            return False
        state = module.__dict__
        if (bound := state.get("forward")) is not None:
            record = state.get(RECORD_ATTRIBUTE)
            if type(bound) is not KernelForward or record is None or not may_follow(record.own):
                return False
        if (children := state["_modules"]) and not _run_plainly(children.values()):
            return False
    return True


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
