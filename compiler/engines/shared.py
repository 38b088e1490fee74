"""Shares memory of equal content between plans: copied and packed weights.

Who filled a block that nobody writes to any more gives it here, and gets it back, or an equal one that is still alive.
All bytes are compared, so it does not matter where they come from: the plans of one executable share, and executables
of one module, or of copies of it.
"""

from __future__ import annotations

import sys
import threading
import weakref

import torch

from kernels_hub.fork_safe import renewed_lock

SMALL = 4096
"""Bytes from which on sharing is worth the trouble."""

_SAMPLES = 32
_KNOWN: dict[tuple[int, bytes], list[weakref.ref[torch.Tensor]]] = {}
"""Size and some of the bytes -> blocks that have them."""
_LOCK = renewed_lock(sys.modules[__name__], "_LOCK", threading.Lock)


def shared(block: torch.Tensor) -> torch.Tensor:
    """`block` or one that equals it. block: uint8, of one dim, contiguous, on the CPU; not to be written any more."""
    if block.numel() < SMALL:
        return block
    key = (block.numel(), bytes(block[:: block.numel() // _SAMPLES].tolist()))
    with _LOCK:
        alive = [found for one in _KNOWN.get(key, ()) if (found := one()) is not None]
        for other in alive:
            if torch.equal(block, other):
                return other
        _KNOWN[key] = [weakref.ref(one, lambda _: _forget(key)) for one in (*alive, block)]
    return block


def _forget(key: tuple[int, bytes]) -> None:
    """A block is gone. Takes no lock: it may happen at any moment, also within `shared`."""
    if not any(one() is not None for one in _KNOWN.get(key, ())):
        _KNOWN.pop(key, None)
