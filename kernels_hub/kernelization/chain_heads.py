"""What gets a module's result first, in the forwards of a model: a kernel that computes both gains what both gain."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kernels_hub.kernelization.chain_functions import chain_function, is_function
from kernels_hub.kernelization.chains import runs_in

if TYPE_CHECKING:
    from torch import nn


class Followed:
    """The modules of a model that get others' results, where their parents' forwards prove it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._of_class: dict[type[nn.Module], dict[int, nn.Module]] = {}

    def by(self, module: nn.Module) -> nn.Module | None:
        """What gets a module's result first, a function of PyTorch's as its module; None where that is unknown."""
        cls = type(module)
        if cls not in self._of_class:
            self._of_class[cls] = self._find(cls)
        return self._of_class[cls].get(id(module))

    def _find(self, cls: type[nn.Module]) -> dict[int, nn.Module]:
        found: dict[int, nn.Module] = {}
        for parent in each_module(self._model):
            if not any(type(child) is cls for child in parent._modules.values()):
                continue  # reading a forward's source takes a millisecond
            for run in runs_in(parent):
                called = [module_called(parent, name) for name in run]
                for module, follower in itertools.pairwise(called):
                    if type(module) is cls and follower is not None:
                        found.setdefault(id(module), follower)
        return found


def module_called(parent: nn.Module, name: str) -> nn.Module | None:
    """The child, or the module that stands for a function, of a name in a chain; None of what hides a child."""
    if is_function(name):
        return chain_function(name).module
    hidden = name in parent.__dict__ or hasattr(type(parent), name)
    return None if hidden else parent._modules.get(name)


def each_module(model: nn.Module) -> Iterator[nn.Module]:
    """Each module once, as `model.modules()`, at a third of the cost."""
    seen = {id(model)}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        yield module
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)
