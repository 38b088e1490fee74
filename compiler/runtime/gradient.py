"""Calls with a gradient: a forward and a backward program in one autograd function.

Weights go in as they lie, and nothing is made of them beforehand: they are others at every step. What is kept is saved
as autograd saves it: a tensor that is changed in place before the backward runs raises there. A backward runs the
steps that the gradients asked for need, and no others. A gradient of a gradient raises.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .arena import Arenas
from .arrays import read_tensors
from .builder import Builder
from .errors import Misfit
from .intervals import ALIGNMENT
from .layer import Bindings, Layer
from .native import Loaded
from .native_program import NOWHERE, NativeProgram
from .parts import Table
from .state import State

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

    def __init__(self, gradient: Gradient, layer: Layer[Any]) -> None:
        self.gradient = gradient
        self.forward = _GradientProgram(gradient.forward, layer.folder)
        self.backward = _GradientProgram(gradient.backward, layer.folder)
        self._place = layer.place
        plain = tuple(replace(weight, packed=False) for weight in layer.table.weights)
        self._table = replace(layer.table, weights=plain)
        self._states: weakref.WeakKeyDictionary[nn.Module, State] = weakref.WeakKeyDictionary()
        self._parts: dict[tuple[bool, ...], Part | None] = {}

    def outputs(self, module: nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor] | None:
        """The call's outputs; None where no gradient is asked for. Raises Misfit for one that there is not."""
        weights = self.state(module).tensors
        if not any(one.requires_grad for one in (*inputs, *weights)):
            return None
        for one, tensor, requires_grad in zip(self._table.inputs, inputs, self.gradient.asked, strict=True):
            if tensor.requires_grad and not requires_grad:
                raise Misfit(
                    f"gradient of {one.name}", f"a gradient of {one.name} is asked for, which it has not"
                )
        self.build()
        return list(_Run.apply(self, *inputs, *weights))

    def state(self, module: nn.Module) -> State:
        """The module's weights, as they are. Raises Misfit where the program was not built for them."""
        known = self._states.get(module)
        if known is None or not known.is_current(module):
            known = self._states[module] = State(module, self._table, self._place)
        return known

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
            for future in [pool.submit(program.builder.native) for program in (self.forward, self.backward)]:
                future.result()

    def part(self, outputs: Sequence[int]) -> Part | None:
        """What of the backward these of its outputs take; None for all of it."""
        key = tuple(index in outputs for index in range(len(self.gradient.steps)))
        if key not in self._parts:
            steps = sorted({step for output in outputs for step in self.gradient.steps[output]})
            written = frozenset(position for step in steps for position in self.gradient.writes[step])
            whole = len(steps) == len(self.gradient.writes)
            self._parts[key] = None if whole else Part(tuple(steps), written)
        return self._parts[key]


class _Run(torch.autograd.Function):
    """A call of the forward, and its backward."""

    @staticmethod
    def forward(ctx: Any, trained: Trained, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gradient = trained.gradient
        outputs = trained.forward.run([tensor.resolve_neg().contiguous() for tensor in tensors])
        of = {"input": tensors, "output": outputs}
        ctx.trained = trained
        ctx.shapes = [tensor.shape for tensor in tensors]
        ctx.save_for_backward(*(of[kind][position] for kind, position in gradient.sources if kind in of))
        results = outputs[: gradient.results]
        gradient_inputs = {position for kind, position in gradient.sources if kind == "gradient"}
        ctx.mark_non_differentiable(
            *(result for index, result in enumerate(results) if index not in gradient_inputs)
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        saved = ctx.saved_tensors
        with torch.no_grad():
            results = _gradients(ctx, gradients, iter(saved))
        if torch.is_grad_enabled():
            there = [result for result in results if result is not None]
            last = _Last.apply(ctx.trained, len(there), *there, *gradients, *saved)
            remaining = iter(last)
            results = [result if result is None else next(remaining) for result in results]
        return (None, *results)


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
        (gradients[position] if kind == "gradient" else next(saved)).resolve_neg().contiguous()
        for kind, position in gradient.sources
    ]
    needed = ctx.needs_input_grad[1:]
    requested = [
        output
        for index, wanted in enumerate(needed)
        if wanted
        for output in (gradient.gradients[index], *gradient.added.get(index, ()))
        if output >= 0
    ]
    computed = ctx.trained.backward.run(inputs, ctx.trained.part(requested))
    return [
        _gradient_of(index, gradient, computed, ctx.shapes[index]) if wanted else None
        for index, wanted in enumerate(needed)
    ]


def _gradient_of(
    index: int, gradient: Gradient, tensors: Sequence[torch.Tensor], shape: torch.Size
) -> torch.Tensor | None:
    """The gradient of one of the forward's inputs; None for zero."""
    at = gradient.gradients[index]
    total = tensors[at] if at >= 0 else None
    if index in gradient.added:
        places, numbers = (tensors[position] for position in gradient.added[index])
        if total is None:
            total = numbers.new_zeros(shape)
        if places.shape[-1] == 1:
            rows = places.reshape(-1)
            rows = torch.where(rows < 0, rows + shape[0], rows)
            total.index_add_(0, rows, numbers.reshape(len(rows), *shape[1:]))
        else:
            total.index_put_(places.unbind(-1), numbers, accumulate=True)
    return total


class _GradientProgram:
    """A program that keeps nothing of a module: all that it reads are tensors of the call."""

    def __init__(self, table: Table, folder: Path) -> None:
        self.table, self.folder = table, folder
        self.builder = Builder(table, folder)
        self._bindings = Bindings(table)
        self._lock = threading.Lock()
        self._program: NativeProgram | None = None
        self._kept: list[torch.Tensor] = []
        self.is_ready = False
        """Whether it was loaded and called."""

    def run(self, inputs: Sequence[torch.Tensor], part: Part | None = None) -> list[torch.Tensor]:
        """The outputs. part: run this alone; an output that it does not write has no elements then."""
        table, program = self.table, self._loaded()
        self.is_ready = True
        binding = self._bindings.of(inputs)
        outputs = [
            torch.empty(shape if part is None or index in part.written else (0,), dtype=dtype)
            for index, (shape, dtype) in enumerate(binding.outputs)
        ]
        size = binding.layout.size
        workspace = torch.empty(size, dtype=torch.uint8) if size > _MOST_KEPT else None
        if part is None:
            code = program.run(binding, inputs, outputs, workspace)
        else:
            code = program.run_steps(part.steps, binding, inputs, outputs, workspace)
        if code:
            raise IndexError(f"{table.layer}: {table.messages[code - 1]}")
        return outputs

    def _loaded(self) -> NativeProgram:
        """The program with its constants, and what is made of them alone. Raises Misfit where it cannot be built."""
        native = self.builder.native()
        if self._program is None:
            with self._lock:
                if self._program is None:
                    table = self.table
                    tensors = [
                        *(parameter.buffer for parameter in table.inputs),
                        *(output.buffer for output in table.outputs),
                    ]
                    self._program = NativeProgram(native, self._make_fixed(native), tensors, Arenas())
        return self._program

    def _make_fixed(self, native: Loaded) -> list[int]:
        table = self.table
        arrays = read_tensors(self.folder / table.constants_file) if table.constants else {}
        fixed = [0] * (table.buffers + table.packed)
        packed = native.packed_bytes(table.packed, len(table.symbols))
        sizes = (*table.prepared.items(), *enumerate(packed, table.buffers))
        blocks = ((buffer, torch.empty(max(size, ALIGNMENT), dtype=torch.uint8)) for buffer, size in sizes)
        arrays_of_constants = ((buffer, arrays[name]) for buffer, name in table.constants.items())
        for buffer, tensor in (*arrays_of_constants, *blocks):
            self._kept.append(tensor)
            fixed[buffer] = tensor.data_ptr() or NOWHERE
        if native.prepare(fixed, len(table.symbols)):
            raise Misfit("weights", "its constants hold an index that is out of range")
        return fixed
