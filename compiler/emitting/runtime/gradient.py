"""Calls with a gradient: a forward program that keeps what is needed, and a backward program, in one autograd function.

Weights go in as they lie, and nothing is made of them beforehand: they are others at every step. What is kept is saved
as autograd saves it: a tensor that is changed in place before the backward runs raises there. A backward runs the
steps that the gradients asked for need, and no others. A gradient of a gradient raises.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .arena import ALIGNMENT
from .arrays import read_tensors
from .errors import Misfit
from .layer import Layer, rooms_of
from .native import Builder, Native, pointers
from .native_layer import NativeBinding
from .parts import Shape, Table
from .state import State

_MOST_BINDINGS = 64
"""Sets of shapes for which the places of buffers are kept."""
_MOST_KEPT = 1 << 28
"""Bytes of an arena that a thread keeps for its next call; scores of long sequences take more, and are given back."""


@dataclass(frozen=True)
class Gradient:
    """The two programs, and what goes from one to the other.

    forward: its inputs are the call's and then the weights, its outputs the call's and then what is kept. asked: of
    each of the call's inputs whether it can have a gradient. sources: of each of the backward's inputs, whether it is
    the "gradient" of an output, or an "input" or "output" of the forward, and its number there. gradients: of each of
    the forward's inputs the backward's output that is its gradient, -1 where there is none. added: of inputs whose
    gradient is added up by index, the backward's outputs that are the places and the numbers. steps: of each of the
    backward's outputs, the kernels that it takes. writes: of each of its kernels, the outputs that it writes.
    """

    forward: Table
    backward: Table
    results: int
    asked: tuple[bool, ...]
    sources: tuple[tuple[str, int], ...]
    gradients: tuple[int, ...]
    added: Mapping[int, tuple[int, int]]
    steps: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Part:
    """Some kernels of a program, in order, and the outputs that they write."""

    steps: tuple[int, ...]
    written: frozenset[int]


class Trained:
    """What a layer runs where a gradient is asked for."""

    def __init__(self, gradient: Gradient, layer: Layer[Any, Any]) -> None:
        self.gradient = gradient
        self.forward = _Program(gradient.forward, layer.folder)
        self.backward = _Program(gradient.backward, layer.folder)
        self._place = layer.place
        plain = tuple(replace(one, packed=False) for one in layer.table.weights)
        self._table = replace(layer.table, weights=plain)
        self._states: weakref.WeakKeyDictionary[nn.Module, State] = weakref.WeakKeyDictionary()
        self._parts: dict[tuple[bool, ...], Part | None] = {}

    def outputs(self, module: nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor] | None:
        """The call's outputs; None where no gradient is asked for. Raises Misfit for one that there is not."""
        weights = self.state(module).tensors
        if not any(one.requires_grad for one in (*inputs, *weights)):
            return None
        for one, tensor, asked in zip(self._table.inputs, inputs, self.gradient.asked, strict=True):
            if tensor.requires_grad and not asked:
                raise Misfit(
                    f"gradient of {one.name}", f"a gradient of {one.name} is asked for, which it has not"
                )
        self.build()
        return list(_Run.apply(self, *inputs, *weights))

    def state(self, module: nn.Module) -> State:
        """The module's weights, as they are. Raises Misfit where the program was not built for them."""
        found = self._states.get(module)
        if found is None or not found.is_current(module):
            found = self._states[module] = State(module, self._table, self._place)
        return found

    def prepare(self, module: nn.Module) -> None:
        """Load or build both programs."""
        self.state(module)
        self.build()

    def forget(self, module: nn.Module) -> None:
        """Drop what is known of a module."""
        self._states.pop(module, None)

    def build(self) -> None:
        """Build or load both programs, at the same time. Raises Misfit where that fails."""
        if self.forward.is_ready and self.backward.is_ready:
            return
        with ThreadPoolExecutor(2) as pool:
            for one in [pool.submit(one.builder.native) for one in (self.forward, self.backward)]:
                one.result()

    def part(self, outputs: Sequence[int]) -> Part | None:
        """What of the backward these of its outputs take; None for all of it."""
        key = tuple(place in outputs for place in range(len(self.gradient.steps)))
        if key not in self._parts:
            steps = sorted({step for one in outputs for step in self.gradient.steps[one]})
            written = frozenset(place for step in steps for place in self.gradient.writes[step])
            whole = len(steps) == len(self.gradient.writes)
            self._parts[key] = None if whole else Part(tuple(steps), written)
        return self._parts[key]


class _Run(torch.autograd.Function):
    """A call of the forward, and its backward."""

    @staticmethod
    def forward(ctx: Any, trained: Trained, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gradient = trained.gradient
        outputs = trained.forward.run([one.contiguous() for one in tensors])
        of = {"input": tensors, "output": outputs}
        ctx.trained = trained
        ctx.shapes = [one.shape for one in tensors]
        ctx.save_for_backward(*(of[kind][place] for kind, place in gradient.sources if kind in of))
        results = outputs[: gradient.results]
        given = {place for kind, place in gradient.sources if kind == "gradient"}
        ctx.mark_non_differentiable(*(one for place, one in enumerate(results) if place not in given))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        saved = ctx.saved_tensors
        with torch.no_grad():
            found = _gradients(ctx, gradients, iter(saved))
        if torch.is_grad_enabled():
            there = [one for one in found if one is not None]
            last = _Last.apply(ctx.trained, len(there), *there, *gradients, *saved)
            given = iter(last)
            found = [one if one is None else next(given) for one in found]
        return (None, *found)


class _Last(torch.autograd.Function):
    """Gradients that a graph is made of for another backward: that one says that there is none."""

    @staticmethod
    def forward(ctx: Any, trained: Trained, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.layer = trained.gradient.backward.layer
        return tensors[:count]

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        raise RuntimeError(
            f"{ctx.layer} computes gradients, but no gradients of gradients: restore(model) gives the original "
            "forward, which does"
        )


def _gradients(
    ctx: Any, gradients: Sequence[torch.Tensor], saved: Iterator[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Of the forward's inputs; None of those that need none."""
    gradient: Gradient = ctx.trained.gradient
    inputs = [
        (gradients[place] if kind == "gradient" else next(saved)).contiguous()
        for kind, place in gradient.sources
    ]
    needed = ctx.needs_input_grad[1:]
    asked = [
        one
        for place, wanted in enumerate(needed)
        if wanted
        for one in (gradient.gradients[place], *gradient.added.get(place, ()))
        if one >= 0
    ]
    found = ctx.trained.backward.run(inputs, ctx.trained.part(asked))
    return [
        _gradient_of(place, gradient, found, ctx.shapes[place]) if wanted else None
        for place, wanted in enumerate(needed)
    ]


def _gradient_of(
    place: int, gradient: Gradient, found: Sequence[torch.Tensor], shape: torch.Size
) -> torch.Tensor | None:
    """The gradient of one of the forward's inputs; None for zero."""
    at = gradient.gradients[place]
    total = found[at] if at >= 0 else None
    if place in gradient.added:
        places, numbers = (found[one] for one in gradient.added[place])
        if total is None:
            total = numbers.new_zeros(shape)
        if places.shape[-1] == 1:
            rows = places.reshape(-1)
            rows = torch.where(rows < 0, rows + shape[0], rows)
            total.index_add_(0, rows, numbers.reshape(len(rows), *shape[1:]))
        else:
            total.index_put_(places.unbind(-1), numbers, accumulate=True)
    return total


class _Local(threading.local):
    """A thread's arena."""

    def __init__(self) -> None:
        self.arena: torch.Tensor | None = None


class _Program:
    """A program that keeps nothing of a module: all that it reads are tensors of the call."""

    def __init__(self, table: Table, folder: Path) -> None:
        self.table, self.folder = table, folder
        self.builder = Builder(table, folder)
        self._rooms = rooms_of(table)
        self._bindings: OrderedDict[tuple[Shape, ...], NativeBinding] = OrderedDict()
        self._lock = threading.Lock()
        self._local = _Local()
        self._empty = torch.zeros(ALIGNMENT, dtype=torch.uint8)
        self._known: list[tuple[int, int]] | None = None
        self._kept: list[torch.Tensor] = []
        self.is_ready = False
        """Whether it was loaded and called."""

    def run(self, inputs: Sequence[torch.Tensor], part: Part | None = None) -> list[torch.Tensor]:
        """The outputs. part: run this alone; an output that it does not write has no elements then."""
        table, native = self.table, self.builder.native()
        self.is_ready = True
        binding = self._binding(tuple([tuple(one.shape) for one in inputs]))
        outputs = [
            torch.empty(shape if part is None or place in part.written else (0,), dtype=dtype)
            for place, (shape, dtype, _) in enumerate(binding.outputs)
        ]
        addresses = pointers([0] * (table.buffers + table.packed))
        arena = self._arena(binding.room.size)
        base, empty = arena.data_ptr(), self._empty.data_ptr()
        for buffer, offset in binding.room.offsets:
            addresses[buffer] = base + offset
        for buffer, address in self._fixed(native):
            addresses[buffer] = address
        for one, tensor in zip(table.inputs, inputs, strict=True):
            addresses[one.buffer] = tensor.data_ptr() or empty
        for (_, _, buffer), tensor in zip(binding.outputs, outputs, strict=True):
            addresses[buffer] = tensor.data_ptr() or empty
        if part is None:
            code = native.run(addresses, binding.numbers)
        else:
            codes = (native.step(step, addresses, binding.numbers) for step in part.steps)
            code = next((code for code in codes if code), 0)
        if code:
            raise IndexError(f"{table.layer}: {table.messages[code - 1]}")
        return outputs

    def _binding(self, shapes: tuple[Shape, ...]) -> NativeBinding:
        found = self._bindings.get(shapes)
        if found is None:
            found = NativeBinding(self.table, shapes, self._rooms)
            with self._lock:
                self._bindings[shapes] = found
                while len(self._bindings) > _MOST_BINDINGS:
                    self._bindings.popitem(last=False)
        return found

    def _arena(self, size: int) -> torch.Tensor:
        """Room for scratch buffers: the thread's own, or for this call alone."""
        if size > _MOST_KEPT:
            return torch.empty(size, dtype=torch.uint8)
        local = self._local
        if local.arena is None or local.arena.numel() < size:
            local.arena = torch.empty(max(size, ALIGNMENT), dtype=torch.uint8)
        return local.arena

    def _fixed(self, native: Native) -> list[tuple[int, int]]:
        """(buffer, address) of constants, and of what is made of them alone."""
        if self._known is None:
            with self._lock:
                if self._known is None:
                    self._known = self._make_fixed(native)
        return self._known

    def _make_fixed(self, native: Native) -> list[tuple[int, int]]:
        table = self.table
        arrays = read_tensors(self.folder / table.constants_file) if table.constants else {}
        self._kept = [arrays[name] for name in table.constants.values()]
        sizes = (*table.prepared.items(), *enumerate(native.packed_bytes(table.packed), table.buffers))
        made = [torch.empty(max(size, ALIGNMENT), dtype=torch.uint8) for _, size in sizes]
        found = [
            (buffer, tensor.data_ptr() or self._empty.data_ptr())
            for buffer, tensor in zip(
                (*table.constants, *(one for one, _ in sizes)), (*self._kept, *made), strict=True
            )
        ]
        self._kept += made
        addresses = [0] * (table.buffers + table.packed)
        for buffer, address in found:
            addresses[buffer] = address
        native.prepare(addresses, len(table.symbols))
        return found
