"""Generated Triton as an emitted module: its kernels, and functions that launch them with knobs from a table.

PREPARE, RUN      functions (m, s, on), one for each kernel of the schedule, to be called in order
m                 tensors: those of the table's buffers in that order, then an int32 that is 0
s                 the sizes of the table's symbols
on                the launcher of a device: which tiles it takes, and how a kernel is started
"""

from __future__ import annotations

from typing import Any

from kernels_hub.compiler.codegen.triton.options import Options
from kernels_hub.compiler.codegen.triton.source import TritonCode, generate
from kernels_hub.compiler.codegen.triton.split import split_reductions
from kernels_hub.compiler.engines.scheduled import untold
from kernels_hub.compiler.engines.triton import ANCHORS, unspelled
from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.export.package import RUNTIME
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.runtime import toolchain
from kernels_hub.compiler.schedule.inlining import refused
from kernels_hub.compiler.schedule.kernel import Schedule
from kernels_hub.compiler.schedule.schedule import schedule
from kernels_hub.compiler.schedule.split import MOST_LAUNCHES

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "gfx942")
"""What the table of knobs has rows for."""


class _Knob:
    """A number that the launcher knows, in generated text."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"on.{self.name}"


class _Late(Options):
    """Every choice is left to the launcher."""

    def __init__(self) -> None:
        super().__init__(late=True)
        object.__setattr__(self, "block_size", _Knob("block"))
        object.__setattr__(self, "tile", _Knob("product"))

    @property
    def stages(self) -> int:
        """See `Options`."""
        return _Knob("stages")  # type: ignore[return-value]


def triton_schedule(graph: Graph) -> Schedule | str:
    """The schedule of a graph's Triton kernels, or why it has none."""
    try:
        if found := refused(graph, ANCHORS) | unspelled(graph) | untold(graph):
            value, reason = next(iter(found.items()))
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            return f"{value.op_name}: {reason}{more}"
        return split_reductions(schedule(graph, ANCHORS, most_parts=MOST_LAUNCHES, cpu=False))
    except CompilerError as error:
        return str(error)


def triton_program(scheduled: Schedule) -> TritonCode:
    """The module of a schedule. Raises EngineError for a dtype or an op that Triton cannot express."""
    return generate(scheduled, _Late(), library=f".{RUNTIME.replace('/', '.')}")


def knob_table() -> dict[str, dict[str, Any]]:
    """The table of knobs as it is before anything is tuned: GPUs and instruction set levels of CPUs."""
    gpus: dict[str, dict[str, Any]] = {
        arch: {"stages": Options(arch=arch).stages, "block": 0, "product": None, "kernels": {}}
        for arch in ARCHITECTURES
    }
    return {**gpus, **{isa.name: {"flags": list(isa.flags)} for isa in toolchain.ISAS}}
