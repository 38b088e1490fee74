"""Run a schedule's C++ on NumPy arrays, with memory poisoned, and with room around every buffer that must stay."""

from __future__ import annotations

import numpy as np

from kernels_hub.compiler.codegen.cpp import generate
from kernels_hub.compiler.codegen.cpp_library import Library
from kernels_hub.compiler.codegen.toolchain import Isa
from kernels_hub.compiler.ir.dims import substitute
from kernels_hub.compiler.schedule.kernel import Role, Schedule

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
        return bool(
            (self.bytes[: self.start] == POISON).all()
            and (self.bytes[self.start + self.count :] == POISON).all()
        )


def run_schedule(
    schedule: Schedule,
    inputs: dict[str, np.ndarray],
    weights: dict[object, np.ndarray] | None = None,
    sizes: dict[str, int] | None = None,
    level: Isa | None = None,
    round_ops: bool = False,
) -> dict[str, np.ndarray]:
    """Outputs by name. weights: arrays of buffers that are neither inputs nor values with an array."""
    sizes = sizes or {}
    program = generate(schedule, round_ops=round_ops)
    library = Library.built(program, schedule.name, level)
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
    packed = [Memory(count) for count in library.packed_bytes(program)]
    addresses = [memory[one].address for one in program.buffers] + [one.address for one in packed]
    numbers = [sizes[name] for name in program.sizes]
    library.prepare(addresses, numbers)
    library.run(addresses, numbers)
    for one in (*memory.values(), *packed):
        assert one.is_intact(), "written beside a buffer"
    return {name: _read(memory[buffer], buffer, sizes) for name, buffer in schedule.outputs.items()}


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
