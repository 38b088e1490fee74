"""Names of buffers by their role, and kernels that copy one."""

from __future__ import annotations

from kernels_hub.compiler.schedule.index import Loop
from kernels_hub.compiler.schedule.kernel import Buffer, Kernel, Load, Nest, Role, Store

NAMES = {
    Role.INPUT: "input",
    Role.PARAMETER: "weight",
    Role.CONSTANT: "constant",
    Role.OUTPUT: "output",
    Role.SCRATCH: "scratch",
    Role.PREPARED: "prepared",
}


def copy_kernel(source: Buffer, target: Buffer) -> Kernel:
    """A kernel that copies a buffer to another of the same shape."""
    loops = tuple(Loop(f"$c{axis}", dim) for axis, dim in enumerate(source.shape))
    index = tuple(loop.index for loop in loops)
    body = (Load("v0", source.dtype, source, source.place(index)), Store(target, target.place(index), "v0"))
    return Kernel(f"copy_{target.name}", (Nest(loops, (), body),))
