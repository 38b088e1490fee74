"""Weight guard: detects that a weight changed since a copy of it (packed, folded, converted) was made.

    1. where it lies, its shape, strides, dtype  `weight.data = other`, FSDP's unsharding
    2. its version counter                       what PyTorch counts: in-place operations, optimizers, `load_state_dict`
    3. some of its elements, spread over it      most of what PyTorch does not count: writes through `.data`, NumPy,
                                                 DLPack, the storage; all of a small one
    4. all of it, a part after the other         the rest of that

1 to 3 are compared at every use. 4 takes a share of the time of the calls that use the copy, 0.2% for most weights and
0.85% at most, and goes through all of a weight within 2 s of these calls: up to 130 MB for each 10 GB/s that a thread
reads; larger ones take longer in proportion. A guard that is `strict` compares everything at every use.

Checksums of chunks of 64 KiB are compared, by native code (weight_guard.h) where there is some, else by PyTorch.
Write tracking by the operating system (userfaultfd, PAGEMAP_SCAN, soft-dirty bits) would find a write at once, but is
closed to processes in most containers, ends at fork, does not see private mappings of files (safetensors), and a scan
of the page tables costs as much as this does.

Environment:
    KERNELS_HUB_PACKED_GUARD   "0" leaves out 3 and 4, in programs that write only in ways that PyTorch counts
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import NamedTuple

import torch
from torch import Tensor, nn

_LOGGER = logging.getLogger("kernels_hub")
_IS_ON = os.environ.get("KERNELS_HUB_PACKED_GUARD", "1") != "0"

CHUNK = 1 << 16
"""Bytes of which one checksum is kept."""
_PLACES, _WIDTH, _SMALL = 8, 32, 1 << 13
"""Of larger weights, so many places of so many bytes are compared at every use; smaller ones whole."""
_LEAST, _MOST, _TURN = 0.002, 0.0085, 1e9
"""Shares of the time of calls, and the nanoseconds of calls in which all is compared: as in weight_guard.h."""
_LONGEST = 1e9


class Native(NamedTuple):
    """The functions of weight_guard.h."""

    fill: Callable[[int], object]
    holds: Callable[[int, int, int], int]

    @classmethod
    def of(cls, library: ctypes.CDLL) -> Native:
        """Those of a library."""
        library.kh_guard_fill.argtypes, library.kh_guard_fill.restype = (ctypes.c_void_p,), None
        library.kh_guard_holds.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
        library.kh_guard_holds.restype = ctypes.c_int
        return cls(library.kh_guard_fill, library.kh_guard_holds)


class _Record(ctypes.Structure):
    """KhGuard of weight_guard.h."""

    _fields_ = (
        ("chunks", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("samples", ctypes.c_void_p),
        ("sampled", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("next", ctypes.c_int64),
        ("turns", ctypes.c_int64),
        ("credit", ctypes.c_double),
        ("cost", ctypes.c_double),
    )


class Content:
    """What the memory of tensors held, and whether it still does.

    It does not keep that memory: it is asked only while the tensors lie where they lay. elapsed: nanoseconds of calls
    since it was asked the last time, which whoever calls adds up.
    """

    elapsed: int
    strict: bool
    """Whether everything is compared whenever it is asked."""

    def __init__(self) -> None:
        self.elapsed, self.strict = 0, False

    def holds(self, *, whole: bool = False) -> bool:
        """Whether nothing changed, as far as is compared now. whole: everything is."""
        raise NotImplementedError

    @property
    def turns(self) -> int:
        """How often everything was compared, a part after the other."""
        raise NotImplementedError


class NativeContent(Content):
    """Of tensors on the CPU, compared by native code."""

    def __init__(self, tensors: Sequence[Tensor], native: Native) -> None:
        super().__init__()
        with torch.inference_mode(False):
            chunks, samples, self._kept = _tables(tensors)
        self._tables = (chunks, samples)
        self.record = _Record(
            chunks.data_ptr(), len(chunks), samples.data_ptr(), len(samples), int(chunks[:, 1].sum())
        )
        self.address = ctypes.addressof(self.record)
        self._holds = native.holds
        native.fill(self.address)

    def holds(self, *, whole: bool = False) -> bool:
        """See `Content`."""
        elapsed, self.elapsed = self.elapsed, 0
        return self._holds(self.address, elapsed, whole or self.strict) != 0

    @property
    def turns(self) -> int:
        """See `Content`."""
        return int(self.record.turns)


class TorchContent(Content):
    """Of tensors anywhere, compared by PyTorch."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        with torch.inference_mode(False), torch.no_grad():
            spans = [one for one in map(_span, tensors) if one.numel()]
            self._chunks = [part for one in spans for part in one.split(CHUNK)]
            self._samples = _alike([_sample(one) for one in spans])
            self._kept = [torch.cat(one) for one in self._samples]
            begin = perf_counter_ns()
            self._sums = [_checksum(one) for one in self._chunks]
        self._cost = (perf_counter_ns() - begin) / max(1, len(self._chunks))
        self._next, self._turns, self._credit = 0, 0, 0.0

    def holds(self, *, whole: bool = False) -> bool:
        """See `Content`. In the capture of a CUDA graph, nothing is compared."""
        if self._chunks and self._chunks[0].is_cuda and torch.cuda.is_current_stream_capturing():
            return True
        elapsed, self.elapsed = self.elapsed, 0
        with torch.no_grad():
            if not all(map(torch.equal, map(torch.cat, self._samples), self._kept)):
                return False
            if whole or self.strict:
                return all(map(self._chunk_holds, range(len(self._chunks))))
            count = len(self._chunks)
            cost = self._cost * count
            self._credit += min(elapsed, _LONGEST) * min(max(cost / _TURN, _LEAST), _MOST)
            self._credit = min(self._credit, cost)
            due = int(self._credit / (0.999999 * self._cost)) if self._cost else count
            return all(self._next_holds() for _ in range(max(0, min(due, count))))

    @property
    def turns(self) -> int:
        """See `Content`."""
        return self._turns

    def _next_holds(self) -> bool:
        begin = perf_counter_ns()
        same = self._chunk_holds(self._next)
        self._next += 1
        if self._next == len(self._chunks):
            self._next, self._turns = 0, self._turns + 1
        took = min(
            perf_counter_ns() - begin, 4 * self._cost
        )  # other work that took the processor is not this one's
        self._credit -= took
        self._cost += (took - self._cost) / 16
        return same

    def _chunk_holds(self, which: int) -> bool:
        return torch.equal(_checksum(self._chunks[which]), self._sums[which])


def content_of(tensors: Sequence[Tensor], native: Native | None) -> Content | None:
    """What tensors hold now; None where that is not compared."""
    if not _IS_ON:
        return None
    if native is not None and all(one.device.type == "cpu" for one in tensors):
        return NativeContent(tensors, native)
    return TorchContent(tensors)


class _State(NamedTuple):
    """What PyTorch says of a tensor."""

    address: int
    version: int | None
    """None of an inference tensor, which counts none."""
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class WeightGuard:
    """Whether tensors are what they were when this was made: see the module.

    To be made before the copy, so that an edit in between is noticed later. It holds no tensor.
    """

    __slots__ = ("_is_stale", "_states", "content")

    def __init__(self, tensors: Sequence[Tensor], native: Native | None = None) -> None:
        self._states = [_state(one) for one in tensors]
        self.content = content_of(tensors, native)
        self._is_stale = False

    def holds(self, tensors: Sequence[Tensor], *, whole: bool = False) -> bool:
        """Whether `tensors` are still what they were, as far as is compared now. whole: all of them is.

        What runs from here to `finished` on this thread is a call that uses the copy; parts are compared for a share of
        its time.
        """
        if not self.counted(tensors):
            return False
        content = self.content
        if content is None:
            return True
        if self._is_stale or not content.holds(whole=whole):
            if not self._is_stale:
                self._is_stale = True  # the next question may compare another part
                if not whole:  # else it was asked for, which is what the warning advises
                    tell(tensors)
            return False
        if not whole:
            _RUNNING.content, _RUNNING.since = content, perf_counter_ns()
        return True

    def counted(self, tensors: Sequence[Tensor]) -> bool:
        """Whether PyTorch says that `tensors` are what they were."""
        for tensor, (address, version, shape, stride, dtype) in zip(tensors, self._states, strict=True):
            if (
                tensor.data_ptr() != address
                or (version is not None and tensor._version != version)
                or tensor.shape != shape
                or tensor.dtype is not dtype
                or tensor.stride() != stride
            ):
                return False
        return True

    def be_strict(self, on: bool) -> None:
        """Compare everything at every use, or no more."""
        if self.content is not None:
            self.content.strict = on


class _Running(threading.local):
    """The guard whose copy a thread works with, and since when."""

    content: Content | None = None
    since = 0


_RUNNING = _Running()


def finished() -> None:
    """The call that began with the last `holds` on this thread is over."""
    running = _RUNNING
    content = running.content
    if content is not None:
        running.content = None
        content.elapsed += perf_counter_ns() - running.since


_NOT_THEIRS = ("torch._", "torch.export", "torch.fx")
"""Where modules are made that wrap a user's while it is traced."""

_TOLD: set[int] = set()
"""The weights of models of which it was said that they were written to."""


def tell(tensors: Sequence[Tensor]) -> None:
    """Warn, once for a model, that one of its weights was written to in a way that PyTorch does not count."""
    if any(id(one) in _TOLD for one in tensors):
        return
    name, others = _named(tensors)
    _TOLD.update(map(id, tensors), others)
    _LOGGER.warning(
        "%s was written to in a way that PyTorch does not count (through .data, NumPy, DLPack or its storage); "
        "kernels have used an older copy until now, and use a new one from here on. After such writes, call "
        "kernels_hub.refresh(model), or write under torch.no_grad(); kernelize(..., strict_weights=True) compares "
        "all weights at every call",
        name,
    )


def _named(tensors: Sequence[Tensor]) -> tuple[str, set[int]]:
    """What to call the first of some weights, and all weights of its model: of the module that has most of them.

    Looks at every module there is: a warning is rare.
    """
    wanted, best, kind, weights = {id(one) for one in tensors}, "", "", set[int]()
    modules = [
        one
        for one in gc.get_objects()
        if issubclass(type(one), nn.Module) and not type(one).__module__.startswith(_NOT_THEIRS)
    ]
    for module in modules:
        of: dict[int, str] = {}
        with suppress(Exception):  # one that is half made, changed by another thread, or has ways of its own
            of = {id(one): name for name, one in (*module.named_parameters(), *module.named_buffers())}
        found = next((name for key, name in of.items() if key in wanted), None)
        if found is not None and (len(of), len(found)) > (len(weights), len(best)):
            best, kind, weights = found, type(module).__qualname__, set(of)
    shape = list(tensors[0].shape)
    return f"Weight {best!r} of a {kind}" if best else f"A weight of shape {shape}", weights


def _tables(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of KhChunk, rows of KhSample, and the memory that the latter are kept in."""
    chunks, samples = [torch.empty(0, 3, dtype=torch.int64)], [torch.empty(0, 3, dtype=torch.int64)]
    for one in tensors:
        start, size = one.data_ptr(), _span_bytes(one)
        if not size:
            continue
        chunks.append(_rows(start, size, CHUNK, min(CHUNK, size)))
        chunks[-1][-1, 1] = size - CHUNK * (len(chunks[-1]) - 1)
        if size <= _SMALL:
            samples.append(_rows(start, size, size, size))
        else:
            samples.append(_rows(start, size - _WIDTH + 1, _step(size), _WIDTH))
    table = torch.cat(samples)
    kept = torch.empty(int(table[:, 1].sum()), dtype=torch.uint8)
    table[:, 2] = kept.data_ptr() + table[:, 1].cumsum(0) - table[:, 1]
    return torch.cat(chunks), table, kept


def _rows(start: int, size: int, step: int, width: int) -> Tensor:
    places = torch.arange(0, size, step, dtype=torch.int64)
    return torch.stack((places + start, torch.full_like(places, width), torch.zeros_like(places)), dim=1)


def _step(size: int) -> int:
    """Bytes from one place to the next: an odd number of words, so that they lie in many columns."""
    words = (size - _WIDTH) // (_PLACES - 1) // 8
    return ((words - 1) | 1) * 8


def _span_bytes(tensor: Tensor) -> int:
    """Bytes from the first to the last element of a tensor."""
    if not tensor.numel():
        return 0
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (1 + reach) * tensor.element_size()


def _span(tensor: Tensor) -> Tensor:
    """The same as bytes; a view that shares memory but does not own it where that is the processor's."""
    size = _span_bytes(tensor)
    if tensor.device.type == "cpu" and size:
        memory = (ctypes.c_uint8 * size).from_address(tensor.data_ptr())
        return torch.frombuffer(memory, dtype=torch.uint8)
    flat = tensor.detach().as_strided((size // tensor.element_size(),), (1,))
    return flat.view(torch.uint8)


def _sample(span: Tensor) -> Tensor:
    size = span.numel()
    if size <= _SMALL:
        return span.view(1, size)
    places = 1 + (size - _WIDTH) // _step(size)
    return span.as_strided((places, _WIDTH), (_step(size), 1))


def _alike(samples: Sequence[Tensor]) -> list[list[Tensor]]:
    """Those of one width and device together: they are compared at once."""
    groups: dict[tuple[int, torch.device], list[Tensor]] = {}
    for one in samples:
        groups.setdefault((one.shape[1], one.device), []).append(one)
    return list(groups.values())


_FACTORS: dict[torch.device, Tensor] = {}


def _checksum(chunk: Tensor) -> Tensor:
    """A sum of products with random odd numbers; the upper half of a word is mixed into the lower one first."""
    factors = _FACTORS.get(chunk.device)
    if factors is None:
        random = torch.Generator().manual_seed(0x9E3779B97F4A7C15 % (1 << 63))
        numbers = torch.randint(-(1 << 62), 1 << 62, (CHUNK // 8,), generator=random)
        factors = _FACTORS[chunk.device] = (numbers * 2 + 1).to(chunk.device)
    whole = chunk.numel() // 8 * 8
    words = chunk[:whole].view(torch.int64) if _is_aligned(chunk) else chunk[:whole].clone().view(torch.int64)
    total = ((words ^ (words >> 32)) * factors[: len(words)]).sum()
    rest = chunk[whole:]
    if rest.numel():
        total = total + (rest.to(torch.int64) * factors[-rest.numel() :]).sum() * 3
    return total


def _is_aligned(chunk: Tensor) -> bool:
    return bool(chunk.data_ptr() % 8 == 0 and chunk.storage_offset() % 8 == 0)


def _state(tensor: Tensor) -> _State:
    version = None if tensor.is_inference() else tensor._version
    return _State(tensor.data_ptr(), version, tensor.shape, tensor.stride(), tensor.dtype)
