"""Tensors that a forward stores in its module for later calls, such as attention biases gathered from a table.

    if device not in self.cache:
        self.cache[device] = self.table[:, self.index]

A trace begins without them, and a program computes them at each call and leaves none. That gives what later calls of
the module give where the tensors depend on the module alone. Whether they do, calls of a copy of the module tell.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.utils import _pytree as pytree

REGISTRIES = frozenset({"_parameters", "_buffers", "_modules"})
"""Names of what a module holds beside attributes."""
_Arguments = tuple[tuple[object, ...], dict[str, object]]


def tables_of(module: nn.Module) -> tuple[dict[str, object], dict[str, object]]:
    """Where a forward that assigns to `self` puts it: among the attributes, or among the buffers."""
    return module.__dict__, module._buffers  # type: ignore[return-value]


def has_remembered(left: Iterable[object]) -> bool:
    """Whether tensors are among what a trace left in attributes, all of sizes that no argument decides.

    left: values of attributes. What a forward remembers by the sizes of its arguments may depend on the calls before.
    """
    leaves = pytree.tree_leaves([*left])
    tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
    sizes = [size for tensor in tensors for size in tensor.shape]
    return bool(tensors) and not any(isinstance(one, torch.SymInt) for one in [*leaves, *sizes])


def has_tensors(left: Iterable[object]) -> bool:
    """Whether a tensor is among what a trace left in attributes."""
    return any(isinstance(one, torch.Tensor) for one in pytree.tree_leaves([*left]))


def are_left_by_all(module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Whether a call leaves the same tensors in attributes as one of other arguments does; see `are_of_module`.

    Others are what a later call goes on from, or what someone looks at: a program leaves them as they were.
    """
    other = _others((args, dict(kwargs)))
    if other is None:
        return False
    try:
        with torch.random.fork_rng(devices=[]):
            these, those = (_left_by(module, arguments) for arguments in ((args, dict(kwargs)), other))
    except Exception:  # noqa: BLE001  (whatever the module raises for arguments that its caller did not give)
        return False
    return these.keys() == those.keys() and all(_are_equal(one, those[place]) for place, one in these.items())


def are_of_module(module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Whether a call computes the same after another call, of other arguments, as it does first.

    Calls of copies, one at a time, that have parameters of their own: a forward may write to them. False where there
    can be no copy, where a call raises, and where arguments of other values cannot be had.
    """
    other = _others((args, dict(kwargs)))
    if other is None:
        return False
    try:
        with torch.random.fork_rng(devices=[]):
            after = _results(module, ((args, dict(kwargs)), other))
            first = _results(module, (other,))
    except Exception:  # noqa: BLE001  (whatever the module raises for arguments that its caller did not give)
        return False
    return len(after) == len(first) and all(map(_are_equal, after, first))


def _results(module: nn.Module, calls: Iterable[_Arguments]) -> list[object]:
    """What the last of some calls of a copy of the module gives."""
    copied = copy.deepcopy(module)
    found: object = None
    for arguments in calls:
        found = _called(copied, arguments)
    return pytree.tree_leaves(found)


def _left_by(module: nn.Module, arguments: _Arguments) -> dict[tuple[str, str, int], torch.Tensor]:
    """The tensors that a call of a copy of the module leaves in it, where none of its own stood."""
    copied = copy.deepcopy(module)
    before = _tensors_of(copied)  # held: none of what a call makes has the id of what it replaced
    held = {id(leaf) for leaf in before.values()}
    _called(copied, arguments)
    return {place: leaf for place, leaf in _tensors_of(copied).items() if id(leaf) not in held}


def _tensors_of(module: nn.Module) -> dict[tuple[str, str, int], torch.Tensor]:
    """The tensors in attributes and buffers, by path, name, and which of several."""
    return {
        (path, name, number): leaf
        for path, one in module.named_modules()
        for table in tables_of(one)
        for name, value in table.items()
        if name not in REGISTRIES
        for number, leaf in enumerate(pytree.tree_leaves(value))
        if isinstance(leaf, torch.Tensor)
    }


def _called(module: nn.Module, arguments: _Arguments) -> object:
    """The result on copies of the arguments, which a forward may write to."""
    args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, arguments)
    return module(*args, **kwargs)


def _others(arguments: _Arguments) -> _Arguments | None:
    """Arguments of the same shapes that hold other values; None where no tensor of them can."""
    random = torch.Generator().manual_seed(0)
    tensors = [one for one in pytree.tree_leaves(arguments) if isinstance(one, torch.Tensor)]

    def other(tensor: torch.Tensor) -> torch.Tensor:
        turned = tensor.flip(tuple(range(tensor.dim())))
        if not tensor.is_floating_point():
            return turned
        noise = torch.randn(tensor.shape, generator=random).to(tensor.device, tensor.dtype)
        return turned + noise

    try:
        found: _Arguments = pytree.tree_map_only(torch.Tensor, other, arguments)
        others = [one for one in pytree.tree_leaves(found) if isinstance(one, torch.Tensor)]
        differ = any(not torch.equal(one, before) for one, before in zip(others, tensors, strict=True))
    except RuntimeError:  # of meta tensors, and of dtypes that cannot be turned round or compared
        return None
    return found if differ else None


def _are_equal(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)
    return type(one) is type(other) and one == other
