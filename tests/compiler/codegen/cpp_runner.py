"""Run a schedule's C++, or its bytecode, on NumPy arrays, with memory poisoned, and with room around every buffer that must stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from kernels_hub.compiler.codegen.bytecode.program import generate as generate_bytecode
from kernels_hub.compiler.codegen.cpp.translation_unit import generate
from kernels_hub.compiler.engines.bytecode_library import interpreter
from kernels_hub.compiler.engines.cpp import loaded
from kernels_hub.compiler.errors import EvaluateError
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.ir.ops import OPS
from kernels_hub.compiler.ir.types import DType, dtype
from kernels_hub.compiler.runtime.bytecode import BytecodeProgram
from kernels_hub.compiler.runtime.native import numbers, pointers
from kernels_hub.compiler.runtime.toolchain import Isa
from kernels_hub.compiler.schedule.index import Loop, row_major
from kernels_hub.compiler.schedule.kernel import (
    Buffer,
    Compute,
    Kernel,
    Load,
    Nest,
    Role,
    Schedule,
    Statement,
    Store,
)

MARGIN = 64
POISON = 0xA5


class Memory:
    """An aligned buffer of bytes with a margin on either side."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.bytes = np.full(count + 2 * MARGIN + 64, POISON, np.uint8)
        self.start = -self.bytes.ctypes.data % 64 + MARGIN

    @property
    def address(self) -> int:
        return self.bytes.ctypes.data + self.start

    def write(self, array: np.ndarray) -> None:
        self.bytes[self.start : self.start + self.count] = (
            np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        )

    def read(self, dtype: np.dtype) -> np.ndarray:
        return self.bytes[self.start : self.start + self.count].view(dtype)

    def is_intact(self) -> bool:
        before, after = self.bytes[: self.start], self.bytes[self.start + self.count :]
        return bool((before == POISON).all() and (after == POISON).all())


def run_schedule(
    schedule: Schedule,
    inputs: Mapping[str, np.ndarray],
    weights: Mapping[Buffer, np.ndarray] | None = None,
    sizes: Mapping[str, int] | None = None,
    level: Isa | None = None,
    round_ops: bool = False,
    interpreted: bool = False,
) -> dict[str, np.ndarray]:
    """Outputs by name. weights: arrays of buffers that are neither inputs nor values with an array."""
    sizes = sizes or {}
    if interpreted:
        assert not round_ops
        program = generate_bytecode(schedule)
        native = BytecodeProgram(interpreter(), program.words)
    else:
        program = generate(schedule, round_ops=round_ops)
        native = loaded(program, schedule.name, level)
    given = {buffer: inputs[name] for name, buffer in schedule.inputs.items()}
    given.update(weights or {})
    memory = {}
    for buffer in program.buffers:
        memory[buffer] = Memory(substitute(buffer.bytes, sizes))
        array = given.get(buffer)
        if array is None and buffer.role in {Role.PARAMETER, Role.CONSTANT}:
            array = buffer.value.array
        if array is not None:
            memory[buffer].write(_laid_out(array, buffer, sizes))
    packed = [Memory(count) for count in native.packed_bytes(len(program.packed), len(program.sizes))]
    addresses = [memory[one].address for one in program.buffers] + [one.address for one in packed]
    given_sizes = [sizes[name] for name in program.sizes]
    assert not native.prepare(addresses, len(given_sizes))
    code = native.run(pointers(addresses), numbers(given_sizes))
    for one in (*memory.values(), *packed):
        assert one.is_intact(), "written beside a buffer"
    assert np.longdouble(3) / 2 == 1.5, "MMX registers are left in use, of which x87 makes NaN"
    if code:
        raise EvaluateError(program.messages[code - 1])
    return {name: _read(memory[buffer], buffer, sizes) for name, buffer in schedule.outputs.items()}


def weights_of(graph, schedule: Schedule) -> dict[Buffer, np.ndarray]:
    """The arrays of a graph's parameters, by the buffers of its schedule."""
    parameters = [one for one in schedule.buffers if one.role is Role.PARAMETER]
    return {one: np.asarray(graph.weight(one.value.attrs["name"])) for one in parameters}


class Build:
    """A schedule by hand: one kernel of one nest at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.buffers: dict[str, Buffer] = {}
        self.kernels: list[Kernel] = []

    def buffer(self, name: str, role: Role, kind: str | DType, *shape: Any, strides: Any = None) -> Buffer:
        strides = row_major(shape) if strides is None else strides
        self.buffers[name] = Buffer(name, role, dtype(kind), shape, strides)
        return self.buffers[name]

    def input(self, name: str, kind: str | DType, *shape: Any) -> Buffer:
        return self.buffer(name, Role.INPUT, kind, *shape)

    def output(self, name: str, kind: str | DType, *shape: Any, strides: Any = None) -> Buffer:
        return self.buffer(name, Role.OUTPUT, kind, *shape, strides=strides)

    def kernel(
        self, name: str, outer: Sequence[Loop], inner: Sequence[Loop], body: Iterable[Statement], anchor=None
    ):
        nest = Nest(tuple(outer), tuple(inner), tuple(body), anchor)
        self.kernels.append(Kernel(name, (nest,), (f"model.{name}",)))

    def schedule(self) -> Schedule:
        def of(role: Role) -> dict[str, Buffer]:
            return {name: one for name, one in self.buffers.items() if one.role is role}

        buffers = tuple(self.buffers.values())
        return Schedule(self.name, buffers, (), tuple(self.kernels), of(Role.INPUT), of(Role.OUTPUT))


def loops(**extents: Any) -> list[Loop]:
    """i=4, j=n: loops "$i" and "$j"."""
    return [Loop(f"${name}", extent) for name, extent in extents.items()]


def load(name: str, buffer: Buffer, *index: Any, guards: Any = ()) -> Load:
    return Load(name, buffer.dtype, buffer, buffer.place(tuple(index)), guards)


def compute(name: str, kind: str | DType, op: str, *args: str, origin: str = "", **attrs: Any) -> Compute:
    return Compute(name, dtype(kind), OPS[op], args, OPS[op].normalise(attrs), origin)


def store(buffer: Buffer, arg: str, *index: Any) -> Store:
    return Store(buffer, buffer.place(tuple(index)), arg)


def _strides(buffer, sizes):
    shape = [substitute(dim, sizes) for dim in buffer.shape]
    strides = [substitute(dim, sizes) * max(buffer.dtype.bits // 8, 1) for dim in buffer.strides]
    return shape, strides


def _laid_out(array, buffer, sizes):
    shape, strides = _strides(buffer, sizes)
    flat = np.zeros(int(np.prod(shape)), array.dtype)
    np.lib.stride_tricks.as_strided(flat, shape, strides)[...] = array
    return flat


def _read(memory, buffer, sizes):
    shape, strides = _strides(buffer, sizes)
    return np.array(np.lib.stride_tricks.as_strided(memory.read(buffer.dtype.numpy), shape, strides))
