"""Schedules graphs with loops and branches: stages, each a graph without these or one of them, put together.

A stage without is scheduled as any graph is; what a later one reads of it lies in memory. A loop is the schedule of its
body, as a `Repeat`: what the body reads of outside it finds where it lies, what it gets and gives in turns at a place
that changes with the turn. A branch is two schedules, as a `Branch`, which leave their results at the same places.
Weights and constants that a body is given are its own, and packed once.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kernels_hub.compiler.ir.dims import Dim, dim_symbols
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Shape, Trait
from kernels_hub.compiler.ir.transform import extract
from kernels_hub.compiler.ir.types import INT64, DType
from kernels_hub.compiler.schedule.buffers import NAMES, copy_kernel
from kernels_hub.compiler.schedule.choices import Choices
from kernels_hub.compiler.schedule.index import row_major
from kernels_hub.compiler.schedule.kernel import (
    Anchor,
    Buffer,
    Kernel,
    Load,
    Nest,
    Role,
    Schedule,
    Store,
    View,
)
from kernels_hub.compiler.schedule.regions import Branch, Repeat, State

LOOPS = frozenset({"loop", "scan"})
"""Ops that run a graph in turns."""
REGIONS = LOOPS | {"if"}
"""Ops that run other graphs, and that a schedule has kernels of kernels for."""

_T = typing.TypeVar("_T")
_RECORDS = (Kernel, Nest, View, Load, Store, State, *typing.get_args(Anchor))
"""Records of a schedule that hold buffers, directly or in others."""


def has_regions(graph: Graph) -> bool:
    """Whether a graph has loops or branches."""
    return any(node.op.name in REGIONS for node in graph.nodes)


def why_no_region(node: Node, refused: Callable[[Graph], Mapping[Value, str]]) -> str | None:
    """Why a loop or a branch has no schedule; None where it has one. refused: of a graph, as `inlining.refused`."""
    told = {symbol.name for symbol in node.symbols()}
    told |= {symbol.name for symbol in dim_symbols(dim for one in node.operands for dim in one.shape)}
    for body in (one for one in node.attrs.values() if isinstance(one, Graph)):
        for value, reason in refused(body).items():
            return f"inside of it, {value.op_name}: {reason}"
        used = {symbol.name for inner in body.live() for symbol in inner.symbols()}
        if missing := sorted(used - told):
            return f"nothing outside of it tells the size {', '.join(missing)}"
    return None


def schedule_stages(graph: Graph, choices: Choices, schedule: Callable[[Graph], Schedule]) -> Schedule:
    """The schedule of a graph with loops or branches. schedule: of its parts, and of what these run."""
    return _Stages(graph, choices, schedule).build()


class _Stages:
    """Odd stages are loops and branches, even ones the rest; what only depends on leaves is made where it is read."""

    def __init__(self, graph: Graph, choices: Choices, schedule: Callable[[Graph], Schedule]) -> None:
        self.graph, self.choices, self.schedule = graph, choices, schedule
        self.buffers: list[Buffer] = []
        self.counts = dict.fromkeys(Role, 0)
        self.homes: dict[Value, Buffer] = {}
        """Where values lie that one stage makes and another reads, inputs and outputs."""
        self.held: dict[tuple[object, ...], Buffer] = {}
        """Weights and constants."""
        self.prepare: list[Kernel] = []
        self.kernels: list[Kernel] = []
        nodes = graph.live()
        self.floating = _floating(nodes)
        self.stages = self._numbered(nodes)

    def build(self) -> Schedule:
        inputs = {name: self._home(value, Role.INPUT) for name, value in self.graph.inputs.items()}
        outputs: dict[str, Buffer] = {}
        for name, value in self.graph.outputs.items():
            first = value.node in self.stages and value not in self.homes
            outputs[name] = self._home(value, Role.OUTPUT) if first else self._like(value, Role.OUTPUT)
        members: dict[int, list[Node]] = {}
        for node, number in self.stages.items():
            members.setdefault(number, []).append(node)
        wanted = self._wanted()
        for number in range(max(wanted) + 1):
            nodes = members.get(number, [])
            if number % 2:
                self.kernels += [
                    self._loop(node) if node.op.name in LOOPS else self._branch(node) for node in nodes
                ]
            elif made := wanted.get(number):
                self.kernels += self._part(number, nodes, tuple(made))
        for name, value in self.graph.outputs.items():
            if self.homes[value] is not outputs[name]:
                self.kernels.append(copy_kernel(self.homes[value], outputs[name]))
        kernels = tuple(_renamed(kernel, number) for number, kernel in enumerate(self.kernels))
        return Schedule(
            self.graph.name,
            tuple(self.buffers),
            tuple(self.prepare),
            kernels,
            inputs,
            outputs,
            self.choices,
        )

    def _numbered(self, nodes: Sequence[Node]) -> dict[Node, int]:
        """The stage of each node that is computed once: after those of its operands."""
        stages: dict[Node, int] = {}
        for node in nodes:
            if node not in self.floating and node.op.name != "input":
                before = max((stages.get(operand.node, 0) for operand in node.operands), default=0)
                if node.op.name in REGIONS:
                    stages[node] = before + 1 + before % 2
                else:
                    stages[node] = before + before % 2
        return stages

    def _wanted(self) -> dict[int, dict[Value, None]]:
        """Stage -> values that it leaves in memory."""
        last = max(self.stages.values(), default=0)
        last += last % 2
        wanted: dict[int, dict[Value, None]] = {last: {}}

        def want(value: Value, floating_in: int) -> None:
            if value.op_name != "input":
                number = floating_in if value.node in self.floating else self.stages[value.node]
                wanted.setdefault(number, {})[value] = None

        for node, number in self.stages.items():
            for place, operand in enumerate(node.operands):
                if node.op.name in REGIONS:
                    if self._lies(node, place):
                        want(operand, number - 1)
                elif operand.node not in self.floating and self.stages.get(operand.node) != number:
                    want(operand, number)
        for value in self.graph.outputs.values():
            want(value, last)
        return wanted

    def _lies(self, loop: Node, place: int) -> bool:
        """Whether a loop or a branch finds an operand in memory."""
        if loop.op.name == "if":
            return place == 0 or loop.operands[place].node not in self.floating
        operand, first = loop.operands[place], _first_carried(loop)
        if place < first:
            return (_trips(operand) if place == 0 else operand.scalar or None) is None
        return place < first + _carried(loop) + _sequences(loop) or operand.node not in self.floating

    def _part(self, number: int, nodes: Sequence[Node], made: Sequence[Value]) -> list[Kernel]:
        """What a stage without loops computes."""
        members = set(nodes)
        read = {operand: None for node in nodes for operand in node.operands}
        outside = [one for one in read if one.node not in members and one.node not in self.floating]
        inputs = {f"in{place}": value for place, value in enumerate(outside)}
        outputs = {f"out{place}": value for place, value in enumerate(made)}
        part = self.schedule(extract(self.graph, inputs, outputs, f"{self.graph.name}_{number}"))
        given = {part.inputs[name]: self.homes[value] for name, value in inputs.items()}
        given |= {part.outputs[name]: self._home(value, Role.SCRATCH) for name, value in outputs.items()}
        return self._taken(part, given)[0]

    def _loop(self, loop: Node) -> Repeat:
        """A loop, as the kernels of its body."""
        operands, first, carried = loop.operands, _first_carried(loop), _carried(loop)
        body = self.schedule(self._body(loop))
        given = {}
        for place in range(first + carried + _sequences(loop), len(operands)):
            if self._lies(loop, place):
                given[body.inputs[f"in{place}"]] = self.homes[operands[place]]
        number = goes_on = None
        if "number" in body.inputs:
            number = given[body.inputs["number"]] = self._buffer(Role.SCRATCH, INT64, ())
        if "goes on" in body.outputs:
            flag = body.outputs["goes on"]
            goes_on = given[flag] = self._buffer(Role.SCRATCH, flag.dtype, ())
        windows = [one for one in (*body.inputs.values(), *body.outputs.values()) if one not in given]
        turn, moved = self._taken(body, given, windows)
        states = []
        for index in range(carried):
            start, result = operands[first + index], loop.results[index]
            between = self._buffer(Role.SCRATCH, start.dtype, (2, *start.shape))
            reads, writes = (moved[body.inputs[f"in{first + index}"]], moved[body.outputs[f"out{index}"]])
            states.append(State(self.homes[start], self._home(result, Role.SCRATCH), between, reads, writes))
        elements = [
            (moved[body.inputs[f"in{place}"]], self.homes[operands[place]])
            for place in range(first + carried, first + carried + _sequences(loop))
        ]
        stacks = [
            (moved[body.outputs[f"out{index}"]], self._home(loop.results[index], Role.SCRATCH))
            for index in range(carried, len(loop.results))
        ]
        trips: Dim | Buffer | None = elements[0][1].shape[0] if elements else _trips(operands[0])
        condition = self.homes[operands[1]] if first and self._lies(loop, 1) else None
        nests = tuple(nest for kernel in turn for nest in kernel.nests)
        return Repeat(
            f"k0_{loop.op.name}",
            nests,
            (loop.origin,),
            tuple(turn),
            self.homes[operands[0]] if trips is None else trips,
            condition,
            goes_on,
            number,
            tuple(states),
            tuple(elements),
            tuple(stacks),
            loop.attrs["count"] if first else (trips if elements else 0),
            "a loop ran another number of times than its stacked results are long",
        )

    def _branch(self, branch: Node) -> Branch:
        """Two graphs, of which a call runs one."""
        results = [self._home(one, Role.SCRATCH) for one in branch.results]
        parts = []
        for name in ("then", "otherwise"):
            part = self.schedule(self._alternative(branch, branch.attrs[name]))
            given = {part.inputs[f"in{place}"]: self.homes[one] for place, one in enumerate(branch.operands)
                     if f"in{place}" in part.inputs}  # fmt: skip
            given |= dict(zip(part.outputs.values(), results, strict=True))
            parts.append(tuple(self._taken(part, given)[0]))
        then, otherwise = parts
        nests = tuple(nest for kernel in (*then, *otherwise) for nest in kernel.nests)
        condition = self.homes[branch.operands[0]]
        return Branch("k0_if", nests, (branch.origin,), condition, then, otherwise)

    def _alternative(self, branch: Node, body: Graph) -> Graph:
        """One of the graphs of a branch, with the weights and constants that it is given as its own."""
        new = Graph(body.name)
        mapped: dict[Value, Value] = {}
        for place, value in enumerate(body.inputs.values(), 1):
            if self._lies(branch, place):
                mapped[value] = new.input(f"in{place}", value.shape, value.dtype)
            else:
                mapped[value] = _copied(new, branch.operands[place])
        _write(new, body, mapped)
        for index, value in enumerate(body.outputs.values()):
            new.output(f"out{index}", mapped[value])
        return new

    def _body(self, loop: Node) -> Graph:
        """The body with the weights and constants that it is given as its own; outputs "out0", …, and "goes on"."""
        body, first = loop.attrs["body"], _first_carried(loop)
        new = Graph(body.name)
        mapped: dict[Value, Value] = {}
        places: Iterable[tuple[int, Value]] = enumerate(body.inputs.values(), 1 if first else 0)
        captured = first + _carried(loop) + _sequences(loop)
        for place, value in places:
            if place < first:
                if value.users:
                    mapped[value] = new.input("number", value.shape, value.dtype)
            elif place >= captured and not self._lies(loop, place):
                mapped[value] = _copied(new, loop.operands[place])
            else:
                mapped[value] = new.input(f"in{place}", value.shape, value.dtype)
        _write(new, body, mapped)
        outputs = list(body.outputs.values())
        if first and (flag := outputs.pop(0)).scalar is not True:
            new.output("goes on", mapped[flag])
        for index, value in enumerate(outputs):
            new.output(f"out{index}", mapped[value])
        return new

    def _taken(
        self, part: Schedule, given: Mapping[Buffer, Buffer], windows: Iterable[Buffer] = ()
    ) -> tuple[list[Kernel], dict[Buffer, Buffer]]:
        """Kernels of a part on buffers of this schedule, and what has become of each buffer. given: of some.

        windows: buffers that are places in others.
        """
        moved = dict(given)
        apart = dict.fromkeys((*windows, *_windows(part.kernels)))
        for buffer in dict.fromkeys((*part.buffers, *apart)):
            if buffer not in moved:
                moved[buffer] = self._own(buffer, listed=buffer not in apart)
        self.prepare += [_with(kernel, moved) for kernel in part.prepare]
        return [_with(kernel, moved) for kernel in part.kernels], moved

    def _own(self, buffer: Buffer, *, listed: bool) -> Buffer:
        """A buffer of a part as one of this schedule; weights and constants that are the same are one."""
        key: tuple[object, ...] | None = None
        if buffer.role is Role.PARAMETER and buffer.value is not None:
            key = (buffer.value.attrs["name"],)
        elif buffer.role is Role.CONSTANT and buffer.value is not None:
            key = (id(buffer.value.array), buffer.strides)
        if key is not None and key in self.held:
            return self.held[key]
        made = self._buffer(
            buffer.role, buffer.dtype, buffer.shape, buffer.strides, buffer.value, listed=listed
        )
        if key is not None:
            self.held[key] = made
        return made

    def _home(self, value: Value, role: Role) -> Buffer:
        """Where a value lies that stages share."""
        known = self.homes.get(value)
        if known is None:
            known = self.homes[value] = self._like(value, role)
        return known

    def _like(self, value: Value, role: Role) -> Buffer:
        return self._buffer(role, value.dtype, value.shape, value=value)

    def _buffer(
        self,
        role: Role,
        dtype: DType,
        shape: Shape,
        strides: Shape | None = None,
        value: Value | None = None,
        *,
        listed: bool = True,
    ) -> Buffer:
        number = self.counts[role]
        self.counts[role] += 1
        made = Buffer(f"{NAMES[role]}{number}", role, dtype, shape, strides or row_major(shape), value)
        if listed:
            self.buffers.append(made)
        return made


def _first_carried(loop: Node) -> int:
    """Operands before those that a loop carries: its trips and its condition."""
    return 2 if loop.op.name == "loop" else 0


def _carried(loop: Node) -> int:
    return int(loop.attrs["carried" if loop.op.name == "loop" else "states"])


def _sequences(loop: Node) -> int:
    return 0 if loop.op.name == "loop" else int(loop.attrs["sequences"])


def _trips(operand: Value) -> Dim | None:
    """Trips that are known before a call, or from its sizes."""
    if operand.op_name == "size":
        return typing.cast("Dim", operand.attrs["value"])
    return None if operand.scalar is None else int(operand.scalar)


def _floating(nodes: Sequence[Node]) -> frozenset[Node]:
    """Leaves, and what depends on nothing else."""
    found: set[Node] = set()
    for node in nodes:
        if node.op.name in REGIONS or node.op.name in {"input", "random_bits"}:
            continue
        if Trait.LEAF in node.op.traits or (
            node.operands and all(operand.node in found for operand in node.operands)
        ):
            found.add(node)
    return frozenset(found)


def _write(graph: Graph, body: Graph, mapped: dict[Value, Value]) -> None:
    """Write a body's nodes into a graph. mapped: what its inputs are there, and afterwards all of its values."""
    for node in body.live():
        if node.op.name != "input":
            copied = graph.copy(node, tuple(mapped[operand] for operand in node.operands))
            mapped.update(zip(node.results, copied.results, strict=True))


def _copied(graph: Graph, value: Value) -> Value:
    """A value that depends on leaves alone, in another graph."""
    operands = tuple(_copied(graph, operand) for operand in value.node.operands)
    return graph.copy(value.node, operands).results[value.place]


def _windows(kernels: Iterable[Kernel]) -> Iterable[Buffer]:
    for kernel in kernels:
        if isinstance(kernel, Repeat):
            yield from kernel.windows()
            yield from _windows(kernel.turn)
        elif isinstance(kernel, Branch):
            yield from _windows((*kernel.then, *kernel.otherwise))


def _with(record: _T, moved: Mapping[Buffer, Buffer]) -> _T:
    """A record of a schedule, or a tuple of such, with other buffers."""
    made: Any = record
    if isinstance(record, Buffer):
        made = moved.get(record, record)
    elif isinstance(record, tuple):
        made = tuple(_with(one, moved) for one in record)
    elif isinstance(record, _RECORDS):
        parts = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
        after = {name: _with(part, moved) for name, part in parts.items()}
        made = dataclasses.replace(
            record, **{name: part for name, part in after.items() if part is not parts[name]}
        )
    return typing.cast("_T", made)


def _renamed(kernel: Kernel, number: int) -> Kernel:
    """A kernel with a number that no other stage's has."""
    return dataclasses.replace(kernel, name=re.sub(r"^k\d+(?=_)", f"k{number}", kernel.name))
