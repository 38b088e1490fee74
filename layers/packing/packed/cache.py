"""Packed copies of weights: each lives as long as its weight, and is used as long as it matches it.

A copy belongs to one `torch.nn.Parameter` object and remembers in what state it was packed. Before
every use the state is compared:

    1. address, shape, dtype     `weight.data = other`, FSDP's unsharding, a move to another device
    2. version counter           every in-place operation on the weight: optimizers, `copy_`, `load_state_dict`
    3. up to 64 of its elements  in-place edits through `.data` or `detach()`ed storage that do not count
                                 as versions, such as `weight.data += delta` when a LoRA is merged

Together they cost about 2.5 microseconds. What is left is an edit through `.data` that touches none of
the 64 elements (they lie in 64 different rows and columns where the weight has as many); whoever edits
single elements of `weight.data` calls `forget(weight)`, or edits the weight under `torch.no_grad()`.

Environment:
    KERNELS_HUB_PACKED_GUARD   "0" leaves out step 3, which costs about 2 microseconds a call, in programs
                               that never write through `.data`
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

_GUARD = os.environ.get("KERNELS_HUB_PACKED_GUARD", "1") != "0"
_SAMPLES = 64

# oneDNN pads rows to blocks of up to 64: a copy that is mostly padding is not worth its memory.
_LARGEST_PADDING = 1.5

_LOCK = threading.RLock()
_ENTRIES: dict[int, Entry] = {}
_packs = 0


class Entry:
    """The packed copy of one weight, and the state of the weight that it was made from."""

    __slots__ = (
        "dtype",
        "excluded",
        "nbytes",
        "packed",
        "pointer",
        "reference",
        "sample",
        "shape",
        "step",
        "version",
        "wrapper",
    )

    def __init__(self, weight: Parameter) -> None:
        """Notes the state only. The version is read first: an edit while we pack is noticed later."""
        self.reference = weakref.ref(weight, _remover(id(weight)))
        self.version = _version(weight)
        self.pointer = weight.data_ptr()
        self.shape = weight.shape
        self.dtype = weight.dtype
        self.step = _step(*weight.shape)
        self.sample = self._read(weight).clone()
        self.packed: Tensor | None = None
        self.nbytes = 0
        self.excluded = False
        """Whether somebody may write to the weight unseen: it is never packed then."""
        self.wrapper: Any = None
        """The tensor that stands for this weight where its original was freed; see `held`."""

    def matches(self, weight: Tensor) -> bool:
        """Whether `weight` is still what was packed."""
        return (
            self.reference() is weight
            and weight.data_ptr() == self.pointer
            and _version(weight) == self.version
            and weight.shape == self.shape
            and weight.dtype is self.dtype
            and weight.is_contiguous()
            and (not _GUARD or self._has_same_sample(weight))
        )

    def _has_same_sample(self, weight: Tensor) -> bool:
        now = self._read(weight)
        # The slow second look is for NaN, which equals nothing: compare bits.
        return torch.equal(now, self.sample) or torch.equal(_bits(now), _bits(self.sample))

    def _read(self, weight: Tensor) -> Tensor:
        return weight.as_strided((min(_SAMPLES, weight.numel()),), (self.step,))


def packed_copy(weight: Tensor) -> Tensor | None:
    """The packed copy of a weight, made at the first use; None for what cannot, or need not, be packed.

    weight: (N, K), a plain contiguous Parameter on the CPU; float32, and bfloat16 and float16 where
        oneDNN has them on this machine. Anything else (subclasses, views that FSDP puts in a
        parameter's place, odd shapes that would be mostly padding) gives None.
    Returns an opaque tensor in oneDNN's layout. Never raises for a weight that it cannot pack.
    """
    entry = _ENTRIES.get(id(weight))
    if entry is not None and (entry.excluded or entry.matches(weight)):
        return entry.packed
    if not can_pack(weight):
        return None
    with _LOCK:
        entry = _ENTRIES.get(id(weight))
        if entry is None or not entry.matches(weight):
            entry = _pack(weight, entry)
        return entry.packed


def entry_of(weight: Tensor) -> Entry | None:
    """The cache's entry for a weight, None without one that still matches."""
    entry = _ENTRIES.get(id(weight))
    return entry if entry is not None and entry.matches(weight) else None


def forget(weight: Tensor) -> None:
    """Drop the packed copy of a weight; the next use packs again."""
    entry = _ENTRIES.get(id(weight))
    if entry is not None and entry.reference() is weight and not entry.excluded:
        _ENTRIES.pop(id(weight), None)


def exclude(weight: Parameter) -> None:
    """Do not pack this weight until `readmit`: views that do not share its version are about."""
    with _LOCK:
        entry = Entry(weight)
        entry.excluded = True
        _ENTRIES[id(weight)] = entry


def is_excluded(weight: Tensor) -> bool:
    """Whether `exclude` holds for a weight."""
    entry = _ENTRIES.get(id(weight))
    return entry is not None and entry.excluded and entry.reference() is weight


def readmit(weight: Tensor) -> None:
    """Undo `exclude`."""
    entry = _ENTRIES.get(id(weight))
    if entry is not None and entry.reference() is weight and entry.excluded:
        _ENTRIES.pop(id(weight), None)


def adopt(weight: Parameter, packed: Tensor) -> None:
    """Take `packed` as the copy of `weight`, without packing."""
    with _LOCK:
        entry = Entry(weight)
        entry.packed, entry.nbytes = packed, packed_nbytes(packed)
        _ENTRIES[id(weight)] = entry


def number_of_packs() -> int:
    """How many weights this process has packed so far, repeats included."""
    return _packs


def can_pack(weight: Tensor) -> bool:
    """Whether a weight is of the kind that is packed."""
    return (
        type(weight) is Parameter
        and weight.dtype in dtypes()
        and weight.device.type == "cpu"
        and weight.layout is torch.strided
        and weight.dim() == 2
        and weight.is_contiguous()
        and weight.numel() > 0
        and weight.data_ptr() != 0  # parameters under construction have no storage yet
    )


def reorder(dense: Tensor) -> Tensor:
    """A (N, K) tensor in oneDNN's layout for the right-hand side of a linear layer."""
    global _packs
    # A copy made under inference_mode must serve later calls outside it as well.
    with torch.inference_mode(False), torch.no_grad():
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(dense.detach(), None)
    _packs += 1
    return packed


def packed_nbytes(packed: Tensor) -> int:
    """Bytes that a packed tensor holds, its padding included."""
    return int(torch.ops.mkldnn._nbytes(packed))


def _pack(weight: Tensor, stale: Entry | None) -> Entry:
    assert isinstance(weight, Parameter)
    if stale is not None:  # both at once would be the peak of memory for nothing
        stale.packed = None
    with torch.inference_mode(False), torch.no_grad():
        entry = Entry(weight)
    if stale is not None:
        entry.wrapper = stale.wrapper
    packed = reorder(weight)
    nbytes = packed_nbytes(packed)
    if nbytes <= weight.nbytes * _LARGEST_PADDING:
        entry.packed, entry.nbytes = packed, nbytes
    _ENTRIES[id(weight)] = entry
    return entry


def _remover(key: int) -> Any:
    def remove(reference: weakref.ref[Parameter]) -> None:
        entry = _ENTRIES.get(key)
        if entry is not None and entry.reference is reference:
            del _ENTRIES[key]

    return remove


def _version(weight: Tensor) -> int:
    try:
        return weight._version
    except RuntimeError:  # inference tensors do not count versions: the sample has to do
        return -1


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def _step(rows: int, columns: int) -> int:
    """Distance between sampled elements, such that they lie in as many rows and columns as there are."""
    step = max(1, rows * columns // _SAMPLES)
    if step > columns:  # neighbours in the sample are a golden section of a row apart
        step -= (step - round(0.618 * columns)) % columns
    while math.gcd(step, columns) > 1:
        step -= 1
    return step


_DTYPES: frozenset[torch.dtype] | None = None


def dtypes() -> frozenset[torch.dtype]:
    """The dtypes that oneDNN multiplies natively on this machine."""
    global _DTYPES
    if _DTYPES is None:
        found = set()
        if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
            found.add(torch.float32)
            if torch.ops.mkldnn._is_mkldnn_bf16_supported():
                found.add(torch.bfloat16)
            if torch.ops.mkldnn._is_mkldnn_fp16_supported():
                found.add(torch.float16)
        _DTYPES = frozenset(found)
    return _DTYPES
