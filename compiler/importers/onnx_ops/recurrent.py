# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""RNN, GRU, LSTM: the op "recurrent" with the usual activations; else a scan over time for each direction, written out
where the sequence is short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_ops.quantize import centred_operand, quantized_by_range
from kernels_hub.compiler.ir import types
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
    """One direction: its weights, and what one step does with (x_t, states…, weights…).

    together: what is computed of one sequence depends on the states of the others.
    """

    weights: tuple[Value, ...]
    step: Callable[[Value, Sequence[Value], Sequence[Value]], list[Value]]
    together: bool = False


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
        if lengths is None:
            new = cell.step(now, old, weights)
            return new, new[0]
        at = place.cast(weights[-1].dtype)
        goes_on = (at < weights[-1]).unsqueeze(1)
        seen = [(at <= weights[-1]).unsqueeze(1).select(old[0], 0.0), *old[1:]] if cell.together else old
        new = cell.step(now, seen, weights)
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


@dataclass(frozen=True)
class QuantizedWeights:
    """Weights of whole numbers, by which states are multiplied that are rounded at each step.

    gates (time, batch, ways * rows): what gates get of the input; weight (ways, rows, hidden) of int8; scales and zeros
    (ways, rows).
    """

    gates: Value
    weight: Value
    scales: Value
    zeros: Value


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


def _as_one(node: OnnxNode, cell: str, quantized: QuantizedWeights | None) -> list[Value]:
    """The op "recurrent": what gates get of the inputs is one product for all steps and directions."""
    graph, apply = node.graph, node.graph.apply
    x, r = in_time_order(node), node.input(2) if quantized is None else quantized.weight
    flipped = bool(node.attr("layout", 0))
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
    if quantized is None:
        w = node.input(1)
        gates = x @ w.reshape((ways * rows, w.shape[2])).transpose()
    else:
        gates = quantized.gates
        last += [quantized.scales, quantized.zeros]
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
        quantized=quantized is not None,
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


def in_time_order(node: OnnxNode) -> Value:
    """The input, (time, batch, input)."""
    return node.input(0).transpose(0, 1) if node.attr("layout", 0) else node.input(0)


_Make = Callable[[OnnxNode, list[Activation], tuple[Value, ...]], _Cell]


def _recurrent(
    node: OnnxNode,
    gates: int,
    names: Sequence[str],
    states: int,
    make: _Make,
    quantized: QuantizedWeights | None = None,
) -> list[Value]:
    plain = _plain_cell(node)
    if plain is not None:
        y, *ends = _as_one(node, plain, quantized)
    else:
        y, *ends = _as_scans(node, gates, names, states, make, quantized)
    lengths = node.optional(4)
    if lengths is None:
        return [y, *ends]
    batch = lengths.shape[0]  # of no step, the last states are 0, whatever the first ones are
    there = (lengths > 0).reshape((batch, 1, 1) if node.attr("layout", 0) else (batch, 1))
    return [y, *(there.select(end, 0.0) for end in ends)]


def _as_scans(
    node: OnnxNode,
    gates: int,
    names: Sequence[str],
    states: int,
    make: _Make,
    quantized: QuantizedWeights | None,
) -> list[Value]:
    x = in_time_order(node)
    if quantized is None:
        w, r = node.input(1), node.input(2)
    else:
        w, r = quantized.scales, quantized.weight.cast(x.dtype) - quantized.zeros.unsqueeze(2)
    hidden = r.shape[-1]
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
        weights = [one.slice(0, index, index + 1).squeeze(0) for one in (w, r)]
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
        taken = x
        if quantized is not None:
            taken = quantized.gates.slice(2, index * gates * hidden, (index + 1) * gates * hidden)
        shown, final = _direction(node, taken, first, node.optional(4), cell, backwards=backwards)
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


_Products = Callable[[Value, Value, Value, Value], Value]
"""(x of a step, h, w, r) -> what the gates get of both."""


def _lstm(node: OnnxNode, functions: list[Activation], weights: tuple[Value, ...]) -> _Cell:
    return _lstm_cell(
        node, functions, weights, lambda x, h, w, r: x @ w.transpose() + h @ r.transpose(), together=False
    )


def _quantized_lstm(node: OnnxNode, functions: list[Activation], weights: tuple[Value, ...]) -> _Cell:
    def products(x: Value, h: Value, scales: Value, r: Value) -> Value:
        whole, scale, zero = quantized_by_range(h)
        return x + centred_operand(whole, zero, rows=False).cast(x.dtype) @ r.transpose() * (scale * scales)

    return _lstm_cell(node, functions, weights, products, together=True)


def _lstm_cell(
    node: OnnxNode,
    functions: list[Activation],
    weights: tuple[Value, ...],
    products: _Products,
    *,
    together: bool,
) -> _Cell:
    coupled, peeping = bool(node.attr("input_forget", 0)), len(weights) > 3
    f, g, last = functions

    def step(x: Value, states: Sequence[Value], held: Sequence[Value]) -> list[Value]:
        w, r, bias = held[:3]
        h, c = states
        wb, rb = _split(bias, 2, 0)
        gates = products(x, h, w, r) + (wb + rb)
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

    return _Cell(weights, step, together)


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
    """LSTM with weights of 8 bits, and the gates of a weight as columns; input and states are rounded on the way.

    The input is rounded as a whole, to where the longest sequence ends; h at each step, of all sequences together: ONNX
    Runtime does the same with one thread, and parts large batches among several, each part by its own range.
    """
    x, lengths = in_time_order(node), node.optional(4)
    if lengths is not None:
        there = node.graph.iota(x.shape[0]).cast(lengths.dtype) < lengths.max()
        x = there.reshape((x.shape[0], 1, 1)).select(x, 0.0)
    whole, scale, zero = quantized_by_range(x)
    w, w_scales, w_zeros = _signed(node, 1, 8)
    r, r_scales, r_zeros = _signed(node, 2, 10)
    ways, rows, inputs = w.shape
    weight = w.cast(x.dtype) - w_zeros.unsqueeze(2)
    columns = weight.reshape((ways * rows, inputs)).transpose()
    gates = centred_operand(whole, zero, rows=False).cast(x.dtype) @ columns
    quantized = QuantizedWeights(gates * (scale * w_scales.reshape((ways * rows,))), r, r_scales, r_zeros)
    return _recurrent(node, 4, _LSTM, 2, _quantized_lstm, quantized)


def _signed(node: OnnxNode, place: int, scale: int) -> tuple[Value, Value, Value]:
    """(a weight in int8, (ways, rows, columns) as that of an LSTM; its scales and zero points (ways, rows), floats)."""
    given, factor, zero = node.input(place), node.input(scale), node.input(scale + 1)
    weight = given.transpose(1, 2)
    ways, rows, _ = weight.shape

    def spread(value: Value) -> Value:
        return value.reshape((ways, 1 if value.rank == 1 else rows)).broadcast_to((ways, rows))

    zeros = spread(zero.cast(factor.dtype))
    if weight.dtype is types.INT8:
        return weight, spread(factor), zeros
    return (weight.cast("int32") - 128).cast("int8"), spread(factor), zeros - 128.0
