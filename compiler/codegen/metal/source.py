"""A schedule as Metal source text, and the launches that run it.

A nest is a kernel over a grid of one dimension. Its arguments are buffers, then sizes, then (where an index that data
give may be out of range) an int that is 0, to which the number of a message of `MetalCode.messages` is written.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels_hub.compiler.codegen.anchor_loops import as_loops
from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.lines import origins
from kernels_hub.compiler.codegen.loops import is_empty
from kernels_hub.compiler.codegen.metal.nest import print_nest
from kernels_hub.compiler.codegen.metal.prelude import METAL
from kernels_hub.compiler.codegen.metal.product import print_product
from kernels_hub.compiler.codegen.metal.text import Parameters
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.schedule.kernel import Buffer, Kernel, Nest, Product, Schedule
from kernels_hub.escaping import CommentText, Identifier


@dataclass(frozen=True)
class Launch:
    """A kernel by name, what it is given, and how many threads run it."""

    kernel: str
    parameters: Parameters
    threads: Dim


@dataclass(frozen=True)
class MetalCode:
    """Source text and its launches: `prepare` once, on weights and constants; `run` by kernel of the schedule."""

    source: str
    buffers: tuple[Buffer, ...]
    sizes: tuple[str, ...]
    messages: tuple[str, ...]
    steps: tuple[str, ...]
    prepare: tuple[Launch, ...]
    run: tuple[tuple[Launch, ...], ...]


def generate(schedule: Schedule) -> MetalCode:
    """The Metal of a schedule. Raises EngineError for a dtype, an op or an anchor that Metal cannot express."""
    names, lines = Names(schedule.buffers), Lines()
    prepare = [_kernel(one, f"prepare{index}", lines, names) for index, one in enumerate(schedule.prepare)]
    run = [_kernel(kernel, f"run{index}", lines, names) for index, kernel in enumerate(schedule.kernels)]
    head = f"// {CommentText(schedule.name)}: generated from a schedule of {len(run)} kernels.\n"
    launches = [launch for one in (*prepare, *run) for launch in one]
    return MetalCode(
        f"{head}{METAL}\n{lines.text()}",
        schedule.buffers,
        tuple(sorted({size for launch in launches for size in launch.parameters.sizes})),
        tuple(names.messages),
        tuple(kernel.name for kernel in schedule.kernels),
        tuple(launch for one in prepare for launch in one),
        tuple(run),
    )


def _kernel(kernel: Kernel, prefix: str, lines: Lines, names: Names) -> tuple[Launch, ...]:
    """The kernels of the nests of one kernel of the schedule."""
    launches = []
    for index, nest in enumerate(kernel.nests):
        if is_empty(nest.outer):
            continue
        name = Identifier(f"{prefix}_{index}_{Identifier(kernel.name)}")
        if origin := origins(kernel.origins):
            lines.comment(origin)
        parameters, threads = _print(name, nest, lines, names)
        lines.add()
        launches.append(Launch(name, parameters, threads))
    return tuple(launches)


def _print(name: str, nest: Nest, lines: Lines, names: Names) -> tuple[Parameters, Dim]:
    if nest.anchor is None:
        return print_nest(name, nest, lines, names)
    if isinstance(nest.anchor, Product) and not nest.inner:
        return print_product(name, nest, lines, names)
    return print_nest(name, as_loops(nest), lines, names)
