"""Tensor state: whether tensors lie where they lay, with the same shape, strides, dtype and version.

`KnownTensors` asks PyTorch, which takes some 8 us a tensor when nothing of it is in a cache, as after a matrix product.
Native code (weight_guard.h) compares the words of memory in which PyTorch keeps these instead, in 1 us for several.

Where these words lie is no promise of PyTorch's, and nothing is taken for granted: `layout` finds out once a process,
by changing one thing of a scratch tensor after the other and looking at which words follow. What cannot be found out
for certain is None, and PyTorch is asked as before. So it is when a word differs, which alone says nothing: PyTorch
decides, and the words are taken down anew.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import compress
from operator import attrgetter
from typing import NamedTuple, Self, TypeVar

import torch
from torch import Tensor

_T = TypeVar("_T")

_WORD = 8
_WORDS = 40
"""Of what implements a tensor, so many words are looked at: more than there are."""
_STORAGE_WORDS, _COUNTER_BYTES = 16, 32


class Layout(NamedTuple):
    """Where this PyTorch keeps what a tensor is: offsets in bytes."""

    implementation: int
    """In a Python tensor, of the pointer to what implements it."""
    words: int
    """A bit for each word of that which follows the storage, the offset, the shape, the strides or the dtype."""
    counter: int
    """In that, of the pointer to what counts versions."""
    version: int
    """In this, of the number."""
    data: int
    """In a storage, of the pointer to its memory."""


class _Tensor(ctypes.Structure):
    """KhTensor of weight_guard.h."""

    _fields_ = (
        ("object", ctypes.c_void_p),
        ("implementation", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("memory", ctypes.c_void_p),
        ("counter", ctypes.c_void_p),
        ("version", ctypes.c_uint32),
    )


class TensorState(ctypes.Structure):
    """KhTensorState of weight_guard.h: what some tensors are now. It holds none of them.

    What it takes down of a tensor that has died since is never looked at: the tensor that is asked about has to be
    the same object, on the same implementation, before anything that this points to is.
    """

    _fields_ = (
        ("tensors", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("implementation", ctypes.c_int64),
        ("words", ctypes.c_uint64),
        ("kept", ctypes.c_void_p),
    )

    def __init__(self, count: int, found: Layout) -> None:
        self._rows = (_Tensor * count)()
        self._kept = (ctypes.c_uint64 * (count * found.words.bit_count()))()
        super().__init__(
            ctypes.addressof(self._rows),
            count,
            found.implementation,
            found.words,
            ctypes.addressof(self._kept),
        )
        self._layout = found

    def take(self, tensors: Sequence[Tensor], *, versions: Sequence[bool]) -> None:
        """Take down what tensors are; before PyTorch is asked the same, so that nothing in between is lost.

        versions: of which the version matters.
        """
        found = self._layout
        words = list(_bits(found.words))
        for place, (row, tensor, counts) in enumerate(zip(self._rows, tensors, versions, strict=True)):
            implementation, storage = tensor._cdata, tensor.untyped_storage()
            row.object, row.implementation = id(tensor), implementation
            row.data = storage._cdata + found.data
            row.memory = storage.data_ptr()
            row.counter, row.version = None, 0
            if counts and not tensor.is_inference():
                row.counter = _word_at(implementation + found.counter) + found.version
                row.version = tensor._version
            self._kept[place * len(words) : (place + 1) * len(words)] = [
                _word_at(implementation + which * _WORD) for which in words
            ]


def state_of(tensors: Sequence[Tensor], versions: Sequence[bool] | None = None) -> TensorState | None:
    """What tensors are now; None where native code cannot compare it."""
    found = layout()
    if found is None or not all(
        tensor.device.type == "cpu" and tensor.layout is torch.strided and type(tensor) in _KINDS
        for tensor in tensors
    ):
        return None
    state = TensorState(len(tensors), found)
    state.take(tensors, versions=[True] * len(tensors) if versions is None else versions)
    return state


_KINDS = (Tensor, torch.nn.Parameter)

MOST_MISSES = 100
"""How often native code may see a difference where PyTorch sees none, before it is no longer asked."""

_ADDRESS, _STRIDES = Tensor.data_ptr, Tensor.stride
_VERSION, _SHAPE, _DTYPE = attrgetter("_version"), attrgetter("shape"), attrgetter("dtype")


class KnownTensors:
    """What PyTorch says of tensors (address, version, shape, strides, dtype), and whether it still does. It holds none.

    is_native: have native code compare first, by `state`. counted: which of them count versions that matter, by default
    all; inference tensors count none.
    """

    __slots__ = ("_addresses", "_counted", "_dtypes", "_misses", "_shapes", "_strides", "_versions", "state")

    def __init__(
        self, tensors: Sequence[Tensor], counted: Sequence[bool] | None = None, *, is_native: bool = False
    ) -> None:
        counts = [True] * len(tensors) if counted is None else counted
        self._counted = [
            counts and not tensor.is_inference() for counts, tensor in zip(counts, tensors, strict=True)
        ]
        self._misses = 0
        self.state = state_of(tensors, self._counted) if is_native else None
        """What native code compares; None where PyTorch is asked."""
        self._addresses, self._versions = list(map(_ADDRESS, tensors)), self._versions_of(tensors)
        self._shapes, self._strides = list(map(_SHAPE, tensors)), list(map(_STRIDES, tensors))
        self._dtypes = list(map(_DTYPE, tensors))

    def same(self, tensors: Sequence[Tensor]) -> bool:
        """Whether PyTorch says of these tensors what it said of those."""
        return (
            list(map(_ADDRESS, tensors)) == self._addresses
            and self._versions_of(tensors) == self._versions
            and list(map(_SHAPE, tensors)) == self._shapes
            and list(map(_STRIDES, tensors)) == self._strides
            and list(map(_DTYPE, tensors)) == self._dtypes
        )

    def same_after_all(self, tensors: Sequence[Tensor]) -> bool:
        """As `same`, after native code saw a difference: it compares with what they are now, or no more."""
        anew = state_of(tensors, self._counted)
        if not self.same(tensors):
            return False
        self._misses += 1
        self.state = None if self._misses > MOST_MISSES else anew
        return True

    def _versions_of(self, tensors: Sequence[Tensor]) -> list[int]:
        return list(map(_VERSION, compress(tensors, self._counted)))


@cache
def layout() -> Layout | None:
    """Where this PyTorch keeps what a tensor is; None where that cannot be found out."""
    try:
        with torch.inference_mode(False), torch.no_grad(), _Memory() as memory:
            return _layout(memory)
    except (OSError, RuntimeError, TypeError, AttributeError, _UnclearError):
        return None


class _UnclearError(Exception):
    """What is looked for was found nowhere, or twice."""


class _Memory:
    """Reads of this process's memory that fail, instead of ending it, where there is none."""

    def __enter__(self) -> Self:
        self._file = os.open("/proc/self/mem", os.O_RDONLY)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """So many words from an address on. Raises OSError where not all of them can be read."""
        data = os.pread(self._file, count * _WORD, address) if 0 < address < 1 << 62 else b""
        if len(data) != count * _WORD:
            raise OSError(f"no memory at {address:#x}")
        return struct.unpack(f"{count}Q", data)

    def counts(self, address: int) -> tuple[int, ...]:
        """The 32-bit numbers at an address; none where it is no address."""
        try:
            words = self.words(address, _COUNTER_BYTES // _WORD) if address % _WORD == 0 else ()
        except OSError:
            return ()
        return struct.unpack(f"{2 * len(words)}I", struct.pack(f"{len(words)}Q", *words))


def _layout(memory: _Memory) -> Layout:
    implementation = _agreed(lambda tensor: _implementations(memory, tensor))
    changed = -1
    for _ in range(3):  # what lies behind is of others, who change it now and then
        changed &= _words_that_follow(memory)
    counter, version = _agreed(lambda tensor: _counters(memory, tensor))
    data = _agreed(lambda tensor: _data(memory, tensor))
    return Layout(implementation * _WORD, changed | 1 << counter, counter * _WORD, version, data * _WORD)


_SCRATCH_TENSORS = 3


def _agreed(places: Callable[[Tensor], set[_T]]) -> _T:
    """The one place that each of several scratch tensors has.

    One alone may have more: behind it lies what others left, such as a pointer of a freed tensor to the same counter.
    """
    buffers = [bytearray(4 * (3 + count)) for count in range(_SCRATCH_TENSORS)]
    kept = [torch.frombuffer(buffer, dtype=torch.float32) for buffer in buffers]  # all at once: apart
    found = set.intersection(*map(places, kept))
    if len(found) != 1:
        raise _UnclearError
    return found.pop()


def _implementations(memory: _Memory, tensor: Tensor) -> set[int]:
    """The words of a Python tensor that point to what implements it."""
    own = memory.words(id(tensor), type(tensor).__basicsize__ // _WORD)
    return {index for index, word in enumerate(own) if word == tensor._cdata}


def _data(memory: _Memory, tensor: Tensor) -> set[int]:
    """The words of a storage that point to its memory; of memory that is lent, as its owner is named beside it."""
    storage = tensor.untyped_storage()
    words = memory.words(storage._cdata, _STORAGE_WORDS)
    return {index for index, word in enumerate(words) if word == storage.data_ptr()}


def _words_that_follow(memory: _Memory) -> int:
    """The words that change with what a tensor is, one after the other, and with nothing else."""
    base = torch.zeros(2_000, dtype=torch.float32, device="cpu")

    def look(tensor: Tensor) -> tuple[int, ...]:
        return memory.words(tensor._cdata, _WORDS)

    changed = 0
    tensor = base.as_strided((5, 4, 3, 2, 7), (7, 1, 9, 11, 2), 3)
    shape, stride = list(tensor.shape), list(tensor.stride())
    others: list[Tensor] = [base.as_strided(shape, stride, 4), base.clone().as_strided(shape, stride, 3)]
    others.append(base.view(torch.int32).as_strided(shape, stride, 3))
    others += [base.as_strided(shape[:count], stride[:count], 3) for count in range(5)]
    for position in range(5):
        step = [int(one == position) for one in range(5)]
        others.append(base.as_strided([a + b for a, b in zip(shape, step, strict=True)], stride, 3))
        others.append(base.as_strided(shape, [a + b for a, b in zip(stride, step, strict=True)], 3))
    for other in others:
        tensor.data = base.as_strided(shape, stride, 3)
        before = look(tensor)
        tensor.data = other
        differs = _differing(before, look(tensor))
        if not differs:
            raise _UnclearError
        changed |= differs
    held = [tensor, *(tensor for _ in range(9))]
    before = look(tensor)
    kept = tensor.requires_grad_(False).detach(), tensor.view_as(tensor), tensor.numpy(), [held]
    changed &= ~_differing(before, look(tensor))  # of references, not of what it is
    del kept
    storage = tensor.untyped_storage()._cdata
    if not any(word == storage and changed >> index & 1 for index, word in enumerate(look(tensor))):
        raise _UnclearError
    return changed


def _differing(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 << index for index, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])


def _counters(memory: _Memory, tensor: Tensor) -> set[tuple[int, int]]:
    """The words that point to what counts versions, each with the offset in that of the number."""
    found: set[tuple[int, int]] | None = None
    for times in (3, 14, 159):
        for _ in range(times):
            tensor.add_(1)
        version, words = tensor._version, memory.words(tensor._cdata, _WORDS)
        still = range(_WORDS) if found is None else {index for index, _ in found}
        here = {
            (index, 4 * at)
            for index in still
            for at, count in enumerate(memory.counts(words[index]))
            if count == version
        }
        found = here if found is None else found & here
    return found or set()


def _bits(mask: int) -> Iterator[int]:
    return (index for index in range(_WORDS) if mask >> index & 1)


def _word_at(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value
