"""A schedule as text: a line a kernel, with its loops, what it reads and what it writes."""

from __future__ import annotations

from kernels_hub.compiler.schedule.kernel import Buffer, Kernel, Nest, Schedule


def print_schedule(schedule: Schedule) -> str:
    """The kernels in order; those that run once, on weights alone, first."""
    lines = [f"schedule {schedule.name}: {_count(len(schedule.kernels), 'kernel')} a call"]
    if schedule.prepare:
        lines[0] += f", {len(schedule.prepare)} once"
        lines += [_line(kernel, "once") for kernel in schedule.prepare]
    lines += [_line(kernel, "") for kernel in schedule.kernels]
    return "\n".join(lines)


def _line(kernel: Kernel, when: str) -> str:
    loops = "; ".join(_loops(nest) for nest in kernel.nests)
    reads, writes = (", ".join(map(_short, buffers)) for buffers in (kernel.reads(), kernel.writes()))
    return f"  {when + ' ' if when else ''}{kernel.name}: {loops}: {reads} -> {writes}"


def _loops(nest: Nest) -> str:
    text = "[" + ", ".join(str(loop.extent) for loop in nest.outer) + "]"
    if nest.inner:
        text += " x [" + ", ".join(str(loop.extent) for loop in nest.inner) + "]"
    return text if nest.root is None else f"{type(nest.root).__name__.lower()} {text}"


def _short(buffer: Buffer) -> str:
    return f"{buffer.name} {buffer.dtype}[{', '.join(map(str, buffer.shape))}]"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
