"""Arena layout of a plan: offsets of the values between segments, by lifetime."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels_hub.compiler.engines.tensors import torch_dtype
from kernels_hub.compiler.ir.binding import sized
from kernels_hub.compiler.plan.program import Program, Segment, SegmentError, computes
from kernels_hub.compiler.runtime.intervals import Interval, pack


@dataclass(frozen=True)
class Placement:
    """Where values between segments, and the segments' workspaces, lie in one arena.

    offsets: slot -> byte. workspaces: for each segment its first byte and size, or None. total: bytes in all.
    """

    offsets: Mapping[int, int]
    workspaces: tuple[tuple[int, int] | None, ...]
    total: int


def lay_out(program: Program, sizes: Mapping[str, int]) -> Placement:
    """Offsets by lifetime: what is not needed at the same time may lie at the same place."""
    if program.direct:
        total = _workspace(program, 0, sizes)
        return Placement({}, ((0, total),), total)
    last = {slot: index for index, segment in enumerate(program.segments) for slot in segment.inputs}
    lives: list[tuple[int, int, int, int]] = []
    """(bytes, first segment, last segment, slot, or -1 - segment for a workspace)."""
    for position, segment in enumerate(program.segments):
        if size := _workspace(program, position, sizes) if _sized(program, segment, sizes) else 0:
            lives.append((size, position, position, -1 - position))
        for slot in () if computes(segment.plan) else segment.outputs:
            shape = sized(program.slots[slot].shape, sizes)
            if slot not in program.outputs and shape is not None:
                size = math.prod(shape) * torch_dtype(program.slots[slot].dtype).itemsize
                lives.append((size, position, last.get(slot, position), slot))
    packed, total = pack([Interval(*life[:3]) for life in lives])
    of = {slot: (at, size) for (size, _, _, slot), at in zip(lives, packed, strict=True)}
    workspaces = tuple(of.get(-1 - index) for index in range(len(program.segments)))
    return Placement({slot: at for slot, (at, _) in of.items() if slot >= 0}, workspaces, total)


def _workspace(program: Program, index: int, sizes: Mapping[str, int]) -> int:
    """Bytes that a segment wants. Raises SegmentError where its engine cannot say."""
    segment = program.segments[index]
    try:
        needed: Any = segment.plan.workspace_size(sizes)
        if not isinstance(needed, int) or needed < 0:
            raise TypeError(f"its workspace size is {needed!r}, no number of bytes")
    except Exception as error:
        where = f"graph {program.name}: engine {segment.engine} failed to tell its workspace"
        raise SegmentError(f"{where}: {type(error).__name__}: {error}", segment.engine) from error
    return needed


def _sized(program: Program, segment: Segment, sizes: Mapping[str, int]) -> bool:
    """Whether all that a segment reads and fills has a known shape."""
    slots = (*segment.inputs, *segment.outputs)
    return all(sized(program.slots[slot].shape, sizes) is not None for slot in slots)
