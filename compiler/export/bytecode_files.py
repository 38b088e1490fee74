"""Bytecode of an exported layer: the kernels of its C++ for an interpreter, which runs them where there is no compiler.

A layer holds C++ and bytecode of one schedule, and runs the first that a machine can. One table describes both: their
buffers, sizes, packed operands and messages are the same, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels_hub.compiler.codegen.bytecode.program import generate
from kernels_hub.compiler.codegen.cpp.translation_unit import CppCode
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.export.table import Parts
from kernels_hub.compiler.runtime.bytecode import FORMAT, SUFFIX, TRANSFORMS, write_words


@dataclass(frozen=True)
class BytecodeFile:
    """The bytecode of a program. program: its C++ file. content: of the file; None where there is none: `reason`."""

    program: str
    content: bytes | None
    reason: str = ""

    @property
    def name(self) -> str:
        """Of the file."""
        return bytecode_name(self.program)


def bytecode_name(program: str) -> str:
    """What lies beside a program's C++ file: "program.cpp" -> "program.bytecode"."""
    return Path(program).with_suffix(SUFFIX).name


def bytecode_of(programs: Iterable[Parts]) -> tuple[BytecodeFile, ...]:
    """Of each program, what is written for it, or why nothing is."""
    files = []
    for parts in programs:
        try:
            files.append(BytecodeFile(parts.program_file, _content(parts)))
        except EngineError as error:
            files.append(BytecodeFile(parts.program_file, None, str(error)))
    return tuple(files)


def write_bytecode(folder: Path, files: Sequence[BytecodeFile]) -> None:
    """Write them beside the C++ of `folder`, a repository in source form."""
    for one in files:
        if one.content is not None:
            (folder / "cpu" / one.name).write_bytes(one.content)


def _content(parts: Parts) -> bytes:
    assert isinstance(parts.program, CppCode)
    code, native = generate(parts.schedule), parts.program
    told = (code.buffers, code.sizes, code.messages, code.steps, [one.source for one in code.packed])
    if told != (
        native.buffers,
        native.sizes,
        native.messages,
        native.steps,
        [one.source for one in native.packed],
    ):
        raise EngineError("its bytecode is called with other operands than its C++")
    return write_words(code.words, TRANSFORMS if code.transforms else FORMAT)
