"""Weight guard: detects that a weight changed since a copy of it (packed, folded, converted) was made.

    1. where it lies, its shape, strides, dtype  `weight.data = other`, FSDP's unsharding
    2. its version counter                       what PyTorch counts: in-place operations, optimizers, `load_state_dict`
    3. some of its elements, spread over it,     most of what PyTorch does not count: writes through `.data`, NumPy,
       all of them in four uses                  DLPack, the storage; all of a small one at every use
    4. all of it, a part after the other         the rest of that

1 to 3 are compared at every use. 4 takes a share of the time of the calls that use the copy, 0.2% for most weights and
0.6% at most, and goes through all of a weight within 2 s of these calls: up to 120 MB for each 10 GB/s that a thread
reads; larger ones take longer in proportion. Where 1 to 3 take more than 0.2%, 4 takes what is left of 0.8%. A guard
that is `strict` compares everything at every use.

1 and 2 are asked of native code first (tensor_state.py), and of PyTorch where that sees a difference or there is none.

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
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import get_ident
from time import perf_counter_ns

import torch
from torch import Tensor, nn

from .tensor_state import KnownTensors, TensorState

_LOGGER = logging.getLogger(__name__)
_IS_ON = os.environ.get("KERNELS_HUB_PACKED_GUARD", "1") != "0"

CHUNK = 1 << 16
"""Bytes of which one checksum is kept."""
_PLACES, _WIDTH, _SMALL = 8, 32, 1 << 13
_USES = 4  # kKhUses of weight_guard.h
"""Of larger weights, so many places of so many bytes are compared at every use; smaller ones whole."""
_LEAST, _MOST, _ALL, _TURN = 0.002, 0.006, 0.008, 1.6e9
"""Shares of the time of calls: the least and the most to compare in turns, the most for all that a guard does. Then the
nanoseconds of calls in which all is compared. As in weight_guard.h."""
_LONGEST = 1e9
_TIMED = 8
"""Of so many uses, one is timed."""
_HOLDS, _WRITTEN, _TIME = 1, 2, 3
"""What kh_use_asked says; with the last, the call is to be timed."""
_PYTHON = (
    "PyDict_GetItemWithError", "PyDict_Size", "PyObject_Type", "Py_DecRef", "PyLong_AsVoidPtr", "PyLong_FromLong",
    "PyTuple_Size", "PyTuple_GetItem", "_PyObject_GetDictPtr", "PyDict_Next",
)  # fmt: skip
"""The functions of KhPython."""
NO_ARGUMENTS, ONE_ARGUMENT = 0x0004, 0x0008
"""METH_NOARGS and METH_O."""


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class Native:
    """The functions of weight_guard.h in a library, on CPython, whose objects it knows by their addresses."""

    def __init__(self, library: ctypes.CDLL) -> None:
        functions = (ctypes.c_void_p * len(_PYTHON))(*(_address(ctypes.pythonapi, name) for name in _PYTHON))
        library.kh_use_python(functions)
        for one in (library.kh_guard_fill, library.kh_guard_holds_all):
            one.argtypes = (ctypes.c_void_p,)
        self.fill: Callable[[int], object] = library.kh_guard_fill
        self.holds_all: Callable[[int], int] = library.kh_guard_holds_all
        self.library = library
        self._methods: dict[str, _Method] = {}
        self._make = ctypes.pythonapi.PyCFunction_NewEx
        self._make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        self._make.restype = ctypes.py_object

    @classmethod
    def of(cls, library: ctypes.CDLL | None) -> Native | None:
        """Those of a library; None without one, and on other Pythons than CPython."""
        return cls(library) if library is not None and sys.implementation.name == "cpython" else None

    def bound(self, name: str, record: ctypes.Structure, flags: int = NO_ARGUMENTS) -> Callable[..., int]:
        """A function of the library as one of Python's own, bound to a record. Of ctypes, it takes 5 us on cold caches.

        The record and this must live as long as what is returned is called. flags: of PyMethodDef.
        """
        method = self._methods.get(name)
        if method is None:
            method = self._methods[name] = _Method(name.encode(), _address(self.library, name), flags, None)
        bound: Callable[..., int] = self._make(ctypes.addressof(method), ctypes.addressof(record), None)
        return bound


def _address(library: ctypes.CDLL, name: str) -> int | None:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value


class _GuardStruct(ctypes.Structure):
    """KhGuard of weight_guard.h."""

    _fields_ = (
        ("chunks", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("samples", ctypes.c_void_p),
        ("sampled", ctypes.c_int64),
        ("small", ctypes.c_int64),
        ("asked", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("next", ctypes.c_int64),
        ("turns", ctypes.c_int64),
        ("credit", ctypes.c_double),
        ("cost", ctypes.c_double),
        ("elapsed", ctypes.c_int64),
        ("asking", ctypes.c_double),
    )


class Content(ABC):
    """What the memory of tensors held, and whether it still does.

    It does not keep that memory: it is asked only while the tensors lie where they lay.
    """

    strict = False
    """Whether everything is compared whenever it is asked."""

    @abstractmethod
    def holds(self, *, whole: bool = False) -> bool:
        """Whether nothing changed, as far as is compared now. whole: everything is."""

    @abstractmethod
    def took(self, elapsed: int) -> None:
        """Calls took so many nanoseconds, of which a share may be spent on comparing."""

    @property
    @abstractmethod
    def turns(self) -> int:
        """How often everything was compared, a part after the other."""


class NativeContent(Content):
    """Of tensors on the CPU, compared by native code."""

    def __init__(self, tensors: Sequence[Tensor], native: Native) -> None:
        with torch.inference_mode(False):
            chunks, samples, small, self._kept = _tables(tensors)
        self._tables = (chunks, samples)
        self.record = _GuardStruct(
            *(chunks.data_ptr(), len(chunks), samples.data_ptr(), len(samples), small),
            bytes=int(chunks[:, 1].sum()),
        )
        self.address = ctypes.addressof(self.record)
        self._native, self._asked = native, native.bound("kh_guard_asked", self.record)
        native.fill(self.address)

    def holds(self, *, whole: bool = False) -> bool:
        """See `Content`."""
        if whole or self.strict:
            return self._native.holds_all(self.address) != 0
        return self._asked() != 0

    def took(self, elapsed: int) -> None:
        """See `Content`."""
        self.record.elapsed += elapsed

    @property
    def turns(self) -> int:
        """See `Content`."""
        return int(self.record.turns)


class TorchContent(Content):
    """Of tensors anywhere, compared by PyTorch."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        with torch.inference_mode(False), torch.no_grad():
            spans = [one for one in map(_span, tensors) if one.numel()]
            self._chunks = [part for span in spans for part in span.split(CHUNK)]
            self._samples = _alike([_sample(span) for span in spans])
            self._kept = [torch.cat(sample) for sample in self._samples]
            begin = perf_counter_ns()
            self._sums = [_checksum(chunk) for chunk in self._chunks]
        self._cost = (perf_counter_ns() - begin) / max(1, len(self._chunks))
        self._next, self._turns, self._credit, self._elapsed, self._asking = 0, 0, 0.0, 0, 0

    def holds(self, *, whole: bool = False) -> bool:
        """See `Content`. In the capture of a CUDA graph, nothing is compared."""
        if self._chunks and self._chunks[0].is_cuda and torch.cuda.is_current_stream_capturing():
            return True
        begin = perf_counter_ns()
        with torch.no_grad():
            if not all(map(torch.equal, map(torch.cat, self._samples), self._kept)):
                return False
            if whole or self.strict:
                return all(map(self._chunk_holds, range(len(self._chunks))))
            self._asking += perf_counter_ns() - begin
            count = len(self._chunks)
            cost = self._cost * count
            if elapsed := min(self._elapsed, _LONGEST):
                most = min(_MOST, _ALL - self._asking / elapsed)
                self._credit += elapsed * max(_LEAST, min(cost / _TURN, most))
                self._credit = min(self._credit, cost)
                self._elapsed = self._asking = 0
            due = int(self._credit / (0.999999 * self._cost)) if self._cost else count
            return all(self._next_holds() for _ in range(max(0, min(due, count))))

    def took(self, elapsed: int) -> None:
        """See `Content`."""
        self._elapsed += elapsed

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
    if native is not None and all(tensor.device.type == "cpu" for tensor in tensors):
        return NativeContent(tensors, native)
    return TorchContent(tensors)


class _Use(ctypes.Structure):
    """KhUse of weight_guard.h."""

    _fields_ = (
        ("state", ctypes.c_void_p),
        ("guard", ctypes.c_void_p),
        ("timed", ctypes.c_int64),
        ("uses", ctypes.c_int64),
    )

    def __init__(self, state: TensorState, content: Content | None) -> None:
        guard = content.address if isinstance(content, NativeContent) else None
        super().__init__(None, guard, _TIMED)
        self.become(state)

    def become(self, state: TensorState) -> None:
        """Compare with another state from here on."""
        self._state, self.state = state, ctypes.addressof(state)


class WeightGuard:
    """Whether tensors are what they were when this was made: see the module.

    To be made before the copy, so that an edit in between is noticed later. It holds no tensor.
    """

    __slots__ = ("_asked", "_bound", "_is_stale", "_known", "_native", "_use", "_uses", "content")

    def __init__(self, tensors: Sequence[Tensor], native: Native | None = None) -> None:
        self._known = KnownTensors(tensors, is_native=native is not None)
        self.content = content_of(tensors, native)
        self._is_stale = False
        self._uses = 0
        self._native = native
        self._use: _Use | None = None
        self._bound: Callable[[tuple[Tensor, ...]], int] | None = None
        state = self._known.state
        if native is not None and state is not None and not isinstance(self.content, TorchContent):
            self._use = _Use(state, self.content)
            self._bound = native.bound("kh_use_asked", self._use, ONE_ARGUMENT)
        self._asked = self._bound
        """Native code, where it can be asked."""

    def holds(self, tensors: Sequence[Tensor], *, whole: bool = False) -> bool:
        """Whether `tensors` are still what they were, as far as is compared now. whole: all of them is.

        What runs from here to `finished` on this thread is a call that uses the copy; parts are compared for a share of
        its time, which is taken of some calls.
        """
        content = self.content
        if self._asked is not None and not whole:
            outcome = self._asked(tuple(tensors))
            if outcome == _HOLDS:
                return True
            if outcome == _TIME and content is not None:
                _RUNNING[get_ident()] = content, perf_counter_ns()
                return True
            if outcome == _WRITTEN:
                self._become_stale()
                tell(tensors)
                return False
        if not self._is_as_counted(tensors):
            return False
        if content is None:
            return True
        if self._is_stale:
            return False
        if not content.holds(whole=whole):
            self._become_stale()
            if not whole:  # else it was asked for, which is what the warning advises
                tell(tensors)
            return False
        self._uses += 1
        if self._uses % _TIMED == 1 and not whole:
            _RUNNING[get_ident()] = content, perf_counter_ns()
        return True

    def _become_stale(self) -> None:
        """For good: the next question may compare another part."""
        self._is_stale = True
        self._asked = self._bound = None

    def _is_as_counted(self, tensors: Sequence[Tensor]) -> bool:
        """The same as `counted`; what native code compares is taken down anew where PyTorch sees no difference."""
        if self._asked is None or self._use is None:
            return self.counted(tensors)
        same = self._known.same_after_all(tensors)
        if self._known.state is None:
            self._asked = self._bound = None
        elif same:
            self._use.become(self._known.state)
        return same

    def counted(self, tensors: Sequence[Tensor]) -> bool:
        """Whether PyTorch says that `tensors` are what they were."""
        return self._known.same(tensors)

    def be_strict(self, on: bool) -> None:
        """Compare everything at every use, or no more."""
        if self.content is not None:
            self.content.strict = on
            self._asked = None if on else self._bound


_RUNNING: dict[int, tuple[Content, int]] = {}
"""Thread -> what was compared for the call that is timed there, and when."""


def finished() -> None:
    """The call that began with the last `holds` on this thread is over."""
    if _RUNNING and (timed := _RUNNING.pop(get_ident(), None)) is not None:
        content, since = timed
        content.took(_TIMED * (perf_counter_ns() - since))


_NOT_THEIRS = ("torch._", "torch.export", "torch.fx")
"""Where modules are made that wrap a user's while it is traced."""

_TOLD: set[int] = set()
"""The weights of models of which it was said that they were written to."""


def tell(tensors: Sequence[Tensor]) -> None:
    """Warn, once for a model, that one of its weights was written to in a way that PyTorch does not count."""
    if any(id(tensor) in _TOLD for tensor in tensors):
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
    wanted, best, kind, weights = {id(tensor) for tensor in tensors}, "", "", set[int]()
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


def _tables(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor, int, Tensor]:
    """Rows of KhChunk; rows of KhSample, how many of them are small weights, and the memory that they are kept in."""
    chunks, small, samples = ([torch.empty(0, 3, dtype=torch.int64)] for _ in range(3))
    for tensor in tensors:
        start, size = tensor.data_ptr(), _span_bytes(tensor)
        if not size:
            continue
        chunks.append(_rows(start, size, CHUNK, min(CHUNK, size)))
        chunks[-1][-1, 1] = size - CHUNK * (len(chunks[-1]) - 1)
        if size <= _SMALL:
            small.append(_rows(start, size, size, size))
        else:
            samples.append(_rows(start, size - _WIDTH + 1, _step(size), _WIDTH))
    places = torch.cat(samples)
    table = torch.cat((*small, *(places[use::_USES] for use in range(_USES))))
    kept = torch.empty(int(table[:, 1].sum()), dtype=torch.uint8)
    table[:, 2] = kept.data_ptr() + table[:, 1].cumsum(0) - table[:, 1]
    return torch.cat(chunks), table, sum(map(len, small)), kept


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
    for sample in samples:
        groups.setdefault((sample.shape[1], sample.device), []).append(sample)
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
