"""Plans as bytes, and back: a `container` with the engines' payloads as sections. No pickle; every field is parsed.

A file holds graphs, weights and knobs; engines generate code from the graphs when they load them, and names in them are
data. So a plan from somebody else may be loaded: it computes what its graphs say, and no more. Beside lies what was
built of them, for machines without a compiler: that is code, and runs only there and only for who trusts the file.

A plan is for the device, the kernels_hub and the torch that it was made with; each is compared, and named, when it
is loaded.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import torch

from kernels_hub.compiler.engines import registry
from kernels_hub.compiler.engines.container import (
    AGAIN,
    Container,
    Count,
    Header,
    read_container,
    write_container,
)
from kernels_hub.compiler.engines.devices import find_device
from kernels_hub.compiler.engines.engine import CompiledPlan, Device, Signature, engine_id
from kernels_hub.compiler.engines.guard import loaded, with_native_code
from kernels_hub.compiler.engines.type_rows import (
    NamedRow,
    SymbolRow,
    TypeRow,
    symbol_of,
    symbol_row,
    type_of,
    type_row,
)
from kernels_hub.compiler.errors import CompilerError, EngineError, PlanError
from kernels_hub.compiler.ir.op import TensorType
from kernels_hub.compiler.plan.program import PrintedGraph, Program, Segment, bare
from kernels_hub.parsing import Struct, Text
from kernels_hub.version import __version__

Source = str | os.PathLike[str] | bytes


def versions() -> dict[str, str]:
    """What a plan depends on."""
    return {"kernels_hub": __version__, "torch": torch.__version__}


def write_program(program: Program, device: Device) -> bytes:
    """A plan as bytes: its program, and the device that it is for.

    Raises EngineError where an engine cannot serialize its part.
    """
    payloads = {
        f"segment {index}": segment.plan.serialize() for index, segment in enumerate(program.segments)
    }
    for position, one in enumerate(program.segments):
        built = getattr(bare(one.plan), "native_code", None)
        if built is not None and (code := built()) is not None:
            payloads[_native(position)] = code
    header = {"kind": "plan", **plan_header(program, device)}
    return write_container(header, {"graph": program.text.encode(), **payloads})


def plan_header(program: Program, device: Device) -> dict[str, object]:
    """The fields of a `PlanHeader`, but for its kind and sections."""
    return {
        "graph": program.name,
        "digest": program.digest,
        "versions": versions(),
        "device": {"type": device.type, "arch": device.arch},
        "symbols": {name: symbol_row(one) for name, one in program.facts.items()},
        "inputs": [[name, *type_row(of)] for name, of in program.signature.inputs.items()],
        "outputs": [[name, *type_row(of)] for name, of in program.signature.outputs.items()],
        "slots": [type_row(of) for of in program.slots],
        "output_slots": program.outputs,
        "carriers": sorted(program.carriers),
        "defined": dict(program.defined),
        "segments": [
            {
                "engine": segment.engine, "id": engine_id(segment.engine), "knobs": dict(segment.knobs),
                "inputs": segment.inputs, "outputs": segment.outputs, "ops": segment.ops,
            }
            for segment in program.segments
        ],
    }  # fmt: skip


def _native(number: int) -> str:
    return f"segment {number} native code"


def read_program(
    source: Source, device: str | Device | torch.device | None = None, trust_native_code: bool | str = False
) -> tuple[Program, Device]:
    """What makes the plan in a file, or in bytes. device: by default, the one of its type that is here.

    trust_native_code: see `may_run_native_code`.

    Raises PlanError for a file that is not there, damaged, or for another device or version, or whose engine is
    missing.
    """
    data, what = read_bytes(source, mapped=not isinstance(trust_native_code, str))
    trusted = may_run_native_code(data, what, trust_native_code)
    return program_in(read_container(data, what), what, device, trusted=trusted)


def may_run_native_code(data: bytes | memoryview, what: str, trust: bool | str) -> bool:
    """Whether built code that lies in a file may run, where nothing can be built here.

    trust: True, False, or the SHA-256 of the whole file, in hexadecimal. Raises PlanError where the file has another
    one, or where the trust policy says `trust_remote_code = false`.
    """
    if trust is False:
        return False
    from kernels_hub.trust.policy import load_policy

    policy = load_policy()
    if not policy.trust_remote_code:
        raise PlanError(
            f"{what}: {policy.path} says trust_remote_code = false, so native code in files is not run, whatever a "
            "call says"
        )
    if trust is not True and hashlib.sha256(data).hexdigest() != trust.lower():
        raise PlanError(f"{what} is not the file that is trusted: its SHA-256 is not {trust[:100]}")
    return True


def read_bytes(source: Source, *, mapped: bool = True) -> tuple[bytes | memoryview, str]:
    """The bytes, and what to call them. Raises PlanError where they cannot be read.

    mapped: whether a file is mapped, which shows what is written to it later, too. Where its digest says that it is
    trusted it is read, so that the bytes that were hashed are those that are used.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source), f"the plan ({len(source)} bytes)"
    try:
        with Path(source).open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return b"", str(source)
            if not mapped:
                return file.read(), str(source)
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), str(source)
    except OSError as error:
        raise PlanError(
            f"{source} cannot be read: {error.strerror or error}; compile the graph and save it"
        ) from error


class DeviceRow(Struct, frozen=True):
    """A device that code was made for."""

    type: Text
    arch: Text


class MadeHeader(Header, frozen=True, kw_only=True):
    """What was compiled, for what. Of plans and of executables."""

    graph: Text
    versions: dict[str, str]
    device: DeviceRow


Knobs = dict[str, bool | int | float | str]


class SegmentRow(Struct, frozen=True):
    """A part on one engine."""

    engine: Text
    id: int
    knobs: Knobs
    inputs: tuple[Count, ...]
    outputs: tuple[Count, ...]
    ops: Count


class PlanHeader(MadeHeader, frozen=True, kw_only=True):
    """The header of a plan."""

    digest: Text
    symbols: dict[str, SymbolRow]
    inputs: tuple[NamedRow, ...]
    outputs: tuple[NamedRow, ...]
    slots: tuple[TypeRow, ...]
    output_slots: tuple[Count, ...]
    carriers: tuple[Count, ...]
    defined: dict[str, Count]
    segments: tuple[SegmentRow, ...]


def program_in(
    container: Container, what: str, device: str | Device | torch.device | None, *, trusted: bool = False
) -> tuple[Program, Device]:
    """What makes the plan that a container holds. trusted: built code in it may run. Raises as `read_program` does."""
    place = check_made(container, "plan", device)
    header = container.header(PlanHeader)

    def plan_of(number: int, row: SegmentRow) -> CompiledPlan:
        return _loaded(number, row, container, header.graph, place, trusted=trusted)

    try:
        text = bytes(container.section("graph")).decode()
    except UnicodeDecodeError as error:
        raise PlanError(f"{what}: the header makes no sense ({error}); {AGAIN}") from error
    return program_of(header, what, text, plan_of), place


def program_of(
    header: PlanHeader, what: str, text: str, plan_of: Callable[[int, SegmentRow], CompiledPlan]
) -> Program:
    """A program from its header. plan_of: the plan of a segment. Raises PlanError for what contradicts itself."""
    try:
        facts = {name: symbol_of(name, *bounds) for name, bounds in header.symbols.items()}
        signature = Signature(
            {name: type_of(rest, facts) for name, *rest in header.inputs},
            {name: type_of(rest, facts) for name, *rest in header.outputs},
        )
        slots = tuple(type_of(slot, facts) for slot in header.slots)
    except CompilerError as error:
        raise PlanError(f"{what}: the header makes no sense ({error}); {AGAIN}") from error
    _check_flow(header, signature, slots, what)
    segments = tuple(
        Segment(row.engine, plan_of(number, row), row.inputs, row.outputs, row.knobs, row.ops)
        for number, row in enumerate(header.segments)
    )
    for number, segment in enumerate(segments):
        own = [*segment.plan.signature.inputs.values(), *segment.plan.signature.outputs.values()]
        if [str(of) for of in own] != [str(slots[slot]) for slot in (*segment.inputs, *segment.outputs)]:
            raise PlanError(
                f"{what}: segment {number}, engine {segment.engine}: the payload is of another signature"
            )
    return Program(
        header.graph, signature, segments, slots, header.output_slots, frozenset(header.carriers),
        header.defined, facts, PrintedGraph(text, header.digest),
    )  # fmt: skip


def _check_flow(header: PlanHeader, signature: Signature, slots: tuple[TensorType, ...], what: str) -> None:
    """Raise PlanError unless each slot is an input or filled once, before it is read, and of the type stated."""
    given, results = len(signature.inputs), tuple(signature.outputs.values())
    if (len(header.inputs), len(header.outputs)) != (given, len(results)):
        raise PlanError(f"{what}: two inputs, or two outputs, have one name; {AGAIN}")
    filled = set(range(given))
    for number, row in enumerate(header.segments):
        if lacking := sorted(set(row.inputs) - filled):
            raise PlanError(f"{what}: segment {number} reads slot {lacking[0]}, which nothing fills; {AGAIN}")
        for slot in row.outputs:
            if slot in filled or slot >= len(slots):
                raise PlanError(f"{what}: segment {number} fills slot {slot}, which it cannot; {AGAIN}")
            filled.add(slot)
    named = {*header.output_slots, *header.carriers, *header.defined.values()}
    if filled != set(range(len(slots))) or not named <= filled:
        raise PlanError(
            f"{what}: the segments fill {len(filled)} slots, not the {len(slots)} stated; {AGAIN}"
        )
    if slots[:given] != tuple(signature.inputs.values()):
        raise PlanError(f"{what}: the first slots are not of the inputs' types; {AGAIN}")
    if tuple(slots[slot] for slot in header.output_slots) != results:
        raise PlanError(f"{what}: the slots of the outputs are not of their types; {AGAIN}")
    if unknown := sorted(header.defined.keys() - header.symbols.keys()):
        raise PlanError(f"{what}: it defines the size {unknown[0][:100]!r}, which it does not state; {AGAIN}")


def check_made(container: Container, kind: str, device: str | Device | torch.device | None) -> Device:
    """The device to run on. Raises PlanError where a file is of another kind, device or version."""
    what, stated = container.what, container.header(Header).kind
    if stated != kind:
        raise PlanError(f"{what} is a {stated[:100]} file, not a {kind} file")
    header = container.header(MadeHeader)
    for name, version in versions().items():
        if header.versions.get(name) != version:
            made = header.versions.get(name)
            raise PlanError(f"{what} was made with {name} {made}, this is {version}; {AGAIN}")
    wanted = header.device
    try:
        place = find_device(wanted.type if device is None else device)
    except CompilerError as error:
        raise PlanError(f"{what} is for {wanted.type} ({wanted.arch}): {error}") from error
    if (place.type, place.arch) != (wanted.type, wanted.arch):
        made_for = Device(wanted.type, 0, wanted.arch)
        raise PlanError(f"{what} is for {made_for}, not for {place}; compile the graph for this device")
    return place


def _loaded(
    number: int, row: SegmentRow, container: Container, graph: str, device: Device, *, trusted: bool
) -> CompiledPlan:
    """The plan of a segment, by its engine."""
    name, what = row.engine, container.what
    payload, code = bytes(container.section(f"segment {number}")), container.sections.get(_native(number))
    if row.id != engine_id(name):
        raise PlanError(f"{what}: segment {number} is of engine {name!r}, whose id is another; {AGAIN}")
    try:
        engine = registry.engine(name)
    except EngineError as error:
        failed = "".join(
            f"; {failure.source}: {failure.reason}"
            for failure in registry.failures()
            if name in failure.source
        )
        known = ", ".join(engine.name for engine in registry.engines())
        raise PlanError(
            f"{what}: segment {number} is for engine {name[:100]!r}, which is not here{failed}; there are "
            f"{known}: install it, or {AGAIN}"
        ) from error
    try:
        if code is not None and hasattr(engine, "needs_native_code") and engine.needs_native_code():
            if not trusted:
                raise PlanError(
                    "nothing can be built here (no C++ compiler), and the native code that lies in the file is run "
                    "only if you trust whoever made it: load it with trust_native_code=True, or the file's SHA-256; "
                    "or install a compiler"
                )
            return with_native_code(engine, payload, bytes(code), device, graph)
        return loaded(engine, payload, device, graph)
    except PlanError as error:
        raise PlanError(f"{what}: segment {number}, engine {name}: {error}") from error
    except CompilerError as error:
        raise PlanError(f"{what}: {error}; {AGAIN}") from error
