"""A nest without a root as C++: loops over rows by threads, the innermost by vector instructions.

A nest without inner loops is a loop nest whose last loop is vectorised, each statement as far outside as it can be.
For nests with inner loops see `cpp_reduce`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.codegen.cpp_function import Function
from kernels_hub.compiler.codegen.cpp_loops import estimate, is_empty, levels, simplified, turns
from kernels_hub.compiler.codegen.cpp_reduce import print_reduction
from kernels_hub.compiler.codegen.cpp_text import Lines, Names, Parameters
from kernels_hub.compiler.schedule.index import Loop
from kernels_hub.compiler.schedule.kernel import Nest, Reduce

MANY_ROWS = 256
"""Turns that threads share; loops beyond that stay loops."""


def print_nest(name: str, nest: Nest, lines: Lines, names: Names, *, round_ops: bool = False) -> Parameters:
    """Write the function `name` and what it calls; returns what it is given."""
    reduces = any(isinstance(one, Reduce) for one in nest.body)
    if not reduces:  # nothing to add up: inner loops are loops
        nest = Nest((*nest.outer, *nest.inner), (), nest.body)
    nest = simplified(nest)
    parameters = Parameters.of(nest)
    function = Function(name, nest, parameters, lines, names, round_ops=round_ops)
    if is_empty(nest.outer):
        with lines.block(f"static void {name}({', '.join(parameters.declared(names))})"):
            lines.add("// Nothing to do: a loop has no turns.")
    elif reduces:
        print_reduction(function)
    else:
        _print_pointwise(function)
    return parameters


def _print_pointwise(function: Function) -> None:
    nest, lines = function.nest, function.lines
    loops, body = nest.outer, nest.body
    at = levels(body, loops)
    shared = _shared(loops)
    own = turns(loops[shared:])

    def nested(level: int) -> None:
        if level == len(loops):
            return
        if level == len(loops) - 1:
            lines.add("#pragma omp simd")
        with lines.block(function.loop(loops[level])):
            function.body.emit_at(body, at, level + 1)
            nested(level + 1)

    def inside() -> None:
        if not isinstance(own, int):
            lines.add(f"if ({function.body.index(own)} <= 0) return;")
        function.body.emit_at(body, at, 0)
        if not loops:
            return
        if shared == len(loops):
            lines.add("#pragma omp simd")
        with lines.block(function.row_loop(loops[:shared])):
            function.row_variables(loops[:shared])
            for level in range(1, shared + 1):
                function.body.emit_at(body, at, level)
            nested(shared)

    function.rows(turns(loops[:shared]), own, inside)


def _shared(loops: Sequence[Loop]) -> int:
    """How many loops, from the outermost, threads share: enough turns, but not the last loop if there are more."""
    if len(loops) < 2:
        return len(loops)
    count = 1
    for place, one in enumerate(loops[:-1]):
        count *= max(1, estimate(one.extent))
        if count >= MANY_ROWS and all(isinstance(loop.extent, int) for loop in loops[: place + 1]):
            return place + 1
    return len(loops) - 1
