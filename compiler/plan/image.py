"""Plans ready to run, as files: memory images of C++ segments, and what other engines serialize.

For the cache of opened files (`kernels_hub.compiler.opened`) alone: an image is native code, see `engines.cpp_image`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO

import torch

from kernels_hub.compiler.engines.container import (
    read_container_from,
    write_container_to,
)
from kernels_hub.compiler.engines.cpp_image import ImageRow, image_of, load_image, memory_for
from kernels_hub.compiler.engines.engine import CompiledPlan, Device
from kernels_hub.compiler.engines.guard import loaded
from kernels_hub.compiler.engines.native_plan import NativePlan
from kernels_hub.compiler.engines.registry import engine
from kernels_hub.compiler.errors import EngineError, PlanError
from kernels_hub.compiler.plan.file import PlanHeader, SegmentRow, check_made, plan_header, program_of
from kernels_hub.compiler.plan.plan import Plan
from kernels_hub.compiler.plan.program import bare

KIND = "opened plan"
Parts = Sequence[bytes | memoryview]


class ImageHeader(PlanHeader, frozen=True, kw_only=True):
    """The header of a plan with images. images: number of a segment -> its image."""

    images: dict[str, ImageRow]


def sections_of(plan: Plan) -> tuple[dict[str, object], dict[str, Parts]] | None:
    """Header and sections of a plan; None where a segment can be written neither as an image nor by its engine."""
    images: dict[str, object] = {}
    sections: dict[str, Parts] = {}
    for number, segment in enumerate(plan.segments):
        made = bare(segment.plan)
        if isinstance(made, NativePlan):
            image = image_of(made)
            if image is None:
                return None
            images[str(number)], sections[_weights(number)] = image
            continue
        try:
            sections[_payload(number)] = (segment.plan.serialize(),)
        except EngineError:
            return None
    return {"kind": KIND, **plan_header(plan.program, plan.device), "images": images}, sections


def write_sections(file: IO[bytes], header: Mapping[str, object], sections: Mapping[str, Parts]) -> None:
    """Write what `sections_of` gave; the header may have grown."""
    write_container_to(file, header, sections)


def read_plan(file: IO[bytes], what: str, device: Device) -> Plan:
    """The plan of a file, ready to run.

    Raises PlanError for what is damaged, for another device or version, or whose library is gone; OSError.
    """
    memory: dict[str, torch.Tensor] = {}

    def allocate(name: str, size: int) -> memoryview:
        memory[name] = held = memory_for(size)
        return held.numpy().data[:size]

    container = read_container_from(file, what, allocate)
    place = check_made(container, KIND, device)
    header = container.header(ImageHeader)

    def plan_of(number: int, row: SegmentRow) -> CompiledPlan:
        name = str(number)
        if name not in header.images:
            payload = bytes(container.section(_payload(number)))
            return loaded(engine(row.engine), payload, place, header.graph)
        part = f"{what}: segment {number}"
        weights = memory.get(_weights(number))
        if row.engine != NativePlan.engine or weights is None:
            raise PlanError(f"{part} is an image without weights, or of engine {row.engine[:100]!r}")
        return load_image(header.images[name], weights, part, place)

    return Plan(program_of(header, what, "", plan_of), place)


def _weights(number: int) -> str:
    return f"segment {number} weights"


def _payload(number: int) -> str:
    return f"segment {number}"
