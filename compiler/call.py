"""A program at one set of shapes: what is known of these, the memory between segments, and the run itself."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kernels_hub.compiler.arena import Placement, lay_out
from kernels_hub.compiler.binding import sized
from kernels_hub.compiler.engines.engine import Device, StepProfile
from kernels_hub.compiler.engines.tensors import torch_dtype
from kernels_hub.compiler.errors import CompilerError, PlanError
from kernels_hub.compiler.ir.op import TensorType
from kernels_hub.compiler.program import Program, Segment, SegmentError, bare, computes, torch_device
from kernels_hub.compiler.schedule.intervals import ALIGNMENT

_SMALL = 1 << 20
"""Bytes of outputs up to which one is kept to allocate others like it."""

_FRAMES = 8
"""How many arenas a set of shapes keeps, when so many threads were in a call at once."""

_CAPTURE = object()
"""What stands for the stream while a CUDA graph is captured: its memory is never used again."""


@dataclass
class _Frame:
    """Memory for one call: a tensor for each slot between segments, a workspace for each segment."""

    slots: list[Any]
    workspaces: list[torch.Tensor | None]


class Call:
    """A program at one set of shapes: `run(inputs)` is all of a call whose inputs were checked."""

    def __init__(self, program: Program, sizes: Mapping[str, int], device: Device) -> None:
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
        self.keeps = True
        """Whether arenas are kept for the next call."""
        self._like: list[torch.Tensor] | None = None
        self._layout: Placement | None = None
        self._frames: dict[Any, deque[_Frame]] = {}
        self.run: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]] = self._run_segments
        if program.direct and self.known:
            self._execute = self._plans[0].execute
            self.run = self._run_computed if self._computes[0] else self._run_direct

    def forget(self) -> None:
        """Give the arenas back, and keep none from now on."""
        self.keeps = False
        self._frames.clear()

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
            made = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self.outputs]  # type: ignore[arg-type]
            if device.type == "cpu" and all(one.nbytes <= _SMALL for one in made):
                self._like = [torch.empty_like(one) for one in made]
            return made
        return [torch.empty_like(one) for one in self._like]

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
            wanted = shapes[slot]
            if one.dtype is not self._dtypes[slot] or one.device != self.device:
                raise ValueError(
                    f"output {name!r} is {one.dtype} on {one.device}, expected {self._dtypes[slot]}"
                )
            if (wanted is None and one.dim() != self.program.slots[slot].rank) or (
                wanted is not None and tuple(one.shape) != wanted
            ):
                raise ValueError(f"output {name!r} came out as {list(one.shape)}, expected {wanted}")
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
                found = self._plans[number].profile([slots[slot] for slot in segment.inputs], repeats)
            except Exception as error:
                raise self._failure(number, error) from error
            prefix = f"{number}: " if len(self._plans) > 1 else ""
            steps.extend(replace(one, name=f"{prefix}{one.name}") for one in found)

        self._run_segments(inputs, before=look)
        return steps

    def _copied(self, results: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        for name, one, output in zip(self.program.signature.outputs, results, outputs, strict=True):
            if one.shape != output.shape:
                raise PlanError(
                    f"graph {self.program.name}: output {name!r} has shape {list(output.shape)}, "
                    f"the data make it {list(one.shape)}; give none to have it allocated"
                )
            output.copy_(one)
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
        program, key = self.program, self._stream(stream)
        frame = self._take(key) if workspace is None else self._frame(workspace)
        slots = frame.slots.copy()
        slots[: len(inputs)] = inputs
        if outputs is not None:
            for place, slot in enumerate(program.outputs):
                if place not in self._shared:
                    slots[slot] = outputs[place]
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
            for place in self._shared:
                outputs[place].copy_(slots[program.outputs[place]])
        if workspace is None and self.keeps and key is not _CAPTURE:
            self._frames.setdefault(key, deque(maxlen=_FRAMES)).append(frame)
        if outputs is not None:
            return list(outputs)
        return [
            slots[slot].clone() if place in self._shared else slots[slot]
            for place, slot in enumerate(program.outputs)
        ]

    def _run_segment(
        self, number: int, slots: list[Any], shapes: list[Any], workspace: Any, stream: int | None
    ) -> None:
        segment, plan = self.program.segments[number], self._plans[number]
        given = [slots[slot] for slot in segment.inputs]
        if self._computes[number] and all(slots[slot] is None for slot in segment.outputs):
            made = list(plan.compute(given, workspace, stream))  # type: ignore[attr-defined]
            self._verify(segment, given, made, shapes)
            for slot, tensor in zip(segment.outputs, made, strict=True):
                slots[slot] = tensor
            return
        for slot in segment.outputs:
            if slots[slot] is None:
                if shapes[slot] is None:
                    raise ValueError(
                        "only the data tell the sizes of its outputs, and its plans have no compute()"
                    )
                slots[slot] = torch.empty(shapes[slot], dtype=self._dtypes[slot], device=self.device)
        plan.execute(given, [slots[slot] for slot in segment.outputs], workspace, stream)

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
                found = slots[slot]
                grown[name] = int(found) if not found.dim() else int(found.shape[-1])
        return grown

    def _failure(self, number: int, error: Exception) -> Exception:
        if isinstance(error, CompilerError):
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
        return SegmentError(f"{where} failed: {type(error).__name__}: {error}", segment.engine)

    # -- arenas

    def _stream(self, stream: int | None) -> Any:
        """Arenas are used again on the same stream only: elsewhere what is queued may still write to them."""
        if self.device.type == "cpu":
            return None
        if torch.cuda.is_current_stream_capturing():
            return _CAPTURE
        return stream if stream is not None else torch.cuda.current_stream(self.device).cuda_stream

    def _take(self, key: Any) -> _Frame:
        try:
            return self._frames[key].pop()
        except (KeyError, IndexError):
            total = self.layout.total
            return self._frame(torch.empty(total + ALIGNMENT, dtype=torch.uint8, device=self.device))

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
            None if one is None else arena[start + one[0] : start + one[0] + one[1]]
            for one in layout.workspaces
        ]
        return _Frame(slots, workspaces)


def _shared(program: Program) -> tuple[int, ...]:
    """Outputs that are inputs, or the same as other outputs: they are copies."""
    inputs = len(program.signature.inputs)
    return tuple(
        place
        for place, slot in enumerate(program.outputs)
        if slot < inputs or slot in program.outputs[:place]
    )


def _carrier(of: TensorType, sizes: Mapping[str, int], device: torch.device) -> torch.Tensor:
    shape = sized(of.shape, sizes)
    assert shape is not None
    return torch.zeros((), dtype=torch_dtype(of.dtype), device=device).expand(shape)
