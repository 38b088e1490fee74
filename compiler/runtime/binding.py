"""Bindings: what is fixed for a set of shapes (sizes, arena layout, outputs), and the cache of the newest ones."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch

from .intervals import ArenaLayout
from .newest import Newest
from .parts import Shape

MOST_BINDINGS = 64
"""Sets of shapes that a `ShapeCache` keeps by default."""
_SMALL = 1 << 20
"""Bytes of an output up to which one is kept to make others like it."""

T = TypeVar("T")


class Binding:
    """A program at one set of sizes: these, in the order of its symbols, where scratch buffers lie, its outputs.

    outputs: shape and dtype of each. `sizes_at`: the address of the sizes, as native code takes them.
    """

    __slots__ = ("_is_new", "_like", "_numbers", "layout", "outputs", "sizes", "sizes_at")

    def __init__(
        self, sizes: Sequence[int], layout: ArenaLayout, outputs: Sequence[tuple[Sequence[int], torch.dtype]]
    ) -> None:
        self.sizes, self.layout, self.outputs = list(sizes), layout, list(outputs)
        self._numbers = (ctypes.c_int64 * max(1, len(self.sizes)))(*self.sizes)
        self.sizes_at = ctypes.addressof(self._numbers)
        self._like: list[torch.Tensor] | None = None
        self._is_new = True

    def new_outputs(self) -> list[torch.Tensor]:
        """Memory for a call's outputs, on the CPU.

        `empty_like` takes half as long as `empty`: from the second call on, small outputs are made like kept ones.
        """
        if self._like is not None:
            return list(map(torch.empty_like, self._like))
        outputs = [torch.empty(shape, dtype=dtype) for shape, dtype in self.outputs]
        if not self._is_new and all(output.nbytes <= _SMALL for output in outputs):
            self._like = list(map(torch.empty_like, outputs))
        self._is_new = False
        return outputs


class ShapeCache(Generic[T]):
    """What `make` returned for the newest few sets of shapes: of bindings, of plans at one set of shapes.

    dropped: called with each result that is not kept any more.
    """

    def __init__(
        self,
        make: Callable[[tuple[Shape, ...]], T],
        most: int = MOST_BINDINGS,
        dropped: Callable[[T], object] | None = None,
    ) -> None:
        self._make = make
        self._made: Newest[tuple[Shape, ...], T] = Newest(
            most, None if dropped is None else lambda _, result: dropped(result)
        )
        self._lock = threading.Lock()

    def of(self, tensors: Sequence[torch.Tensor]) -> T:
        """The result for the shapes of these tensors. Raises what `make` raises."""
        key = tuple([tensor.shape for tensor in tensors])
        result = self._made.get(key)
        return self._add(key) if result is None else result

    def _add(self, key: tuple[torch.Size, ...]) -> T:
        shapes = tuple(map(tuple, key))
        result = self._make(shapes)
        with self._lock:
            return self._made.setdefault(shapes, result)  # another thread may have been faster

    @property
    def shapes(self) -> tuple[tuple[Shape, ...], ...]:
        """The sets of shapes, the newest last."""
        with self._lock:
            return tuple(self._made)

    @property
    def results(self) -> list[T]:
        """What is kept for these."""
        with self._lock:
            return list(self._made.values())
