"""Generated Triton as an emitted module: its kernels, and functions that launch them with knobs from a table.

PREPARE, RUN      functions (m, s, on), one for each kernel of the schedule, to be called in order
m                 tensors: those of the table's buffers in that order, then an int32 that is 0
s                 the sizes of the table's symbols
on                the launcher of a device: which tiles it takes, and how a kernel is started
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels_hub.compiler.codegen import (
    toolchain,
    triton_interpreted,
    triton_options,
    triton_runtime,
    triton_versions,
)
from kernels_hub.compiler.codegen.scalar import size_name
from kernels_hub.compiler.codegen.triton import HEAD, Program, _Module
from kernels_hub.compiler.codegen.triton_options import Options
from kernels_hub.compiler.codegen.triton_split import split_reductions
from kernels_hub.compiler.engines.scheduled import untold
from kernels_hub.compiler.engines.triton import ROOTS, _unspelled
from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.schedule.kernel import Buffer, Schedule
from kernels_hub.compiler.schedule.schedule import schedule
from kernels_hub.compiler.schedule.units import refused
from kernels_hub.escaping import CommentText

if TYPE_CHECKING:
    from kernels_hub.compiler.codegen.triton_kernel import Launch
    from kernels_hub.compiler.codegen.triton_text import Lines

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "gfx942")
"""What the table of knobs has rows for."""

_HEAD = """\
import triton
import triton.language as tl

from . import kh
from .kh import libdevice

"""
_NOTE = """\
# m: tensors, in the order of the table's buffers, then where a kernel reports an index out of range.
# s: the sizes of the table's symbols. on: the launcher of a device, which knows the tiles and how a kernel is started.


"""


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


class _Launched(_Module):
    """A module whose launches go through `on`."""

    def _function(
        self,
        name: str,
        launches: list[Launch],
        places: dict[Buffer, int],
        sizes: tuple[str, ...],
        lines: Lines,
    ) -> None:
        with lines.block(f"def {name}(m, s, on)"):
            for one in dict.fromkeys(size for launch in launches for size in launch.arguments.sizes):
                lines.add(f"{size_name(one)} = s[{sizes.index(one)}]")
            for launch in launches:
                self._launch(launch, places, lines)
            if not launches:
                lines.add("pass")
        lines.add()
        lines.add()

    def _call(self, launch: Launch, places: dict[Buffer, int], lines: Lines) -> None:
        for one in launch.before:
            lines.add(f"tile = on.tile({launch.kernel}, {one.removeprefix('tile = ')})")
        found = launch.arguments
        arguments = [f"m[{places[one]}]" for one in found.buffers] + [size_name(one) for one in found.sizes]
        if found.fails:
            arguments.append(f"m[{len(places)}]")
        constants = [f"{name}={value}" if value else name for name, value in launch.constants.items()]
        grid, given = (
            f"({', '.join(texts)}{',' if len(texts) == 1 else ''})" for texts in (launch.grid, arguments)
        )
        shown = ", ".join(self.names.buffers[one] for one in found.buffers)
        lines.add(f"on.launch({', '.join([launch.kernel, grid, given, *constants])})", CommentText(shown))


def triton_schedule(graph: Graph) -> Schedule | str:
    """The schedule of a graph's Triton kernels, or why it has none."""
    try:
        if found := refused(graph, ROOTS) | _unspelled(graph) | untold(graph):
            value, reason = next(iter(found.items()))
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            return f"{value.op_name}: {reason}{more}"
        return split_reductions(schedule(graph, ROOTS))
    except CompilerError as error:
        return str(error)


def triton_program(scheduled: Schedule) -> Program:
    """The module of a schedule. Raises EngineError for a dtype or an op that Triton cannot express."""
    program = _Launched(scheduled, _Late()).program()
    assert program.source.count(HEAD) == 1, (
        "generated Triton begins in another way than what is emitted expects"
    )
    text = program.source.replace(HEAD, _HEAD)
    if (launches := re.search(r"^def \w+\(m, s, on\):$", text, re.MULTILINE)) is not None:
        text = text[: launches.start()] + _NOTE + text[launches.start() :]
    return Program(text, program.buffers, program.sizes, program.messages, program.steps)


def library_files() -> dict[str, str]:
    """What generated kernels call: kh.py, tiles.py, interpreted.py, versions.py."""
    runtime = Path(triton_runtime.__file__).read_text(encoding="utf-8")
    runtime = _replaced(
        runtime, "from kernels_hub.compiler.codegen.triton_options import (", "from .tiles import ("
    )
    runtime = _replaced(
        runtime,
        "from kernels_hub.compiler.codegen import triton_interpreted as _interpreted",
        "from . import interpreted as _interpreted",
    )
    runtime = _replaced(
        runtime, "    import numpy as np\n", "    from triton.runtime.interpreter import np\n"
    )
    interpreted = Path(triton_interpreted.__file__).read_text(encoding="utf-8")
    interpreted = _replaced(
        interpreted,
        "import numpy as np\nimport triton.language as tl\nfrom triton.runtime.interpreter import TensorHandle\n",
        "import triton.language as tl\nfrom triton.runtime.interpreter import TensorHandle, np\n",
    )
    interpreted = _replaced(
        interpreted, "from kernels_hub.compiler.codegen.triton_versions import", "from .versions import"
    )
    versions = Path(triton_versions.__file__).read_text(encoding="utf-8")
    return {
        "kh.py": runtime,
        "tiles.py": _tiles(),
        "interpreted.py": interpreted,
        "versions.py": versions,
    }


def _replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} is no longer in what is copied"
    return text.replace(old, new)


def _tiles() -> str:
    names = ("ROW_ELEMENTS", "MOST_COLUMNS", "LOOPED_COLUMNS", "ACROSS_COLUMNS", "PROGRAMS")
    functions = ("block_tile", "whole_tile", "looped_tile", "product_tile", "attention_tile", "power_of_two")
    lines = [
        '"""Tiles by sizes, where no table of knobs says another. No result depends on them."""',
        "",
        "from __future__ import annotations",
        "",
        *(f"{name} = {getattr(triton_options, name)}" for name in names),
    ]
    sources = (inspect.getsource(getattr(triton_options, name)).rstrip() for name in functions)
    return "\n".join(lines) + "".join(f"\n\n\n{one}" for one in sources) + "\n"


def knob_table() -> dict[str, dict[str, Any]]:
    """The table of knobs as it is before anything is tuned: GPUs and instruction set levels of CPUs."""
    gpus: dict[str, dict[str, Any]] = {
        arch: {"stages": Options(arch=arch).stages, "block": 0, "product": None, "kernels": {}}
        for arch in ARCHITECTURES
    }
    return {**gpus, **{one.name: {"flags": list(one.flags)} for one in toolchain.ISAS}}
