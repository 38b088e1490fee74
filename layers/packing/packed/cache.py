"""Packed copies of weights: each lives as long as its weight, and is used as long as it matches it.

A copy belongs to one `torch.nn.Parameter` object, and a guard compares the parameter with what it was when
it was packed, before every use: what PyTorch counts at once, the rest in turns (see weight_guard.py). What
is written in a way that PyTorch does not count (`weight.data[5] = 3.0`) is found by `current(weight)` at once.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from . import guard

finished = guard.finished
"""To be called when a product with what `packed_copy` gave is done: comparing takes a share of its time."""

# oneDNN pads rows to blocks of up to 64: a copy that is mostly padding is not worth its memory.
_LARGEST_PADDING = 1.5

_LOCK = threading.RLock()
_ENTRIES: dict[int, Entry] = {}
_REFUSED: dict[int, weakref.ref[Parameter]] = {}
"""Weights of which no copy is to be kept."""
_packs = 0


class Entry:
    """The packed copy of one weight, and the state of the weight that it was made from."""

    __slots__ = (
        "excluded",
        "guard",
        "nbytes",
        "packed",
        "reference",
        "transposed",
        "wrapper",
    )

    def __init__(self, weight: Parameter, transposed: bool = False) -> None:
        """Notes the state only: an edit while we pack is noticed later."""
        self.reference = weakref.ref(weight, _remover(id(weight)))
        self.guard = guard.guard((weight,))
        self.guard.be_strict(guard.is_strict(weight))
        self.packed: Tensor | None = None
        self.nbytes = 0
        self.transposed = transposed
        """Whether the weight lies as (K, N), and its transpose was packed."""
        self.excluded = False
        """Whether somebody may write to the weight unseen: it is never packed then."""
        self.wrapper: Any = None
        """The tensor that stands for this weight where its original was freed; see `held`."""

    def matches(self, weight: Tensor, *, whole: bool = False) -> bool:
        """Whether `weight` is still what was packed, as far as is compared now. whole: all of it is."""
        return self.reference() is weight and self.guard.holds((weight,), whole=whole)


def packed_copy(weight: Tensor, transposed: bool = False) -> Tensor | None:
    """The packed copy of a weight, made at the first use; None for what cannot, or need not, be packed.

    weight: (N, K), or (K, N) where `transposed`; a plain contiguous Parameter on the CPU; float32, and
        bfloat16 and float16 where oneDNN has them on this machine. Anything else (subclasses, views that FSDP puts in a
        parameter's place, odd shapes that would be mostly padding) gives None.
    Returns an opaque tensor in oneDNN's layout. Never raises for a weight that it cannot pack. A weight
    that two layers share, one of them transposed, is packed for the first of them alone.
    """
    entry = _ENTRIES.get(id(weight))
    if entry is not None and (entry.excluded or entry.matches(weight)):
        return entry.packed if entry.transposed is transposed else None
    if not can_pack(weight) or is_refused(weight):
        return None
    with _LOCK:
        entry = _ENTRIES.get(id(weight))
        if entry is None or not entry.matches(weight):
            entry = _pack(weight, entry, transposed)
        return entry.packed if entry.transposed is transposed else None


def entry_of(weight: Tensor) -> Entry | None:
    """The cache's entry for a weight, None without one that PyTorch says still matches."""
    entry = _ENTRIES.get(id(weight))
    if entry is None or entry.reference() is not weight or not entry.guard.counted((weight,)):
        return None
    return entry


def current(weight: Tensor) -> Tensor | None:
    """As `packed_copy`, after all of the weight was compared."""
    entry = _ENTRIES.get(id(weight))
    if entry is not None and not entry.excluded and not entry.matches(weight, whole=True):
        forget(weight)
    return None if entry is None else packed_copy(weight, entry.transposed)


def strict(weight: Tensor, on: bool) -> None:
    """Compare all of a weight at every use, or no more."""
    guard.mark_strict(weight, on)
    entry = _ENTRIES.get(id(weight))
    if entry is not None and entry.reference() is weight:
        entry.guard.be_strict(on)


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


def refuse(weight: Tensor) -> None:
    """Keep no copy of a weight until `allow`, and drop the one that there is."""
    if isinstance(weight, Parameter) and not is_refused(weight):
        key = id(weight)
        _REFUSED[key] = weakref.ref(weight, lambda _: _REFUSED.pop(key, None))
        forget(weight)


def is_refused(weight: Tensor) -> bool:
    """Whether `refuse` holds for a weight. Not in code that is traced, which would depend on what others are."""
    if torch.compiler.is_compiling():
        return False
    found = _REFUSED.get(id(weight)) if _REFUSED else None
    return found is not None and found() is weight


def refuses() -> bool:
    """Whether `refuse` holds for any weight; as `is_refused`."""
    return not torch.compiler.is_compiling() and bool(_REFUSED)


def allow(weight: Tensor) -> None:
    """Undo `refuse`."""
    _REFUSED.pop(id(weight), None)


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
        and not weight.is_neg()
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


def _pack(weight: Tensor, stale: Entry | None, transposed: bool) -> Entry:
    assert isinstance(weight, Parameter)
    if stale is not None:  # both at once would be the peak of memory for nothing
        stale.packed = None
    with torch.inference_mode(False), torch.no_grad():
        entry = Entry(weight, transposed)
    if stale is not None:
        entry.wrapper = stale.wrapper
    packed = reorder(weight.detach().t().contiguous() if transposed else weight)
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


def dtypes() -> frozenset[torch.dtype]:
    """The dtypes that oneDNN multiplies natively on this machine."""
    return _DTYPES


def _multiplied_dtypes() -> frozenset[torch.dtype]:
    found = set()
    if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        found.add(torch.float32)
        if torch.ops.mkldnn._is_mkldnn_bf16_supported():
            found.add(torch.bfloat16)
        if torch.ops.mkldnn._is_mkldnn_fp16_supported():
            found.add(torch.float16)
    return frozenset(found)


_DTYPES = _multiplied_dtypes()
"""Asked on import: torch.jit.trace refuses these operators, whose results are no tensors."""
