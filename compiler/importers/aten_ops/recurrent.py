# ruff: noqa: D103
"""nn.LSTM, nn.GRU and nn.RNN, as `recurrent_calls` has them in a trace: the op "recurrent" for each layer."""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.importers.aten_ops.call import AtenCall, aten
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.ops.recurrent import GATES

_CELLS = {"lstm": "lstm", "gru": "gru_after", "rnn_tanh": "tanh", "rnn_relu": "relu"}
_ORDERS = {"lstm": (0, 3, 1, 2), "gru_after": (1, 0, 2)}
"""Cell -> which of PyTorch's gates the op "recurrent" has first, and so on: i f g o there, r z n of a GRU."""


@aten("kernels_hub_import.recurrent.default")
def recurrent(
    call: AtenCall, kind: str, x: Value, states: Sequence[Value], weights: Sequence[Value], has_bias: bool,
    layers: int, both_ways: bool, batch_first: bool,
) -> tuple[Value, ...]:  # fmt: skip
    cell = _CELLS[kind]
    ways, each = 1 + both_ways, 4 if has_bias else 2
    if batch_first:
        x = x.transpose(0, 1)
    ends: list[list[Value]] = [[] for _ in states]
    for layer in range(layers):
        own = [weights[each * (ways * layer + way) :][:each] for way in range(ways)]
        first = [state.slice(0, ways * layer, ways * (layer + 1)) for state in states]
        x, last = _layer(call, cell, x, first, own)
        for found, end in zip(ends, last, strict=True):
            found.append(end)
    joined = [one[0] if len(one) == 1 else call.graph.apply("concat", *one, axis=0) for one in ends]
    return (x.transpose(0, 1) if batch_first else x, *joined)


def _layer(
    call: AtenCall, cell: str, x: Value, states: Sequence[Value], weights: Sequence[Sequence[Value]]
) -> tuple[Value, list[Value]]:
    """The states of every step, those of both ways beside each other; the last ones, (ways, batch, hidden) each.

    x (time, batch, input). weights: by way, of the input and of the state, then their biases where there are some.
    """
    graph = call.graph
    hidden = weights[0][1].shape[1]
    rows = GATES[cell] * hidden

    def ordered(weight: Value) -> Value:
        order = _ORDERS.get(cell)
        if order is None:
            return weight
        parts = (weight.slice(0, gate * hidden, (gate + 1) * hidden) for gate in order)
        return graph.apply("concat", *parts, axis=0)

    def joined(values: Sequence[Value]) -> Value:
        return values[0] if len(values) == 1 else graph.apply("concat", *values, axis=0)

    gates = x @ joined([ordered(one[0]) for one in weights]).transpose(0, 1)
    after: list[Value] = []
    if len(weights[0]) > 2:
        of_input, of_state = ([ordered(one[place]) for one in weights] for place in (2, 3))
        if cell == "gru_after":  # the candidate's part stays with what it gets of h
            after = [joined([one.slice(0, 2 * hidden, rows).reshape((1, hidden)) for one in of_state])]
            zeros = graph.full((hidden,), 0, x.dtype)
            of_state = [graph.apply("concat", one.slice(0, 0, 2 * hidden), zeros, axis=0) for one in of_state]
        gates = gates + joined([a + b for a, b in zip(of_input, of_state, strict=True)])
    elif cell == "gru_after":
        after = [graph.full((len(weights), hidden), 0, x.dtype)]
    recurrent = joined([ordered(one[1]).reshape((1, rows, hidden)) for one in weights])
    found = graph.apply(
        "recurrent",
        gates,
        recurrent,
        *states,
        *after,
        cell=cell,
        reverse=False,
        lengths=False,
        quantized=False,
    )  # (time + 1, states, ways, batch, hidden)
    time, batch = x.shape[0], x.shape[1]
    steps = found.slice(0, 0, time).slice(1, 0, 1).squeeze(1).permute(0, 2, 1, 3)
    last = found.slice(0, time, time + 1).squeeze(0)
    ends = [last.slice(0, place, place + 1).squeeze(0) for place in range(len(states))]
    return steps.reshape((time, batch, len(weights) * hidden)), ends
