"""Ways to write to one element of a weight: those that PyTorch counts as changes, and those that it does not."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Place:
    """A weight of a module, and one of its elements."""

    owner: nn.Module
    name: str
    index: tuple[int, ...]
    delta: float

    @property
    def weight(self) -> nn.Parameter:
        weight: nn.Parameter = getattr(self.owner, self.name)
        return weight

    @property
    def value(self) -> float:
        return float(self.weight.detach()[self.index]) + self.delta

    def changed(self) -> Tensor:
        other = self.weight.detach().clone()
        other[self.index] = self.value
        return other


def by_numpy(place: Place) -> None:
    """bfloat16, which NumPy lacks, by its bits."""
    bits = {4: torch.int32, 2: torch.int16}[place.weight.element_size()]
    new = torch.tensor(place.value, dtype=place.weight.dtype).view(bits)
    place.weight.detach().view(bits).numpy()[place.index] = new.item()


def by_dlpack(place: Place) -> None:
    torch.from_dlpack(place.weight.detach())[place.index] = place.value


def by_data(place: Place) -> None:
    place.weight.data[place.index] = place.value


def by_mask(place: Place) -> None:
    mask = torch.zeros_like(place.weight, dtype=torch.bool)
    mask[place.index] = True
    place.weight.data[mask] = place.value


def _bytes(place: Place) -> tuple[int, bytes]:
    weight = place.weight
    offset = sum(one * stride for one, stride in zip(place.index, weight.stride(), strict=True))
    new = torch.tensor([place.value], dtype=weight.dtype).view(torch.uint8)
    return (weight.storage_offset() + offset) * weight.element_size(), bytes(new.tolist())


def by_storage(place: Place) -> None:
    start, new = _bytes(place)
    storage = place.weight.untyped_storage()
    for number, byte in enumerate(new):
        storage[start + number] = byte


def by_memoryview(place: Place) -> None:
    start, new = _bytes(place)
    flat = torch.empty(0, dtype=torch.uint8).set_(place.weight.untyped_storage())
    view = memoryview(flat.numpy())
    struct.pack_into(f"{len(new)}s", view, start, new)


def in_place(place: Place) -> None:
    with torch.no_grad():
        place.weight[place.index] = place.value


def by_copy(place: Place) -> None:
    with torch.no_grad():
        place.weight.copy_(place.changed())


def by_set(place: Place) -> None:
    with torch.no_grad():
        place.weight.set_(place.changed())


def by_optimizer(place: Place) -> None:
    weight = place.weight
    weight.grad = torch.zeros_like(weight)
    weight.grad[place.index] = -place.delta
    torch.optim.SGD([weight], lr=1.0).step()
    weight.grad = None


def by_state_dict(place: Place) -> None:
    place.owner.load_state_dict({place.name: place.changed()}, strict=False)


def by_assignment(place: Place) -> None:
    place.owner.load_state_dict({place.name: place.changed()}, strict=False, assign=True)


def by_parameter(place: Place) -> None:
    setattr(place.owner, place.name, nn.Parameter(place.changed(), requires_grad=False))


def by_other_data(place: Place) -> None:
    place.weight.data = place.changed()


UNCOUNTED = (by_data, by_mask, by_numpy, by_dlpack, by_storage, by_memoryview)
COUNTED = (
    in_place, by_copy, by_set, by_optimizer, by_state_dict, by_assignment, by_parameter, by_other_data,
)  # fmt: skip
