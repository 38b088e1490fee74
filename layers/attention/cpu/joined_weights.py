"""Packed copies of weights that are multiplied with the same input, side by side in one copy.

A copy lives as long as each of its weights, and is used as long as all of them are what was packed; see
`packed/cache.py` for how that is noticed. The functions from `prepare` on are what `kernelize` asks of a
kernel that keeps packed weights; see kernels_hub/kernelization/bind.py.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .blocks import is_plain_linear
from .form import attends_to_another
from .guard import guard, is_strict
from .packing import cache
from .weights import free_originals as free_each
from .weights import keep_copies as keep_copies_of_each
from .weights import packed_nbytes as nbytes_of_each
from .weights import prepare as prepare_one
from .weights import refresh as refresh_each
from .weights import release as release_each
from .weights import restore_originals as restore_each
from .weights import strict as strict_each
from .weights import works_without_copies

__all__ = [
    "free_originals", "keep_copies", "packed_copy", "packed_nbytes", "prepare", "refresh", "release",
    "restore_originals", "strict", "works_without_copies",
]  # fmt: skip

_NAMES = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"))
"""Under which attention blocks keep what is joined."""

# Smaller weights are packed at the first call with so many rows that it pays, if there is one.
_LEAST_NUMEL = 65_536

_LOCK = threading.RLock()
_JOINED: dict[tuple[int, ...], _Joined] = {}


class _Joined:
    """One copy, and the states of the weights that it was made from."""

    __slots__ = ("guard", "nbytes", "packed", "references")

    def __init__(self, weights: Sequence[Tensor], key: tuple[int, ...]) -> None:
        self.guard = guard(weights)  # first: an edit while we pack is noticed later
        self.guard.be_strict(any(map(is_strict, weights)))
        self.references = [weakref.ref(weight, lambda _: _JOINED.pop(key, None)) for weight in weights]
        self.packed: Tensor = cache.reorder(torch.cat([weight.detach() for weight in weights]))
        self.nbytes: int = cache.packed_nbytes(self.packed)

    def matches(self, weights: Sequence[Tensor], *, whole: bool = False) -> bool:
        same = all(reference() is weight for reference, weight in zip(self.references, weights, strict=True))
        return same and self.guard.holds(weights, whole=whole)


def packed_copy(weights: Sequence[Tensor]) -> Tensor | None:
    """The joined copy of weights (N1, K), (N2, K), …; None where one cannot, or must not, be packed."""
    key = tuple(map(id, weights))
    joined = _JOINED.get(key)
    if any(cache.is_excluded(weight) or cache.is_refused(weight) for weight in weights):
        return None
    if joined is not None and joined.matches(weights):
        return joined.packed
    if not all(map(cache.can_pack, weights)):
        return None
    with _LOCK, torch.inference_mode(False), torch.no_grad():
        joined = _JOINED.get(key)
        if joined is None or not joined.matches(weights):
            _JOINED.pop(key, None)  # both at once would be the peak of memory for nothing
            joined = _JOINED[key] = _Joined(weights, key)
        return joined.packed


def prepare(module: nn.Module) -> None:
    """Pack a block's weights now, so that the first call does not take longer."""
    joined = _joined_linears(module)
    if joined and sum(linear.weight.numel() for linear in joined) >= _LEAST_NUMEL:
        packed_copy([linear.weight for linear in joined])
    for child in module.children():
        if is_plain_linear(child) and child not in joined:
            prepare_one(child)


def packed_nbytes(module: nn.Module) -> int:
    """Bytes held for a block's packed weights beyond its own weights'."""
    copy = _JOINED.get(_key(module))
    return (0 if copy is None else copy.nbytes) + nbytes_of_each(module)


def free_originals(module: nn.Module) -> None:
    """Let go of a block's dense weights: each is packed for itself then, and the joined copy goes."""
    _JOINED.pop(_key(module), None)
    free_each(module)


def restore_originals(module: nn.Module) -> None:
    """Put dense parameters back, the very bits, with the `requires_grad` that they had."""
    restore_each(module)


def release(module: nn.Module) -> None:
    """Drop the packed copies of a block's weights, for a model that goes back to its original forwards."""
    _JOINED.pop(_key(module), None)
    release_each(module)


def keep_copies(module: nn.Module, on: bool) -> None:
    """Have a block's calls make copies of its weights where those pay, or none."""
    if not on:
        _JOINED.pop(_key(module), None)
    keep_copies_of_each(module, on)


def refresh(module: nn.Module) -> None:
    """Compare all of a block's weights with what was packed, and pack those again that are others."""
    key = _key(module)
    if (joined := _JOINED.get(key)) is not None:
        weights = [linear.weight for linear in _joined_linears(module)]
        if not joined.matches(weights, whole=True):
            _JOINED.pop(key, None)
            packed_copy(weights)
    refresh_each(module)


def strict(module: nn.Module, on: bool) -> None:
    """Compare all of a block's weights at every use of their copies, or no more."""
    strict_each(module, on)
    if "_modules" in vars(module) and (joined := _JOINED.get(_key(module))) is not None:
        joined.guard.be_strict(on)


def _joined_linears(module: nn.Module) -> list[nn.Linear]:
    if attends_to_another(module):
        return []
    for names in _NAMES:
        found = [module._modules.get(name) for name in names]
        if all(map(is_plain_linear, found)):
            return [child for child in found if isinstance(child, nn.Linear)]
    return []


def _key(module: nn.Module) -> tuple[int, ...]:
    return tuple(id(linear.weight) for linear in _joined_linears(module))
