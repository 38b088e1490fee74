"""A built library in a plan: what it was built of, and for which instruction set. To load one is to run its code."""

from __future__ import annotations

from kernels_hub.compiler.codegen.cpp.translation_unit import CppCode
from kernels_hub.compiler.engines.container import AGAIN, Header, read_container, write_container
from kernels_hub.compiler.errors import PlanError
from kernels_hub.compiler.runtime.toolchain import Isa, identity, machine_isas
from kernels_hub.parsing import Sha256, Text

_KIND = "native code"


class _NativeHeader(Header, frozen=True, kw_only=True):
    engine: Text
    level: Text
    identity: Sha256


def pack_native(engine: str, program: CppCode, level: Isa, library: bytes) -> bytes:
    """A library, and what it was built of."""
    made_of = identity(program.source, program.runtime, level)
    header = {"kind": _KIND, "engine": engine, "level": level.name, "identity": made_of}
    return write_container(header, {"library": library})


def unpack_native(code: bytes, engine: str, program: CppCode) -> bytes:
    """The library. Raises PlanError where it is damaged, of another program, or for another instruction set."""
    what = f"the native code of engine {engine}"
    container = read_container(code, what)
    header = container.header(_NativeHeader)
    if header.kind != _KIND or header.engine != engine:
        raise PlanError(f"{what} is a {header.kind[:100]} of {header.engine[:100]!r}; {AGAIN}")
    levels = {isa.name: isa for isa in machine_isas()}
    if header.level not in levels:
        raise PlanError(
            f"{what} is for {header.level[:100]}, this machine runs {', '.join(levels)}: install a C++ compiler, "
            f"or {AGAIN}"
        )
    if identity(program.source, program.runtime, levels[header.level]) != header.identity:
        raise PlanError(f"{what} was built of other sources than its graph gives here; {AGAIN}")
    return bytes(container.section("library"))
