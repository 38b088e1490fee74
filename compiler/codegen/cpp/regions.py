"""Loops and branches as C++: functions that call those of other kernels.

A loop calls the kernels of its body in each turn, in order; what it carries moves between two places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.cpp.scalar import Cpp, storage_type
from kernels_hub.compiler.codegen.cpp.text import Parameters
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.ir.dims import Dim, dim_symbols, product
from kernels_hub.compiler.schedule.index import Ranges
from kernels_hub.compiler.schedule.kernel import Buffer
from kernels_hub.compiler.schedule.regions import Branch, Repeat
from kernels_hub.escaping import CommentText


@dataclass(frozen=True)
class Part:
    """Calls of the functions of some kernels, with where these come from, and what they are given."""

    calls: Sequence[tuple[str, CommentText]]
    parameters: Parameters

    def add_to(self, lines: Lines) -> None:
        """Write the calls."""
        for text, origin in self.calls:
            lines.add(text, origin)


def print_repeat(name: str, repeat: Repeat, turn: Part, lines: Lines, names: Names) -> Parameters:
    """Write the function of a loop."""
    index = Cpp(Ranges(())).index

    def size(buffer: Buffer) -> str:
        return f"({index(product(buffer.shape))})"

    parameters = _parameters(repeat, turn.parameters)
    with lines.block(f"static void {name}({', '.join(parameters.declared(names))})"):
        at = names.buffers
        for state in repeat.states:
            kind = storage_type(state.reads.dtype)
            lines.add(f"const {kind}* {at[state.reads]} = {at[state.first]};")
        limit = f"*{at[repeat.trips]}" if isinstance(repeat.trips, Buffer) else index(repeat.trips)
        condition = "true" if repeat.condition is None else f"*{at[repeat.condition]}"
        lines.add(f"const int64_t trips = {limit};")
        lines.add("int64_t turn = 0;")
        with lines.block(f"for (bool goes_on = {condition}; goes_on && turn < trips; ++turn)"):
            if repeat.stacks and not _is_exact(repeat):
                with lines.block(f"if (turn == {index(repeat.count)})"):
                    lines.add("turn = -1;")
                    lines.add("break;")
            if repeat.number is not None:
                lines.add(f"*{at[repeat.number]} = turn;")
            for window, whole in repeat.elements:
                kind = storage_type(window.dtype)
                lines.add(f"const {kind}* const {at[window]} = {at[whole]} + turn * {size(window)};")
            for window, whole in repeat.stacks:
                kind = storage_type(window.dtype)
                lines.add(f"{kind}* const {at[window]} = {at[whole]} + turn * {size(window)};")
            for state in repeat.states:
                kind = storage_type(state.writes.dtype)
                lines.add(
                    f"{kind}* const {at[state.writes]} = {at[state.between]} + turn % 2 * {size(state.writes)};"
                )
            turn.add_to(lines)
            for state in repeat.states:
                lines.add(f"{at[state.reads]} = {at[state.writes]};")
            if repeat.goes_on is not None:
                lines.add(f"goes_on = *{at[repeat.goes_on]};")
        if repeat.stacks and not _is_exact(repeat):
            lines.add(f"if (turn != {index(repeat.count)}) failure = {names.code(repeat.message)};")
        for state in repeat.states:
            bytes_of = f"{size(state.last)} * sizeof({storage_type(state.last.dtype)})"
            lines.add(f"__builtin_memcpy({at[state.last]}, {at[state.reads]}, {bytes_of});")
    return parameters


def _is_exact(repeat: Repeat) -> bool:
    """Whether the number of turns is certainly that of the elements of stacks."""
    return repeat.condition is None and repeat.goes_on is None and repeat.trips == repeat.count


def _parameters(repeat: Repeat, turn: Parameters) -> Parameters:
    """What the function of a loop is given: what those of its turns are, but for places that change."""
    windows = repeat.windows()
    found = Parameters()
    found.merge(turn)
    given = [repeat.trips, repeat.condition, *(state.first for state in repeat.states)]
    read = [one for one in given if isinstance(one, Buffer)] + [whole for _, whole in repeat.elements]
    found.reads = {one: None for one in (*turn.reads, *read) if one not in windows}
    found.writes = {one: None for one in {**turn.writes, **repeat.writes()} if one not in windows}
    found.fails |= bool(repeat.stacks) and not _is_exact(repeat)
    dims: list[Dim] = [repeat.count]
    if not isinstance(repeat.trips, Buffer):
        dims.append(repeat.trips)
    dims += [dim for one in (*windows, *(state.last for state in repeat.states)) for dim in one.shape]
    found.sizes.update(dict.fromkeys(sorted(symbol.name for symbol in dim_symbols(dims))))
    return found


def print_branch(
    name: str, branch: Branch, then: Part, otherwise: Part, lines: Lines, names: Names
) -> Parameters:
    """Write the function of two branches."""
    assert branch.condition is not None
    parameters = Parameters()
    parameters.reads[branch.condition] = None
    for part in (then, otherwise):
        parameters.merge(part.parameters)
    with lines.block(f"static void {name}({', '.join(parameters.declared(names))})"):
        with lines.block(f"if (*{names.buffers[branch.condition]})"):
            then.add_to(lines)
            lines.add("return;")
        otherwise.add_to(lines)
    return parameters
