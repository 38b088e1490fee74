"""Where values between segments lie: offsets in one arena, by lifetime."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels_hub.compiler.binding import sized
from kernels_hub.compiler.engines.tensors import torch_dtype
from kernels_hub.compiler.program import Program, Segment, SegmentError, computes

ALIGN = 64


@dataclass(frozen=True)
class Layout:
    """Where values between segments, and the segments' workspaces, lie in one arena.

    offsets: slot -> byte. workspaces: for each segment its first byte and size, or None. total: bytes in all.
    """

    offsets: Mapping[int, int]
    workspaces: tuple[tuple[int, int] | None, ...]
    total: int


def lay_out(program: Program, sizes: Mapping[str, int]) -> Layout:
    """Offsets by lifetime: what is not needed at the same time may lie at the same place."""
    if program.direct:
        total = _workspace(program, 0, sizes)
        return Layout({}, ((0, total),), total)
    last = {slot: place for place, segment in enumerate(program.segments) for slot in segment.inputs}
    lives: list[tuple[int, int, int, int]] = []
    """(bytes, first segment, last segment, slot, or -1 - segment for a workspace)."""
    for place, segment in enumerate(program.segments):
        if size := _workspace(program, place, sizes) if _sized(program, segment, sizes) else 0:
            lives.append((size, place, place, -1 - place))
        for slot in () if computes(segment.plan) else segment.outputs:
            shape = sized(program.slots[slot].shape, sizes)
            if slot not in program.outputs and shape is not None:
                size = math.prod(shape) * torch_dtype(program.slots[slot].dtype).itemsize
                lives.append((size, place, last.get(slot, place), slot))
    lives.sort(key=lambda one: (-one[0], one[3]))
    placed: list[tuple[int, int, int, int]] = []
    offsets: dict[int, int] = {}
    for size, first, end, slot in lives:
        offset = 0
        for low, high, others_first, others_end in sorted(placed):
            if others_first <= end and first <= others_end:
                if low >= offset + size:
                    break
                offset = max(offset, high)
        offsets[slot] = offset
        placed.append((offset, offset + -(-size // ALIGN) * ALIGN, first, end))
    sizes_of = {slot: size for size, _, _, slot in lives}
    workspaces = tuple(
        (offsets[-1 - place], sizes_of[-1 - place]) if -1 - place in offsets else None
        for place in range(len(program.segments))
    )
    total = max((high for _, high, _, _ in placed), default=0)
    return Layout({slot: at for slot, at in offsets.items() if slot >= 0}, workspaces, total)


def _workspace(program: Program, place: int, sizes: Mapping[str, int]) -> int:
    """Bytes that a segment wants. Raises SegmentError where its engine cannot say."""
    segment = program.segments[place]
    try:
        wanted: Any = segment.plan.workspace_size(sizes)
        if not isinstance(wanted, int) or wanted < 0:
            raise TypeError(f"its workspace size is {wanted!r}, no number of bytes")
    except Exception as error:
        where = f"graph {program.name}: engine {segment.engine} failed to tell its workspace"
        raise SegmentError(f"{where}: {type(error).__name__}: {error}", segment.engine) from error
    return wanted


def _sized(program: Program, segment: Segment, sizes: Mapping[str, int]) -> bool:
    """Whether all that a segment reads and fills has a known shape."""
    slots = (*segment.inputs, *segment.outputs)
    return all(sized(program.slots[slot].shape, sizes) is not None for slot in slots)
