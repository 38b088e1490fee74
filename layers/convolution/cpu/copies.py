"""Copies made from weights, kept until a weight changes or dies.

The idea of layers/packing, for copies that are made from several tensors (a weight and the norm that
is folded into it) under a key (a geometry). Before every use, each tensor is compared with what it
was:

    1. its address and shape    `weight.data = other`, FSDP's unsharding
    2. its version counter      every in-place operation on it: optimizers, `copy_`, `load_state_dict`
    3. its values               in-place edits through `.data`, which do not count as versions: all of
                                them up to 2,048 (a norm's), else 64

An edit through `.data` that touches none of a weight's 64 elements is not seen. Copies die with the
first of their tensors.

Environment:
    KERNELS_HUB_PACKED_GUARD    "0" leaves out step 3, about a microsecond a tensor, in programs that
                                never write through `.data`
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_GUARD = os.environ.get("KERNELS_HUB_PACKED_GUARD", "1") != "0"
_ALL = 2_048
_SAMPLES = 64
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _State(NamedTuple):
    """What one tensor was when the copy was made."""

    address: int
    version: int
    shape: torch.Size
    sample: Tensor
    """A view of some of its elements that does not own their memory, as integers: NaN must equal itself.

    Only to be read while a tensor of this shape lies at this address: were the view to own the memory,
    a weight that moved to another device would leave its old memory behind."""
    values: Tensor


class _Entry(NamedTuple, Generic[T]):
    states: tuple[_State, ...]
    value: T
    references: tuple[weakref.ref[Tensor], ...]  # their callbacks remove the entry


class Copies(Generic[T]):
    """Values made from tensors, by the tensors' identity and a key.

    Threads may share one: at worst two make the same value, and one of them is kept.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[Hashable, ...], _Entry[T]] = {}

    def find(self, sources: Sequence[Tensor], key: Hashable) -> T | None:
        """The value for `sources` and `key`; None if there is none or the sources have changed."""
        entry = self._entries.get((key, *map(id, sources)))
        if entry is None:
            return None
        for tensor, (address, version, shape, sample, values) in zip(sources, entry.states, strict=True):
            if tensor.data_ptr() != address or _version(tensor) != version or tensor.shape != shape:
                return None
            if _GUARD and not torch.equal(sample, values):
                return None
        return entry.value

    def get(self, sources: Sequence[Tensor], key: Hashable, make: Callable[[], T]) -> T:
        """The value for `sources` and `key`, made now if there is none or the sources have changed."""
        found = self.find(sources, key)
        if found is not None:
            return found
        # Copies made under inference_mode serve later calls outside it as well.
        with torch.inference_mode(False), torch.no_grad():
            states = tuple(map(_state, sources))  # before `make`: an edit in between must be noticed later
            value = make()
        index = (key, *map(id, sources))
        self._entries[index] = _Entry(
            states, value, tuple(self._reference(source, index) for source in sources)
        )
        return value

    def of(self, source: Tensor) -> Iterator[T]:
        """Every value made from `source`, whatever the key and the other tensors."""
        for index, entry in tuple(self._entries.items()):
            if id(source) in index[1:]:
                yield entry.value

    def forget(self, source: Tensor) -> None:
        """Drop every value made from `source`."""
        for index in tuple(self._entries):
            if id(source) in index[1:]:
                self._entries.pop(index, None)

    def _reference(self, source: Tensor, index: tuple[Hashable, ...]) -> weakref.ref[Tensor]:
        forget = self._entries.pop
        return weakref.ref(source, lambda _: forget(index, None))


def _state(tensor: Tensor) -> _State:
    version = _version(tensor)
    sample = _sample(tensor)
    return _State(tensor.data_ptr(), version, tensor.shape, sample, sample.clone())


def _sample(tensor: Tensor) -> Tensor:
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = (ctypes.c_uint8 * (span * tensor.element_size())).from_address(tensor.data_ptr())
    elements = torch.frombuffer(memory, dtype=_INTEGERS[tensor.element_size()])
    # An odd step does not stay in one column of an even number of them.
    return elements if span <= _ALL else elements[:: span // _SAMPLES | 1]


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version  # inference tensors do not count versions
