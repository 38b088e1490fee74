"""Shared parts of engines that run schedules: declines, and what a scheduled program is called with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kernels_hub.compiler.engines.calls import CallLayout, ScratchSpan
from kernels_hub.compiler.engines.engine import Decline, Signature
from kernels_hub.compiler.ir.dims import dim_symbols
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.schedule.kernel import Buffer, Schedule
from kernels_hub.compiler.schedule.memory import spans


def declined(found: Mapping[Value, str]) -> Decline:
    """A Decline about values, of which the first is named; `found` is not empty."""
    value, reason = next(iter(found.items()))
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return Decline(f"{value} ({value.op_name}): {reason}{more}", frozenset(value.id for value in found))


def values_refused(graph: Graph, why_not: Callable[[Node], str | None]) -> dict[Value, str]:
    """The results of nodes that `why_not` gives a reason for: why a target cannot express them."""
    return {
        value: reason
        for node in graph.live()
        if (reason := why_not(node)) is not None
        for value in node.results
    }


def untold(graph: Graph) -> dict[Value, str]:
    """Values with a size that no shape of an input tells."""
    known = dim_symbols(dim for value in graph.inputs.values() for dim in value.shape)
    reasons: dict[Value, str] = {}
    for node in graph.live():
        if node.op.name != "input" and (missing := node.symbols() - known):
            names = ", ".join(sorted(symbol.name for symbol in missing))
            reasons.update(dict.fromkeys(node.results, f"no input's shape tells the size {names}"))
    return reasons


def call_layout(
    schedule: Schedule, signature: Signature, buffers: Sequence[Buffer], symbols: Sequence[str]
) -> CallLayout:
    """What a scheduled program is called with. buffers: those of the program, told by their numbers there."""
    number_of = {buffer: index for index, buffer in enumerate(buffers)}
    return CallLayout(
        tuple(number_of[schedule.inputs[name]] for name in signature.inputs),
        tuple(number_of[schedule.outputs[name]] for name in signature.outputs),
        tuple(symbols),
        tuple(
            ScratchSpan(
                span.buffers[0].bytes,
                tuple(number_of[buffer] for buffer in span.buffers),
                span.first,
                span.last,
            )
            for span in spans(schedule)
        ),
    )
