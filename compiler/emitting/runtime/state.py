"""A module's weights as a program takes them, and whether they are still those.

What is made of them is made once, and again when a weight is another tensor, lies elsewhere or has another version.
Edits through `weight.data` count as no version: up to 64 elements of each copied weight are compared before every
call, too (KERNELS_HUB_PACKED_GUARD=0 leaves that out, in programs that never write through `.data`).
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter

from .arguments import Place, dtype_of
from .errors import Misfit
from .modules import check_module, is_untouched
from .parts import Table, Weight

_GUARD = os.environ.get("KERNELS_HUB_PACKED_GUARD", "1") != "0"
_SAMPLES = 64
_NEIGHBOURS = 4
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class State:
    """What was made of a module. Raises Misfit where the program was not built for it."""

    def __init__(self, module: nn.Module, table: Table, place: Place) -> None:
        self.place = place
        self.parts, self.reads = check_module(module, table.modules)
        self.kept: list[Any] = []
        """What must live as long as this does."""
        self.plain: dict[int, torch.Tensor] = {}
        """Buffer -> the weight, contiguous."""
        self.tensors: list[torch.Tensor] = []
        """The weights as the module holds them."""
        self.nbytes = 0
        """Bytes beyond the module's own."""
        self._held: list[tuple[dict[str, Any], str, torch.Tensor, int, int]] = []
        """(its holder's table, its name there, the tensor, its address, its version or -1 where that is no matter)"""
        self._containers = [] if table.modules else _containers(module)
        copied = [self._weight(module, one) for one in table.weights]
        for one in self.reads:
            if isinstance(one.value, torch.Tensor):
                self._held.append((*one, one.value.data_ptr(), _version(one.value)))
        self._views = _views([one for one in copied if one is not None]) if _GUARD else []
        self._samples = [torch.cat(one) for one in self._views]

    def is_current(self) -> bool:
        """Whether module and weights are still what this was made of."""
        for part in self.parts:
            if not is_untouched(part):
                return False
        for one in self.reads:
            if one.holder.get(one.name) is not one.value:
                return False
        if not all(held.get(name) is part for held, name, part in self._containers):
            return False
        for holder, name, tensor, address, version in self._held:
            if holder.get(name) is not tensor or tensor.data_ptr() != address:
                return False
            if version >= 0 and _version(tensor) != version:
                return False
        return not self._samples or self._is_same()

    def _is_same(self) -> bool:
        """Whether the elements that are looked at hold what they held; taken for granted in a CUDA graph's capture."""
        if self.place.device == "cuda" and torch.cuda.is_current_stream_capturing():
            return True
        return all(
            torch.equal(torch.cat(views), sample)
            for views, sample in zip(self._views, self._samples, strict=True)
        )

    def needs_grad(self) -> bool:
        """Whether a weight requires a gradient."""
        return any(one.requires_grad for one in self.tensors)

    def _weight(self, module: nn.Module, one: Weight) -> torch.Tensor | None:
        """Note a weight's address; returns it where the program copies it."""
        holder, name, tensor = find_weight(module, one.name)
        _check_weight(tensor, one, self.place)
        for other in one.aliases:
            its_holder, its_name, same = find_weight(module, other)
            if same.data_ptr() != tensor.data_ptr():
                raise Misfit("tied weights", f"its {other} is no longer the same tensor as its {one.name}")
            self._held.append((its_holder, its_name, same, same.data_ptr(), -1))
        plain = tensor.detach()
        copied = one.packed or not plain.is_contiguous()
        version = _version(tensor) if copied else -1
        self.plain[one.buffer] = plain.contiguous()
        self.tensors.append(tensor)
        self._held.append((holder, name, tensor, tensor.data_ptr(), version))
        return tensor if copied and tensor.numel() else None


def _containers(module: nn.Module) -> list[tuple[dict[str, nn.Module | None], str, nn.Module]]:
    """Every module inside of one, and where it is held."""
    return [
        (one._modules, name, part)
        for one in module.modules()
        for name, part in one._modules.items()
        if part is not None
    ]


def find_weight(module: nn.Module, path: str) -> tuple[dict[str, Any], str, torch.Tensor]:
    """A parameter or buffer by its name, and where it is held. Raises Misfit without it."""
    *parents, name = path.split(".")
    part: Any = module
    for parent in parents:
        part = part._modules.get(parent) if part is not None else None
    for holder in () if part is None else (part._parameters, part._buffers):
        if isinstance(tensor := holder.get(name), torch.Tensor):
            return holder, name, tensor
    raise Misfit("weights", f"it has no weight {path!r}")


def _check_weight(tensor: torch.Tensor, one: Weight, place: Place) -> None:
    if type(tensor) is not Parameter and type(tensor) is not torch.Tensor:
        raise Misfit("weights", f"its {one.name} is a {type(tensor).__name__}, not a plain tensor")
    if tensor.dtype is not dtype_of(one.dtype):
        name = str(tensor.dtype).removeprefix("torch.")
        raise Misfit(f"dtype {name}", f"its {one.name} is {name}, it was compiled for {one.dtype}")
    if tuple(tensor.shape) != one.shape:
        raise Misfit(
            "weights", f"its {one.name} has shape {tuple(tensor.shape)}, it was compiled for {one.shape}"
        )
    if not place.holds(tensor):
        raise Misfit(
            f"device {tensor.device}",
            f"its {one.name} is on {tensor.device}, it was compiled for {place.name}",
        )


def _version(tensor: torch.Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # of torch.inference_mode: it has none
        return 0


def _views(weights: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Windows on up to 64 elements of each weight, as integers, by their size: NaN equals nothing, bits do.

    Four neighbours each: one line of the cache is read for them, where it takes most of the time.
    """
    found: dict[tuple[torch.dtype, int], list[torch.Tensor]] = {}
    for weight in weights:
        flat = weight.detach().view(_WORDS[weight.element_size()]) if weight.is_contiguous() else None
        if flat is None:
            continue
        count, columns = flat.numel(), flat.shape[-1] if flat.dim() else 1
        wide = _NEIGHBOURS if count >= _SAMPLES else 1
        places = min(_SAMPLES, count) // wide
        step = max(1, (count - wide) // places)
        while step > 1 and math.gcd(step, columns) > 1:
            step -= 1  # so that they lie in many columns
        window = flat.as_strided((places, wide), (step, 1))
        found.setdefault((flat.dtype, wide), []).append(window)
    return list(found.values())
