"""A module's weights as a program reads them (packed, converted), and whether they are current.

What is made of them is made once, and again when the module is no longer what it was: see `module_guard`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter

from .arguments import Place, dtype_of
from .errors import Misfit
from .facts import Held
from .module_guard import ModuleGuard
from .modules import check_module
from .parts import Table, Weight


class State:
    """What was made of a module, which it does not hold. library: with native code of the module guard.

    Raises Misfit where the program was not built for the module.
    """

    def __init__(
        self, module: nn.Module, table: Table, place: Place, library: ctypes.CDLL | None = None
    ) -> None:
        self.place = place
        self.kept: list[Any] = []
        """What must live as long as this does."""
        self.plain: dict[int, torch.Tensor] = {}
        """Buffer -> the weight, contiguous."""
        self.tensors: list[torch.Tensor] = []
        """The weights as the module holds them."""
        self.nbytes = 0
        """Bytes beyond the module's own."""
        modules, read = check_module(module, table.modules)
        facts = read.held
        if not table.modules:
            facts += _inside(module)
        held = (*(fact.value for fact in facts), *read.tensors)
        placed = list({id(one): one for one in held if isinstance(one, torch.Tensor)}.values())
        counted, copied = list(placed), list(placed)
        for wanted_weight in table.weights:
            found = self._weights(module, wanted_weight)
            facts += found
            placed += (each.value for each in found)
            weight: torch.Tensor = found[0].value
            if wanted_weight.packed or not weight.is_contiguous() or weight.is_neg() or weight.is_conj():
                counted.append(weight)
                copied.append(weight)
        counted = [tensor for tensor in counted if not tensor.is_inference()]  # the others count no versions
        self._guard = ModuleGuard(
            module.__dict__, facts, modules, placed, counted, copied, library, read.same
        )

    def is_current(self, module: nn.Module) -> bool:
        """Whether the module that this was made of, and its weights, are still what they were."""
        return self._guard.holds(module.__dict__)

    def is_current_whole(self, module: nn.Module) -> bool:
        """As `is_current`, after all that copied weights hold was compared."""
        return self._guard.holds_all(module.__dict__)

    def took(self, elapsed: int) -> None:
        """A call took so many nanoseconds."""
        self._guard.took(elapsed)

    def be_strict(self, on: bool) -> None:
        """Have `is_current` compare all that copied weights hold, or no more."""
        self._guard.be_strict(on)

    def needs_grad(self) -> bool:
        """Whether a weight requires a gradient."""
        return any(tensor.requires_grad for tensor in self.tensors)

    def _weights(self, module: nn.Module, weight: Weight) -> list[Held]:
        """Where a weight is held, and where else it is, which is to be the same tensor."""
        found = find_weight(module, weight.name)
        tensor: torch.Tensor = found.value
        _check_weight(tensor, weight, self.place)
        others = [find_weight(module, other) for other in weight.aliases]
        for path, other in zip(weight.aliases, others, strict=True):
            if other.value.data_ptr() != tensor.data_ptr() or other.value.is_neg() is not tensor.is_neg():
                raise Misfit("tied weights", f"its {path} is no longer the same tensor as its {weight.name}")
        self.plain[weight.buffer] = _in_pairs(tensor.detach()).resolve_neg().contiguous()
        self.tensors.append(tensor)
        return [found, *others]


def _inside(module: nn.Module) -> list[Held]:
    """Every module inside of one, and where it is held."""
    return [
        Held(module_inside._modules, name, part)
        for module_inside in module.modules()
        for name, part in module_inside._modules.items()
        if part is not None
    ]


def find_weight(module: nn.Module, path: str) -> Held:
    """A parameter or buffer by its name, and where it is held. Raises Misfit without it."""
    *parents, name = path.split(".")
    part: Any = module
    for parent in parents:
        part = part._modules.get(parent) if part is not None else None
    for holder in () if part is None else (part._parameters, part._buffers):
        if isinstance(tensor := holder.get(name), torch.Tensor):
            return Held(holder, name, tensor)
    raise Misfit("weights", f"it has no weight {path!r}")


def _in_pairs(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as floats (…, 2), which programs read."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _check_weight(tensor: torch.Tensor, weight: Weight, place: Place) -> None:
    if type(tensor) is not Parameter and type(tensor) is not torch.Tensor:
        raise Misfit("weights", f"its {weight.name} is a {type(tensor).__name__}, not a plain tensor")
    tensor = _in_pairs(tensor)
    if tensor.dtype is not dtype_of(weight.dtype):
        name = str(tensor.dtype).removeprefix("torch.")
        raise Misfit(f"dtype {name}", f"its {weight.name} is {name}, it was compiled for {weight.dtype}")
    if tuple(tensor.shape) != weight.shape:
        raise Misfit(
            "weights",
            f"its {weight.name} has shape {tuple(tensor.shape)}, it was compiled for {weight.shape}",
        )
    if not place.holds(tensor):
        raise Misfit(
            f"device {tensor.device}",
            f"its {weight.name} is on {tensor.device}, it was compiled for {place.name}",
        )
