"""Builds the native code that wheels carry: C++ of layers, and the interpreter of the compiler's bytecode, by the
`ziglang` of a package registry.

Zig brings Clang, its C++ library (which is linked in) and the C library of an old Linux, so that what it builds needs
nothing but glibc 2.28, on whatever machine it was built: code for ARM comes from x86-64, too. Of OpenMP it brings
nothing: runtime/openmp.cpp answers what Clang calls by the runtime that PyTorch has loaded. One object a level holds
all source files, and exports their C functions alone.

The same sources and the same Zig give the same bytes: no path, no time and no machine goes into an object.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PREBUILT: Any = importlib.import_module("kernels_hub.layers.native.prebuilt")
"""What finds the objects: layers are checked as their variants, not under this name."""
INDEX: str = _PREBUILT.INDEX

ROOT = Path(__file__).resolve().parents[2]
OWN = Path(__file__).with_name("runtime")
GLIBC = "2.28"
FLAGS = (
    "-std=c++20", "-O3", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fwrapv",
    "-fPIC", "-w",
    "-g0",  # Zig's default, -g, has Clang name the source file, by its path, of each parallel region
)  # fmt: skip


@dataclass(frozen=True)
class Level:
    """Processors that one object is for. runs_here: whether one is of these, in C++ (runtime/processor.cpp)."""

    name: str
    flags: tuple[str, ...]
    runs_here: str


@dataclass(frozen=True)
class Platform:
    """A machine that wheels are for. levels: best first."""

    machine: str
    levels: tuple[Level, ...]

    @property
    def target(self) -> str:
        """As Zig names it."""
        return f"{self.machine}-linux-gnu.{GLIBC}"

    @property
    def tag(self) -> str:
        """The platform tag of its wheel."""
        return f"manylinux_{GLIBC.replace('.', '_')}_{self.machine}"


X86_64 = Platform(
    "x86_64",
    (
        Level(
            "avx512_bf16",
            ("-mcpu=x86_64_v4+avx512bf16+avx512vnni", "-mprefer-vector-width=512"),
            "has_avx512_bf16()",
        ),
        Level("avx512", ("-mcpu=x86_64_v4", "-mprefer-vector-width=512"), "has_avx512()"),
        Level("avx2", ("-mcpu=x86_64_v3",), "has_avx2()"),
    ),
)
AARCH64 = Platform(
    "aarch64",
    (
        Level("neon_bf16", ("-mcpu=generic+bf16",), "has_bf16()"),
        Level("neon", ("-mcpu=generic",), "true"),  # ARMv8.0, of which NEON is a part
    ),
)
PLATFORMS = {one.machine: one for one in (X86_64, AARCH64)}


class PrebuildError(RuntimeError):
    """Native code of a wheel cannot be built."""


@dataclass(frozen=True)
class Unit:
    """A source file and the folders of its headers, the first that has one counting."""

    source: Path
    headers: tuple[Path, ...]

    def digest(self) -> str:
        """What tells whether a layer's sources are these: see `layers/native/prebuilt.py`."""
        found: dict[str, bytes] = {}
        for folder in self.headers:
            for path in folder.glob("*.h"):
                found.setdefault(path.name, path.read_bytes())
        return str(_PREBUILT.digest_of(self.source.read_bytes(), found))


def units_of(root: Path) -> tuple[Unit, ...]:
    """The C++ of all bundled layers, and the compiler's interpreter with what it calls."""
    shared = (root / "layers" / "native", root / "compiler" / "native")
    sources = sorted((root / "layers").glob("**/*.cpp"))
    compiler = root / "compiler" / "native"
    library = importlib.import_module("kernels_hub.compiler.engines.bytecode_library")
    interpreter = [path.relative_to(library.INTERPRETER.parents[1]) for path in library.SOURCES]
    return (
        *(Unit(one, (one.parent, *shared)) for one in sources),
        *(Unit(root / path, (root / path.parent, compiler)) for path in interpreter),
    )


def llvm_version() -> str:
    """The release of LLVM in Zig."""
    done = subprocess.run([*zig(), "c++", "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"clang version (\S+)", done.stdout)
    return str(found[1]) if found else "unknown"


def zig() -> list[str]:
    """The command. Raises PrebuildError where `ziglang` is not installed."""
    if importlib.util.find_spec("ziglang") is None:
        raise PrebuildError("ziglang is not installed: pip install 'kernels-hub[wheels]'")
    return [sys.executable, "-m", "ziglang"]


def zig_version() -> str:
    """The release of `ziglang`."""
    return str(importlib.metadata.version("ziglang"))


def build(units: Sequence[Unit], platform: Platform, out: Path, *, processes: int | None = None) -> None:
    """Build an object for each level into a folder, and the index of them."""
    out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="kernels_hub-prebuilt-") as name,
        ThreadPoolExecutor(processes or os.cpu_count() or 1) as pool,
    ):
        folder = Path(name)
        objects = {
            level.name: [pool.submit(_compile, unit, level, platform, folder) for unit in units]
            for level in platform.levels
        }
        own = {level.name: pool.submit(_compile_own, level, platform, folder) for level in platform.levels}
        rows = []
        for level in platform.levels:
            made = [one.result() for one in objects[level.name]]
            target = out / f"kernels-{level.name}.so"
            _link(made, own[level.name].result(), platform, target, folder)
            digest = hashlib.sha256(target.read_bytes()).hexdigest()
            rows.append({"name": level.name, "file": target.name, "sha256": digest})
    document = {
        "machine": f"{platform.machine}-linux",
        "compiler": f"ziglang {zig_version()}",
        "levels": rows,
        "units": {unit.source.name: unit.digest() for unit in units},
    }
    (out / INDEX).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _compile(unit: Unit, level: Level, platform: Platform, folder: Path) -> Path:
    target = folder / f"{unit.source.stem}-{level.name}.o"
    include = [f"-I{one}" for one in (*unit.headers, OWN)]
    flags = [*FLAGS, *level.flags, *include]
    _run(["c++", "-target", platform.target, *flags, "-c", str(unit.source), "-o", str(target)])
    return target


def _compile_own(level: Level, platform: Platform, folder: Path) -> list[Path]:
    """What every object has: for any processor, as it is asked before the level is known to run."""
    targets = []
    for source in sorted(OWN.glob("*.cpp")):
        target = folder / f"{source.stem}-{level.name}.own.o"
        flags = ["-std=c++20", "-O2", "-fPIC", "-fno-exceptions", "-w", f"-DKH_RUNS_HERE={level.runs_here}"]
        _run(["c++", "-target", platform.target, *flags, "-c", str(source), "-o", str(target)])
        targets.append(target)
    return targets


def _link(
    objects: Sequence[Path], own: Sequence[Path], platform: Platform, target: Path, folder: Path
) -> None:
    names = sorted({name for one in (*objects, *own) for name in _exported(one)})
    script = folder / f"{target.stem}.map"
    script.write_text(
        "{ global: " + "".join(f"{one}; " for one in names) + "local: *; };\n", encoding="ascii"
    )
    command = "c++" if any(map(_needs_cxx, objects)) else "cc"
    flags = ["-shared", "-s", f"-Wl,--version-script={script}", "-Wl,-z,defs", f"-Wl,-soname,{target.name}"]
    _run([command, "-target", platform.target, *flags, *map(str, objects), *map(str, own), "-o", str(target)])


def _exported(path: Path) -> Iterator[str]:
    """The C functions of an object that are for its users."""
    for name, is_defined in _symbols(path):
        if is_defined and not name.startswith(("_", "omp_")):
            yield name


def _needs_cxx(path: Path) -> bool:
    """Whether an object calls the C++ library."""
    return any(not is_defined and re.match(r"_Z|__cxa_|__gxx", name) for name, is_defined in _symbols(path))


def _symbols(path: Path) -> list[tuple[str, bool]]:
    """Global names of an object, and whether it defines them."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection), path
        return [
            (one.name, one["st_shndx"] != "SHN_UNDEF")
            for one in table.iter_symbols()
            if one.name and one["st_info"]["bind"] != "STB_LOCAL"
            and one["st_other"]["visibility"] != "STV_HIDDEN"
        ]  # fmt: skip


def _run(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    command = [*zig(), *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        errors="replace",
        env={**os.environ, **(environment or {})},
    )
    if done.returncode:
        raise PrebuildError(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
