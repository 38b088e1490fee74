"""The interpreter of bytecode in a folder as wheels have it, for tests of machines without a C++ compiler."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from kernels_hub.compiler.engines import bytecode_library
from kernels_hub.compiler.runtime.toolchain import RUNTIME, build
from kernels_hub.layers.native import prebuilt

_RUNS_HERE = 'extern "C" int kh_runs_here() { return 1; }\n'


def wheel_interpreter(folder: Path) -> Path:
    """A folder for KERNELS_HUB_PREBUILT, with the interpreter for this machine. Needs g++."""
    built = build(bytecode_library.source(), "bytecode", runtime=bytecode_library.LINKED)
    headers = {
        path.name: path.read_bytes()
        for folder in (bytecode_library.INTERPRETER, RUNTIME)
        for path in folder.glob("*.h")
    }
    units = {path.name: prebuilt.digest_of(path.read_bytes(), headers) for path in bytecode_library.SOURCES}
    return write_wheel(folder, _RUNS_HERE, units, built)


def write_wheel(folder: Path, source: str, units: Mapping[str, str] | None = None, *linked: Path) -> Path:
    """Such a folder with a library of some C++. units: what it claims to be built of."""
    folder.mkdir(parents=True, exist_ok=True)
    code, library = folder / "here.cpp", folder / "kernels-here.so"
    code.write_text(source)
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-Wl,--no-as-needed", code, *linked, "-o", library], check=True
    )
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    index = {
        "machine": f"{platform.machine()}-{sys.platform}",
        "levels": [{"name": "here", "file": library.name, "sha256": digest}],
        "units": dict(units or {}),
    }
    (folder / prebuilt.INDEX).write_text(json.dumps(index))
    return folder
