"""Plans as bytes, and back: a `container` with the engines' payloads as sections. No pickle; every field is parsed.

A file holds graphs, weights and knobs, and no code: engines generate theirs from the graphs when they load them, and
names in them are data. So a plan from somebody else may be loaded: it computes what its graphs say, and no more.

A plan is for the device, the kernels_hub and the torch that it was made with; each is compared, and named, when it
is loaded.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import kernels_hub
from kernels_hub.compiler.container import (
    AGAIN,
    Bytes,
    Container,
    Count,
    Header,
    read_container,
    write_container,
)
from kernels_hub.compiler.devices import find_device
from kernels_hub.compiler.engines import registry
from kernels_hub.compiler.engines.engine import Device, Signature, engine_id
from kernels_hub.compiler.engines.guard import loaded
from kernels_hub.compiler.errors import CompilerError, DimError, PlanError
from kernels_hub.compiler.ir.dims import Expr
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.op import TensorType
from kernels_hub.compiler.ir.text import parse_dim
from kernels_hub.compiler.ir.types import dtype
from kernels_hub.compiler.plan import Plan
from kernels_hub.compiler.program import Program, Segment
from kernels_hub.parsing import Struct, Text

Source = str | os.PathLike[str] | bytes


def versions() -> dict[str, str]:
    """What a plan depends on."""
    return {"kernels_hub": kernels_hub.__version__, "torch": torch.__version__}


def write_plan(plan: Plan) -> bytes:
    """A plan as bytes. Raises EngineError where an engine cannot serialize its part."""
    program = plan.program
    header = {
        "kind": "plan",
        "graph": program.name,
        "digest": program.digest,
        "versions": versions(),
        "device": {"type": plan.device.type, "arch": plan.device.arch},
        "symbols": {name: _facts(one) for name, one in program.facts.items()},
        "inputs": [[name, *_type(of)] for name, of in program.signature.inputs.items()],
        "outputs": [[name, *_type(of)] for name, of in program.signature.outputs.items()],
        "slots": [_type(of) for of in program.slots],
        "output_slots": program.outputs,
        "carriers": sorted(program.carriers),
        "defined": dict(program.defined),
        "segments": [
            {
                "engine": one.engine, "id": engine_id(one.engine), "knobs": dict(one.knobs),
                "inputs": one.inputs, "outputs": one.outputs, "ops": one.ops,
            }
            for one in program.segments
        ],
    }  # fmt: skip
    payloads = {f"segment {place}": one.plan.serialize() for place, one in enumerate(program.segments)}
    return write_container(header, {"graph": program.text.encode(), **payloads})


def read_plan(source: Source, device: str | Device | torch.device | None = None) -> Plan:
    """The plan in a file, or in bytes. device: by default, the one of its type that is here.

    Raises PlanError for a file that is not there, damaged, or for another device or version, or whose engine is
    missing.
    """
    data, what = read_bytes(source)
    return plan_in(read_container(data, what), what, device)


def read_bytes(source: Source) -> tuple[bytes | memoryview, str]:
    """The bytes, and what to call them; a file is mapped. Raises PlanError where it cannot be read."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source), f"the plan ({len(source)} bytes)"
    try:
        with Path(source).open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return b"", str(source)
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


Dims = tuple[Bytes | Text, ...]
TypeRow = tuple[Text, Dims]
NamedRow = tuple[Text, Text, Dims]
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
    symbols: dict[str, tuple[Bytes, Bytes | None]]
    inputs: tuple[NamedRow, ...]
    outputs: tuple[NamedRow, ...]
    slots: tuple[TypeRow, ...]
    output_slots: tuple[Count, ...]
    carriers: tuple[Count, ...]
    defined: dict[str, Count]
    segments: tuple[SegmentRow, ...]


def plan_in(container: Container, what: str, device: str | Device | torch.device | None) -> Plan:
    """The plan that a container holds. Raises as `read_plan` does."""
    place = check_made(container, "plan", device)
    header = container.header(PlanHeader)
    try:
        facts = {name: _symbol(name, *bounds) for name, bounds in header.symbols.items()}
        signature = Signature(
            {name: _type_of(rest, facts) for name, *rest in header.inputs},
            {name: _type_of(rest, facts) for name, *rest in header.outputs},
        )
        slots = tuple(_type_of(one, facts) for one in header.slots)
        text = bytes(container.section("graph")).decode()
    except (CompilerError, UnicodeDecodeError) as error:
        raise PlanError(f"{what}: the header makes no sense ({error}); {AGAIN}") from error
    _check_flow(header, signature, slots, what)
    segments = tuple(
        _segment(number, row, container.section(f"segment {number}"), header.graph, what, place)
        for number, row in enumerate(header.segments)
    )
    for number, one in enumerate(segments):
        own = [*one.plan.signature.inputs.values(), *one.plan.signature.outputs.values()]
        if [str(of) for of in own] != [str(slots[slot]) for slot in (*one.inputs, *one.outputs)]:
            raise PlanError(
                f"{what}: segment {number}, engine {one.engine}: the payload is of another signature"
            )
    program = Program(
        header.graph, signature, segments, slots, header.output_slots, frozenset(header.carriers),
        header.defined, facts, header.digest, text,
    )  # fmt: skip
    return Plan(program, place)


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


def _segment(
    number: int, row: SegmentRow, payload: memoryview, graph: str, what: str, device: Device
) -> Segment:
    name = row.engine
    if row.id != engine_id(name):
        raise PlanError(f"{what}: segment {number} is of engine {name!r}, whose id is another; {AGAIN}")
    known = {engine.name: engine for engine in registry.engines()}
    if name not in known:
        failed = "".join(f"; {one.source}: {one.reason}" for one in registry.failures() if name in one.source)
        raise PlanError(
            f"{what}: segment {number} is for engine {name!r}, which is not here{failed}; there are "
            f"{', '.join(known)}: install it, or {AGAIN}"
        )
    try:
        plan = loaded(known[name], bytes(payload), device, graph)
    except PlanError as error:
        raise PlanError(f"{what}: segment {number}, engine {name}: {error}") from error
    except CompilerError as error:
        raise PlanError(f"{what}: {error}; {AGAIN}") from error
    return Segment(name, plan, row.inputs, row.outputs, row.knobs, row.ops)


def _type(of: TensorType) -> list[Any]:
    return [of.dtype.name, [str(dim) if isinstance(dim, Expr) else dim for dim in of.shape]]


def _type_of(row: Sequence[Any], facts: Mapping[str, Expr]) -> TensorType:
    name, dims = row

    def known(symbol: str) -> Expr:
        if symbol not in facts:
            raise DimError(f"the size {symbol[:100]!r} is not among the symbols")
        return facts[symbol]

    return TensorType(
        dtype(name), tuple(parse_dim(dim, known) if isinstance(dim, str) else dim for dim in dims)
    )


def _symbol(name: str, least: int, most: int | None) -> Expr:
    return Graph().symbol(name, least, most)


def _facts(one: Expr) -> tuple[int, int | None]:
    only = one.only_symbol
    assert only is not None
    return only.min, only.max
