"""A program bound to one set of shapes: its memory between segments, and the run itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from kernels_hub.compiler.engines.engine import Device, StepProfile
from kernels_hub.compiler.engines.tensors import torch_dtype
from kernels_hub.compiler.errors import CompilerError, EngineError, PlanError
from kernels_hub.compiler.ir.binding import sized
from kernels_hub.compiler.ir.op import TensorType
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.plan.placement import Placement, lay_out
from kernels_hub.compiler.plan.program import Program, Segment, SegmentError, bare, computes, torch_device
from kernels_hub.compiler.runtime.arena import Arenas
from kernels_hub.compiler.runtime.intervals import ALIGNMENT

_SMALL = 1 << 20
"""Bytes of outputs up to which one is kept to allocate others like it."""
_SMALL_ARRAY = 1 << 14
"""The same of an output that NumPy allocates."""
_RESOLVE_CONJ = torch.Tensor.resolve_conj


@dataclass
class _Frame:
    """Memory for one call: a tensor for each slot between segments, a workspace for each segment."""

    slots: list[Any]
    workspaces: list[torch.Tensor | None]


class BoundProgram:
    """A program at one set of shapes: `run(inputs)` is all of a call whose inputs were checked.

    arenas: may be shared by bound programs of which a thread runs one at a time.
    """

    def __init__(self, program: Program, sizes: Mapping[str, int], device: Device, arenas: Arenas) -> None:
        self.program, self.sizes, self.device = program, dict(sizes), torch_device(device)
        self._shapes = [sized(of.shape, sizes) for of in program.slots]
        self.known = None not in self._shapes
        """Whether every size is; else some are told by the data, and memory is allocated as they are."""
        self._dtypes = [torch_dtype(of.dtype) for of in program.slots]
        self.outputs = [(self._shapes[slot], self._dtypes[slot]) for slot in program.outputs]
        self._plans = [bare(segment.plan) for segment in program.segments]
        self._computes = [computes(segment.plan) for segment in program.segments]
        self._shared = _shared(program)
        self._trusted = False
        self._like: list[torch.Tensor] | None = None
        self._small_arrays = self._as_small_arrays()
        self._layout: Placement | None = None
        self._arenas = arenas
        self.run: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]] = self._run_segments
        if program.direct and self.known:
            self._execute = self._plans[0].execute
            self.run = self._run_computed if self._computes[0] else self._run_direct

    def resolve_inputs(self) -> None:
        """Have `run` take complex inputs as they come, conjugated or not, which no key of known calls tells."""
        run = self.run
        self.run = lambda inputs: run(list(map(_RESOLVE_CONJ, inputs)))

    def _as_small_arrays(self) -> list[tuple[tuple[int, ...], np.dtype[np.generic]]]:
        """Shape and dtype of each output, where these are small and a call is that of one plan; else none."""
        shapes = [self._shapes[slot] for slot in self.program.outputs]
        rows = [self.program.slots[slot].dtype for slot in self.program.outputs]
        if not (self.program.direct and self.known and self.device.type == "cpu"):
            return []
        found = [
            (tuple(shape), np.dtype(row.numpy))
            for shape, row in zip(shapes, rows, strict=True)
            if shape is not None
        ]
        is_small = all(math.prod(shape) * dtype.itemsize <= _SMALL_ARRAY for shape, dtype in found)
        return found if is_small and all(row.module == "numpy" for row in rows) else []

    def run_arrays(self, inputs: Sequence[torch.Tensor]) -> list[Array]:
        """As `run`, with NumPy arrays for results, of dtypes that NumPy has.

        NumPy allocates what is small in a fraction of the time that PyTorch takes for it and for a view of it.
        """
        if not self._small_arrays or (self._computes[0] and not self._trusted):
            return [result.numpy() for result in self.run(inputs)]
        arrays = [np.empty(shape, dtype) for shape, dtype in self._small_arrays]
        self.run_into(inputs, list(map(torch.from_numpy, arrays)))
        return arrays

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena that calls took so far; 0 before the first that took any."""
        return 0 if self._layout is None else self._layout.total

    @property
    def layout(self) -> Placement:
        """Of the arena."""
        if self._layout is None:
            self._layout = lay_out(self.program, self.sizes)
        return self._layout

    def _empty(self) -> list[torch.Tensor]:
        """New outputs. `empty_like` takes half as long as `empty`, so small outputs have something to be like."""
        if self._like is None:
            device = self.device
            outputs = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self.outputs]  # type: ignore[arg-type]
            if device.type == "cpu" and all(output.nbytes <= _SMALL for output in outputs):
                self._like = [torch.empty_like(output) for output in outputs]
            return outputs
        return [torch.empty_like(tensor) for tensor in self._like]

    def _run_direct(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        outputs = self._empty()
        try:
            self._execute(inputs, outputs)
        except Exception as error:
            raise self._failure(0, error) from error
        return outputs

    def _run_computed(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        try:
            results = list(self._plans[0].compute(inputs))  # type: ignore[attr-defined]
            if not self._trusted:
                self._verify(self.program.segments[0], inputs, results, self._shapes)
                self._trusted = True
            return results
        except Exception as error:
            raise self._failure(0, error) from error

    def _verify(self, segment: Segment, inputs: Sequence[Any], made: Sequence[Any], shapes: Any) -> None:
        """Raise ValueError unless what a plan allocated is what it should be, in memory of its own."""
        if len(made) != len(segment.outputs):
            raise ValueError(f"it computed {len(made)} outputs, expected {len(segment.outputs)}")
        names = segment.plan.signature.outputs
        taken = {one.untyped_storage().data_ptr() for one in inputs if one.numel()}
        for name, slot, one in zip(names, segment.outputs, made, strict=True):
            expected = shapes[slot]
            if one.dtype is not self._dtypes[slot] or one.device != self.device:
                raise ValueError(
                    f"output {name!r} is {one.dtype} on {one.device}, expected {self._dtypes[slot]}"
                )
            if (expected is None and one.dim() != self.program.slots[slot].rank) or (
                expected is not None and tuple(one.shape) != expected
            ):
                raise ValueError(f"output {name!r} came out as {list(one.shape)}, expected {expected}")
            memory = one.untyped_storage().data_ptr()
            if one.numel() and memory in taken:
                raise ValueError(f"output {name!r} lies in the memory of an input, or of another output")
            taken.add(memory)

    def run_into(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor] | None = None,
        workspace: torch.Tensor | None = None,
        stream: int | None = None,
    ) -> list[torch.Tensor]:
        """As `run`, into outputs and a workspace of the caller, which were checked."""
        if not self.known and outputs is not None:
            return self._copied(self._run_segments(inputs, None, workspace, stream), outputs)
        if not (self.known and self.program.direct):
            return self._run_segments(inputs, outputs, workspace, stream)
        if outputs is None:
            outputs = self._empty()
        try:
            self._execute(inputs, outputs, workspace, stream)
        except Exception as error:
            raise self._failure(0, error) from error
        return list(outputs)

    def profile(self, inputs: Sequence[torch.Tensor], repeats: int) -> list[StepProfile]:
        """The steps of all segments, each on what those before it give."""
        steps: list[StepProfile] = []

        def look(number: int, slots: list[Any]) -> None:
            segment = self.program.segments[number]
            try:
                profiled = self._plans[number].profile([slots[slot] for slot in segment.inputs], repeats)
            except Exception as error:
                raise self._failure(number, error) from error
            prefix = f"{number}: " if len(self._plans) > 1 else ""
            steps.extend(replace(step, name=f"{prefix}{step.name}") for step in profiled)

        self._run_segments(inputs, before=look)
        return steps

    def _copied(self, results: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        for name, result, output in zip(self.program.signature.outputs, results, outputs, strict=True):
            if result.shape != output.shape:
                raise PlanError(
                    f"graph {self.program.name}: output {name!r} has shape {list(output.shape)}, "
                    f"the data make it {list(result.shape)}; give none to have it allocated"
                )
            output.copy_(result)
        return list(outputs)

    def _run_segments(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor] | None = None,
        workspace: torch.Tensor | None = None,
        stream: int | None = None,
        before: Callable[[int, list[Any]], object] | None = None,
    ) -> list[torch.Tensor]:
        """before(number, slots): called before each segment runs."""
        program = self.program
        frame = self._kept_frame(stream) if workspace is None else self._frame(workspace)
        slots = frame.slots.copy()
        slots[: len(inputs)] = inputs
        if outputs is not None:
            for position, slot in enumerate(program.outputs):
                if position not in self._shared:
                    slots[slot] = outputs[position]
        sizes, shapes = self.sizes, self._shapes
        for number, segment in enumerate(program.segments):
            if not self.known:
                shapes = self._grow(slots, segment, sizes)
            if before is not None:
                before(number, slots)
            try:
                self._run_segment(number, slots, shapes, frame.workspaces[number], stream)
            except Exception as error:
                raise self._failure(number, error) from error
            if not self.known:
                sizes = self._define(slots, segment, sizes)
        if outputs is not None:
            for shared_index in self._shared:
                outputs[shared_index].copy_(slots[program.outputs[shared_index]])
        if outputs is not None:
            return list(outputs)
        return [
            slots[slot].clone() if index in self._shared else slots[slot]
            for index, slot in enumerate(program.outputs)
        ]

    def _run_segment(
        self, number: int, slots: list[Any], shapes: list[Any], workspace: Any, stream: int | None
    ) -> None:
        segment, plan = self.program.segments[number], self._plans[number]
        operands = [slots[slot] for slot in segment.inputs]
        if self._computes[number] and all(slots[slot] is None for slot in segment.outputs):
            results = list(plan.compute(operands, workspace, stream))  # type: ignore[attr-defined]
            self._verify(segment, operands, results, shapes)
            for slot, tensor in zip(segment.outputs, results, strict=True):
                slots[slot] = tensor
            return
        for slot in segment.outputs:
            if slots[slot] is None:
                if shapes[slot] is None:
                    raise ValueError(
                        "only the data tell the sizes of its outputs, and its plans have no compute()"
                    )
                slots[slot] = torch.empty(shapes[slot], dtype=self._dtypes[slot], device=self.device)
        plan.execute(operands, [slots[slot] for slot in segment.outputs], workspace, stream)

    def _grow(self, slots: list[Any], segment: Segment, sizes: Mapping[str, int]) -> list[Any]:
        """The shapes that are known before a segment runs; carriers that it reads are made."""
        for slot in segment.inputs:
            if slot in self.program.carriers and slots[slot] is None:
                slots[slot] = _carrier(self.program.slots[slot], sizes, self.device)
        return [sized(of.shape, sizes) for of in self.program.slots]

    def _define(self, slots: list[Any], segment: Segment, sizes: Mapping[str, int]) -> dict[str, int]:
        """Sizes with those that the results of a segment tell."""
        grown = dict(sizes)
        for name, slot in self.program.defined.items():
            if slot in segment.outputs:
                size = slots[slot]
                grown[name] = int(size) if not size.dim() else int(size.shape[-1])
        return grown

    def _failure(self, number: int, error: Exception) -> Exception:
        if isinstance(error, CompilerError) and (
            not isinstance(error, EngineError) or isinstance(error, SegmentError)
        ):
            return error
        segment, program = self.program.segments[number], self.program
        where = f"graph {program.name}: engine {segment.engine}"
        if len(program.segments) > 1:
            where += f", segment {number} of {len(program.segments)},"
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
            sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
            needs = f"it wants a workspace of {self.layout.total} bytes" + (f" for {sizes}" if sizes else "")
            message = f"{where} ran out of memory on {self.device}; {needs}: {error}"
            return SegmentError(message, segment.engine, memory=True)
        kind = "" if isinstance(error, EngineError) else f"{type(error).__name__}: "
        return SegmentError(f"{where} failed: {kind}{error}", segment.engine)

    # -- memory

    def _kept_frame(self, stream: int | None) -> _Frame:
        return self._arenas.of(self.device, stream).views(self.layout, self.layout.total, self._frame)

    def _frame(self, arena: torch.Tensor) -> _Frame:
        start = -arena.data_ptr() % ALIGNMENT
        layout = self.layout
        slots: list[Any] = [None] * len(self.program.slots)
        for slot, offset in layout.offsets.items():
            shape, dtype = self._shapes[slot], self._dtypes[slot]
            assert shape is not None
            size = math.prod(shape) * dtype.itemsize
            slots[slot] = arena[start + offset : start + offset + size].view(dtype).view(shape)
        for slot in self.program.carriers:
            if self._shapes[slot] is not None:
                slots[slot] = _carrier(self.program.slots[slot], self.sizes, self.device)
        workspaces = [
            None if workspace is None else arena[start + workspace[0] : start + workspace[0] + workspace[1]]
            for workspace in layout.workspaces
        ]
        return _Frame(slots, workspaces)


def _shared(program: Program) -> tuple[int, ...]:
    """Outputs that are inputs, or the same as other outputs: they are copies."""
    inputs = len(program.signature.inputs)
    return tuple(
        index
        for index, slot in enumerate(program.outputs)
        if slot < inputs or slot in program.outputs[:index]
    )


def _carrier(of: TensorType, sizes: Mapping[str, int], device: torch.device) -> torch.Tensor:
    shape = sized(of.shape, sizes)
    assert shape is not None
    return torch.zeros((), dtype=torch_dtype(of.dtype), device=device).expand(shape)
