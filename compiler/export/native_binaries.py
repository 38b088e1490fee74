"""Native code shipped with an exported layer: each program for every instruction set level, with digests."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels_hub.compiler.codegen.cpp.translation_unit import CppCode
from kernels_hub.compiler.errors import BuildError
from kernels_hub.compiler.export.table import Parts
from kernels_hub.compiler.runtime import errors as runtime
from kernels_hub.compiler.runtime import toolchain
from kernels_hub.compiler.runtime.prebuilt import FOLDER, INDEX, machine

SOURCES = "prebuilt"
"""The folder of a repository in source form that holds them."""

Row = dict[str, str]

_OLDEST_TORCH = "211"


@dataclass(frozen=True)
class Prebuilt:
    """One shared object. file: its name among the native files; program: the source file that it was built of."""

    program: str
    isa: str
    file: str
    nbytes: int


def variant_name() -> str:
    """The variant that holds them: they need neither torch nor Python, and the layer any torch that is supported."""
    return f"torch-stable-abi{_OLDEST_TORCH}-cpu-{platform.machine()}-{sys.platform}"


def write_prebuilt(folder: Path, programs: Sequence[Parts]) -> tuple[Prebuilt, ...]:
    """Build and write them under `folder`, a repository in source form. Raises BuildError where one does not build."""
    native = folder / SOURCES / FOLDER
    native.mkdir(parents=True, exist_ok=True)
    levels = toolchain.ISAS if platform.machine() == "x86_64" else toolchain.ISAS[-1:]
    prebuilts: list[Prebuilt] = []
    index: dict[str, list[Row]] = {}
    for parts in programs:
        assert isinstance(parts.program, CppCode)
        for level in levels:
            library = _built(parts, parts.program, level)
            name = f"{Path(parts.program_file).stem}-{level.name}.so"
            shutil.copyfile(library, native / name)
            data = (native / name).read_bytes()
            index.setdefault(parts.program_file, []).append(_row(level.name, name, data))
            prebuilts.append(Prebuilt(parts.program_file, level.name, name, len(data)))
    if not prebuilts:
        raise BuildError("there is no program to build")
    _write_index(native, index)
    return tuple(prebuilts)


def _built(parts: Parts, program: CppCode, level: toolchain.Isa) -> Path:
    try:
        return toolchain.build(program.source, parts.layer, level, runtime=program.runtime)
    except runtime.BuildError as error:
        raise BuildError(str(error)) from error


def copy_alone(folder: Path, one: Prebuilt, to: Path) -> None:
    """A shared object alone, as if it were all that came along."""
    native = to / FOLDER
    native.mkdir()
    shutil.copyfile(folder / SOURCES / FOLDER / one.file, native / one.file)
    _write_index(native, {one.program: [_row(one.isa, one.file, (native / one.file).read_bytes())]})


def _row(isa: str, file: str, data: bytes) -> Row:
    return {"machine": machine(), "isa": isa, "file": file, "sha256": hashlib.sha256(data).hexdigest()}


def _write_index(native: Path, programs: Mapping[str, Sequence[Row]]) -> None:
    text = json.dumps({"programs": programs}, indent=1) + "\n"
    (native / INDEX).write_text(text, encoding="utf-8", newline="\n")
