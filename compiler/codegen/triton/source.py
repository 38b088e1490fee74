"""A schedule as one Python module of Triton kernels and the functions that launch them.

    PREPARE, RUN      functions (m, s), one for each kernel of the schedule, to be called in order
    m                 tensors: those of `TritonCode.buffers` in that order, then an int32 that is 0
    s                 the sizes of the symbols `TritonCode.sizes`

A kernel that meets an index out of range writes the number of a message of `TritonCode.messages` (1 is the first) to
the last tensor of `m`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels_hub.compiler.codegen.lines import origins
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.scalar import size_name
from kernels_hub.compiler.codegen.triton.anchors import print_anchor
from kernels_hub.compiler.codegen.triton.kernel import Launch
from kernels_hub.compiler.codegen.triton.nest import print_nest
from kernels_hub.compiler.codegen.triton.options import Options
from kernels_hub.compiler.codegen.triton.text import Lines
from kernels_hub.compiler.ir.dims import dim_symbols
from kernels_hub.compiler.schedule.index import is_variable
from kernels_hub.compiler.schedule.kernel import Buffer, Kernel, Schedule
from kernels_hub.escaping import CommentText, Identifier

LIBRARY = "kernels_hub.compiler.runtime"
"""Where generated modules find what they call."""
_HEAD = """\
import triton
import triton.language as tl

from @LIBRARY@ import triton_functions as kh
from @LIBRARY@.triton_functions import libdevice


"""
_NOTE = """\
# m: tensors, in the order of the program's buffers, then where a kernel reports an index out of range.
# s: the sizes of its symbols. on: the launcher of a device, which knows the tiles and how a kernel is started.


"""


@dataclass(frozen=True)
class TritonCode:
    """A module's source, and what its functions are called with."""

    source: str
    buffers: tuple[Buffer, ...]
    sizes: tuple[str, ...]
    messages: tuple[str, ...]
    steps: tuple[str, ...]


def generate(schedule: Schedule, options: Options | None = None, library: str = LIBRARY) -> TritonCode:
    """The Triton of a schedule. library: the package of `triton_functions`.

    Raises EngineError for a dtype or an op that Triton cannot express.
    """
    return _ModuleText(schedule, options or Options()).program(library)


class _ModuleText:
    """One module while it is written."""

    def __init__(self, schedule: Schedule, options: Options) -> None:
        self.schedule, self.options = schedule, options
        self.names = Names(schedule.buffers)
        self.taken: set[str] = set()
        self.launches: dict[str, list[Launch]] = {}

    def program(self, library: str) -> TritonCode:
        kernels, host = Lines(), Lines()
        prepare = [self._kernel(one, kernels) for one in self.schedule.prepare]
        run = [self._kernel(kernel, kernels) for kernel in self.schedule.kernels]
        used = {name for all_of in self.launches.values() for one in all_of for name in one.arguments.sizes}
        dims = [dim for buffer in self.schedule.buffers for dim in (*buffer.shape, *buffer.strides)]
        sizes = tuple(sorted(used | {symbol.name for symbol in dim_symbols(dims) if not is_variable(symbol)}))
        places = {buffer: index for index, buffer in enumerate(self.schedule.buffers)}
        for name, launches in self.launches.items():
            self._function(name, launches, places, sizes, host)
        host.add(f"PREPARE = ({''.join(f'{name}, ' for name in prepare)})")
        host.add(f"RUN = ({''.join(f'{name}, ' for name in run)})")
        head = f'"""{Identifier(self.schedule.name)}: generated from a schedule of {len(run)} kernels."""\n\n'
        return TritonCode(
            head + _HEAD.replace("@LIBRARY@", library) + kernels.text() + _NOTE + host.text(),
            self.schedule.buffers,
            sizes,
            tuple(self.names.messages),
            tuple(kernel.name for kernel in self.schedule.kernels),
        )

    def _kernel(self, kernel: Kernel, lines: Lines) -> str:
        """Write the kernels of a schedule's kernel; returns the name of the function that launches them."""
        name = wanted = Identifier(kernel.name)
        while name in self.taken:
            name = Identifier(f"{wanted[:50]}_{len(self.taken)}")
        self.taken.add(name)
        source = origins(dict.fromkeys(kernel.origins))
        launches: list[Launch] = []
        for number, nest in enumerate(kernel.nests):
            part = f"{name}_kernel" if len(kernel.nests) == 1 else f"{name}_kernel_{number}"
            if source:
                lines.comment(source)
            make = print_nest if nest.anchor is None else print_anchor
            launch = make(part, nest, lines, self.names, self.options)
            if launch is not None:
                launches.append(launch)
        self.launches[name] = launches
        return name

    def _function(
        self,
        name: str,
        launches: list[Launch],
        places: dict[Buffer, int],
        sizes: tuple[str, ...],
        lines: Lines,
    ) -> None:
        with lines.block(f"def {name}(m, s, on)"):
            wanted = dict.fromkeys(size for launch in launches for size in launch.arguments.sizes)
            for one in wanted:
                lines.add(f"{size_name(one)} = s[{sizes.index(one)}]")
            for launch in launches:
                self._launch(launch, places, lines)
            if not launches:
                lines.add("pass")
        lines.add()
        lines.add()

    def _launch(self, launch: Launch, places: dict[Buffer, int], lines: Lines) -> None:
        if launch.condition:
            with lines.block(f"if {launch.condition}"):
                self._call(launch, places, lines)
            if launch.otherwise is not None:
                with lines.block("else"):
                    self._launch(launch.otherwise, places, lines)
        else:
            self._call(launch, places, lines)

    def _call(self, launch: Launch, places: dict[Buffer, int], lines: Lines) -> None:
        for one in launch.before:
            lines.add(f"tile = on.tile({launch.kernel}, {one.removeprefix('tile = ')})")
        found = launch.arguments
        arguments = [f"m[{places[buffer]}]" for buffer in found.buffers] + [
            size_name(size) for size in found.sizes
        ]
        if found.fails:
            arguments.append(f"m[{len(places)}]")
        constants = [f"{name}={value}" if value else name for name, value in launch.constants.items()]
        grid, given = (
            f"({', '.join(texts)}{',' if len(texts) == 1 else ''})" for texts in (launch.grid, arguments)
        )
        shown = ", ".join(self.names.buffers[buffer] for buffer in found.buffers)
        lines.add(f"on.launch({', '.join([launch.kernel, grid, given, *constants])})", CommentText(shown))
