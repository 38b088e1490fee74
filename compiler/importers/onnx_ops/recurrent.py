# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""RNN, GRU, LSTM: the op "recurrent" with the usual activations; else a scan over time for each direction, written out
where the sequence is short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.ir.graph import Graph, Value

_UNROLLED = 8
"""Steps of the longest sequence that is written out."""

Activation = Callable[[Value], Value]


def _cell_activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    known: dict[str, Activation] = {
        "relu": lambda x: x.relu(),
        "tanh": lambda x: x.tanh(),
        "sigmoid": lambda x: x.sigmoid(),
        "affine": lambda x: x * _or(alpha, 1.0) + _or(beta, 0.0),
        "leakyrelu": lambda x: (x < 0.0).select(x * _or(alpha, 0.01), x),
        "thresholdedrelu": lambda x: (x > _or(alpha, 1.0)).select(x, 0.0),
        "scaledtanh": lambda x: (x * _or(beta, 1.0)).tanh() * _or(alpha, 1.0),
        "hardsigmoid": lambda x: (x * _or(alpha, 0.2) + _or(beta, 0.5)).clamp(0.0, 1.0),
        "elu": lambda x: (x < 0.0).select((x.exp() - 1.0) * _or(alpha, 1.0), x),
        "softsign": lambda x: x / (x.unary("abs") + 1.0),
        "softplus": lambda x: x.maximum(0.0) + (-x.unary("abs")).exp().unary("log1p"),
    }
    return known[name.lower()]


def _or(number: float | None, default: float) -> float:
    return default if number is None else number


@dataclass(frozen=True)
class _Cell:
    """One direction: its weights, and what one step does with (x_t, states…, weights…)."""

    weights: tuple[Value, ...]
    step: Callable[[Value, Sequence[Value], Sequence[Value]], list[Value]]


def _direction(
    node: OnnxNode, x: Value, states: Sequence[Value], lengths: Value | None, cell: _Cell, *, backwards: bool
) -> tuple[Value, list[Value]]:
    """(the first state after every step, the last states); x (time, batch, input), states (batch, hidden)."""
    if lengths is not None and backwards:
        x = _reversed(x, lengths)
    elif backwards:
        x = x.flip(0)
    time = x.shape[0]
    at = node.graph.iota(time)
    captures = (*cell.weights, *(() if lengths is None else (lengths,)))

    def step(
        place: Value, now: Value, old: Sequence[Value], weights: Sequence[Value]
    ) -> tuple[list[Value], Value]:
        new = cell.step(now, old, weights)
        if lengths is None:
            return new, new[0]
        goes_on = (place.cast(weights[-1].dtype) < weights[-1]).unsqueeze(1)
        return [goes_on.select(a, b) for a, b in zip(new, old, strict=True)], goes_on.select(new[0], 0.0)

    if isinstance(time, int) and time <= _UNROLLED:
        seen: list[Value] = []
        current: list[Value] = list(states)
        for trip in range(time):
            current, shown = step(
                node.constant(trip), x.slice(0, trip, trip + 1).squeeze(0), current, captures
            )
            seen.append(shown.unsqueeze(0))
        every = (
            node.graph.apply("concat", *seen, axis=0)
            if seen
            else node.graph.full((0, *states[0].shape), 0, x.dtype)
        )
        last = current
    else:
        body = Graph(f"{node.proto.op_type} step")
        inner = [body.input(f"state{i}", state.shape, state.dtype) for i, state in enumerate(states)]
        place, now = body.input("place", (), at.dtype), body.input("now", x.shape[1:], x.dtype)
        held = [body.input(f"weight{i}", capture.shape, capture.dtype) for i, capture in enumerate(captures)]
        new, shown = step(place, now, inner, held)
        for i, one in enumerate((*new, shown)):
            body.output(str(i), one)
        results = node.graph.add(
            "scan", (*states, at, x, *captures), {"body": body, "states": len(states), "sequences": 2}
        ).results
        last, every = list(results[:-1]), results[-1]
    if backwards:
        every = every.flip(0) if lengths is None else _reversed(every, lengths)
    return every, last


def _reversed(x: Value, lengths: Value) -> Value:
    """Each of the batch (dim 1) backwards within its length along dim 0."""
    size = x.shape[0]
    at = x.graph.iota(size).reshape((size, 1))
    long = lengths.cast("int64").reshape((1, lengths.shape[0]))
    places = (at < long).select(long - 1 - at, at)
    return x.gather_elements(places.reshape((*places.shape, *[1] * (x.rank - 2))).broadcast_to(x.shape), 0)


_PLAIN: dict[str, dict[tuple[str, ...], str]] = {
    "LSTM": {("sigmoid", "tanh", "tanh"): "lstm"},
    "GRU": {("sigmoid", "tanh"): "gru"},
    "RNN": {("tanh",): "tanh", ("relu",): "relu"},
}
"""Activations of a direction -> the cell of the op "recurrent" that has them."""


def _plain_cell(node: OnnxNode) -> str | None:
    """The cell of the op "recurrent" that a node is; None where it has activations or options of its own."""
    known = _PLAIN[node.proto.op_type.removeprefix("DynamicQuantize")]
    ways = 2 if node.attr("direction", "forward") == "bidirectional" else 1
    given = tuple(name.lower() for name in node.attr("activations", []))
    one = given[: len(given) // ways] or next(iter(known))
    peeps = node.proto.op_type.endswith("LSTM") and node.optional(7) is not None
    if (
        given not in ((), one * ways)
        or one not in known
        or peeps
        or node.attr("clip")
        or node.attr("input_forget", 0)
        or not node.input(0).dtype.is_float
    ):
        return None
    return "gru_after" if known[one] == "gru" and node.attr("linear_before_reset", 0) else known[one]


def _as_one(node: OnnxNode, cell: str) -> list[Value]:
    """The op "recurrent": what gates get of the inputs is one product for all steps and directions."""
    graph, apply = node.graph, node.graph.apply
    x, w, r = node.input(0), node.input(1), node.input(2)
    flipped = bool(node.attr("layout", 0))
    if flipped:
        x = x.transpose(0, 1)
    ways, rows, hidden = r.shape
    batch = x.shape[1]
    bias = node.optional(3)
    lengths = node.optional(4)
    added: Value | None = None
    last: list[Value] = []
    if bias is not None:
        own, recurrent = _split(bias, 2, 1)
        if cell == "gru_after":  # the candidate's part stays with what it gets of h
            last.append(recurrent.slice(1, 2 * hidden, rows))
            zeros = graph.full((ways, hidden), 0, x.dtype)
            recurrent = apply("concat", recurrent.slice(1, 0, 2 * hidden), zeros, axis=1)
        added = (own + recurrent).reshape((ways * rows,))
    elif cell == "gru_after":
        last.append(graph.full((ways, hidden), 0, x.dtype))
    gates = x @ w.reshape((ways * rows, w.shape[2])).transpose()
    states = []
    for position in range(2 if cell == "lstm" else 1):
        given = node.optional(5 + position)
        if given is None:
            states.append(graph.full((ways, batch, hidden), 0, x.dtype))
        else:
            states.append(given.transpose(0, 1) if flipped else given)
    if lengths is not None:
        last.append(lengths.cast("int64"))
    y = apply(
        "recurrent", gates if added is None else gates + added, r, *states, *last,
        cell=cell, reverse=node.attr("direction", "forward") == "reverse", lengths=lengths is not None,
    )  # fmt: skip
    time = x.shape[0]
    shown = y.slice(0, 0, time).slice(1, 0, 1).squeeze(1)  # (time, ways, batch, hidden)
    ends = [
        y.slice(0, time, time + 1).squeeze(0).slice(0, index, index + 1).squeeze(0)
        for index in range(len(states))
    ]
    if flipped:
        return [shown.permute(2, 0, 1, 3), *(end.transpose(0, 1) for end in ends)]
    return [shown, *ends]


_Make = Callable[[OnnxNode, list[Activation], tuple[Value, ...]], _Cell]


def _recurrent(node: OnnxNode, gates: int, names: Sequence[str], states: int, make: _Make) -> list[Value]:
    if (plain := _plain_cell(node)) is not None:
        return _as_one(node, plain)
    x, hidden = node.input(0), node.attr("hidden_size") or node.input(2).shape[-1]
    if node.attr("layout", 0):
        x = x.transpose(0, 1)
    batch = x.shape[1]
    direction = node.attr("direction", "forward")
    ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    functions = node.attr("activations", list(names) * len(ways))
    alphas, betas = list(node.attr("activation_alpha", [])), list(node.attr("activation_beta", []))
    every, last = [], []
    for index, backwards in enumerate(ways):
        chosen = functions[index * len(names) : (index + 1) * len(names)]
        used = [
            _cell_activation(name, *(numbers[index * len(names) + i] if index * len(names) + i < len(numbers) else None
                                for numbers in (alphas, betas)))
            for i, name in enumerate(chosen)
        ]  # fmt: skip
        weights = [
            node.input(1).slice(0, index, index + 1).squeeze(0),
            node.input(2).slice(0, index, index + 1).squeeze(0),
        ]
        bias = node.optional(3)
        flat = (
            node.graph.full((2 * gates * hidden,), 0, x.dtype)
            if bias is None
            else bias.slice(0, index, index + 1).squeeze(0)
        )
        first = []
        for which in range(states):
            given = node.optional(5 + which)
            if given is None:
                first.append(node.graph.full((batch, hidden), 0, x.dtype))
            else:
                given = given.transpose(0, 1) if node.attr("layout", 0) else given
                first.append(given.slice(0, index, index + 1).squeeze(0))
        peephole = node.optional(7) if states == 2 else None
        more = () if peephole is None else (peephole.slice(0, index, index + 1).squeeze(0),)
        cell = make(node, used, (*weights, flat, *more))
        shown, final = _direction(node, x, first, node.optional(4), cell, backwards=backwards)
        every.append(shown.unsqueeze(1))
        last.append(final)
    join = node.graph.apply
    y = every[0] if len(every) == 1 else join("concat", *every, axis=1)
    finals = [[one[which].unsqueeze(0) for one in last] for which in range(states)]
    ends = [one[0] if len(one) == 1 else join("concat", *one, axis=0) for one in finals]
    if node.attr("layout", 0):
        y, ends = y.permute(2, 0, 1, 3), [end.transpose(0, 1) for end in ends]
    return [y, *ends]


def _clipped(node: OnnxNode, x: Value) -> Value:
    limit = node.attr("clip")
    return x if not limit else x.clamp(-limit, limit)


def _split(value: Value, count: int, axis: int) -> list[Value]:
    each = value.shape[axis] // count
    return value.split([each] * count, axis)


def _rnn(node: OnnxNode, functions: list[Activation], weights: tuple[Value, ...]) -> _Cell:
    def step(x: Value, states: Sequence[Value], held: Sequence[Value]) -> list[Value]:
        w, r, bias = held[:3]
        wb, rb = _split(bias, 2, 0)
        return [functions[0](_clipped(node, x @ w.transpose() + states[0] @ r.transpose() + (wb + rb)))]

    return _Cell(weights, step)


def _gru(node: OnnxNode, functions: list[Activation], weights: tuple[Value, ...]) -> _Cell:
    after = bool(node.attr("linear_before_reset", 0))

    def step(x: Value, states: Sequence[Value], held: Sequence[Value]) -> list[Value]:
        w, r, bias = held[:3]
        (h,) = states
        wz, wr, wh = _split(x @ w.transpose(), 3, 1)
        rz, rr, rh = _split(r, 3, 0)
        bz, br, bh, cz, cr, ch = _split(bias, 6, 0)
        z = functions[0](_clipped(node, wz + h @ rz.transpose() + (bz + cz)))
        reset = functions[0](_clipped(node, wr + h @ rr.transpose() + (br + cr)))
        hidden = reset * (h @ rh.transpose() + ch) if after else (reset * h) @ rh.transpose() + ch
        new = functions[1](_clipped(node, wh + hidden + bh))
        return [(1.0 - z) * new + z * h]

    return _Cell(weights, step)


def _lstm(node: OnnxNode, functions: list[Activation], weights: tuple[Value, ...]) -> _Cell:
    coupled, peeping = bool(node.attr("input_forget", 0)), len(weights) > 3
    f, g, last = functions

    def step(x: Value, states: Sequence[Value], held: Sequence[Value]) -> list[Value]:
        w, r, bias = held[:3]
        h, c = states
        wb, rb = _split(bias, 2, 0)
        gates = x @ w.transpose() + h @ r.transpose() + (wb + rb)
        i, o, forget, new = _split(gates, 4, 1)
        peep = _split(held[3], 3, 0) if peeping else None
        if peep is not None:
            i, forget = i + peep[0] * c, forget + peep[2] * c
        i = f(_clipped(node, i))
        forget = 1.0 - i if coupled else f(_clipped(node, forget))
        cell = forget * c + i * g(_clipped(node, new))
        if peep is not None:
            o = o + peep[1] * cell
        return [f(_clipped(node, o)) * last(cell), cell]

    return _Cell(weights, step)


_LSTM = ("Sigmoid", "Tanh", "Tanh")


@onnx_op("RNN", since=1)
def rnn(node: OnnxNode) -> list[Value]:
    return _recurrent(node, 1, ["Tanh"], 1, _rnn)


@onnx_op("GRU", since=1)
def gru(node: OnnxNode) -> list[Value]:
    return _recurrent(node, 3, ["Sigmoid", "Tanh"], 1, _gru)


@onnx_op("LSTM", since=1)
def lstm(node: OnnxNode) -> list[Value]:
    return _recurrent(node, 4, _LSTM, 2, _lstm)


@onnx_op("DynamicQuantizeLSTM", since=1, domain="com.microsoft")
def dynamic_quantize_lstm(node: OnnxNode) -> list[Value]:
    """LSTM with weights of 8 bits, and the gates of a weight as columns; inputs and states stay as they are.

    ONNX Runtime rounds these to 8 bits at each step as well, so that its results are the coarser ones.
    """
    for place, scale in ((1, 8), (2, 10)):
        weight, factor, zero = node.input(place), node.input(scale), node.input(scale + 1)
        ways, rows, columns = weight.shape
        across = (ways, 1, columns if factor.type.size != ways else 1)
        real = (
            weight.cast("int32") - zero.cast("int32").reshape(across).broadcast_to((ways, rows, columns))
        ).cast(factor.dtype)
        node.operands[place] = (real * factor.reshape(across)).transpose(1, 2)
    del node.operands[8:]
    return _recurrent(node, 4, _LSTM, 2, _lstm)
