"""Recurrent cells over a sequence: LSTM, GRU and RNN with their usual activations, as one op."""

from __future__ import annotations

import numpy as np

from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.ir.flops import recurrent_flops
from kernels_hub.compiler.ir.op import (
    BOOL,
    Attr,
    Attrs,
    Op,
    Operands,
    ReferenceCall,
    Shape,
    one_of,
    require_equal,
    require_integer,
    require_rank,
)
from kernels_hub.compiler.ir.types import INT8, Array, DType

GATES = {"lstm": 4, "gru": 3, "gru_after": 3, "tanh": 1, "relu": 1}
"""Cell -> rows of its weight for each hidden unit."""


def states(cell: str) -> int:
    """How many states a cell has: h, and c of an LSTM."""
    return 2 if cell == "lstm" else 1


def _dtype(operands: Operands, attrs: Attrs) -> DType:
    floats = list(operands[:-1] if attrs["lengths"] else operands)
    if attrs["quantized"] and len(floats) > 1 and (weight := floats.pop(1)).dtype is not INT8:
        raise TypeRuleError(f"a quantized cell has a weight of int8, not {weight.dtype}")
    first = floats[0].dtype
    if not first.is_float or any(one.dtype is not first for one in floats):
        shown = ", ".join(str(one.dtype) for one in floats)
        raise TypeRuleError(
            f"gates, weights, states, bias, scales and zeros are floats of one dtype, not {shown}"
        )
    return first


def _shape(operands: Operands, attrs: Attrs) -> Shape:
    cell = attrs["cell"]
    wanted = 2 + states(cell) + (cell == "gru_after") + 2 * attrs["quantized"] + attrs["lengths"]
    if len(operands) != wanted:
        raise TypeRuleError(f"{cell} takes {wanted} operands, got {len(operands)}")
    if attrs["quantized"] and cell != "lstm":
        raise TypeRuleError(f"only the states of an lstm are quantized, not those of {cell}")
    x, weight, *more = operands
    require_rank(x, 3, "the gates' inputs (operand 0)")
    require_rank(weight, 3, "the weight (operand 1)")
    directions, rows, hidden = weight.shape
    if directions not in (1, 2) or (attrs["reverse"] and directions != 1):
        raise TypeRuleError(f"there are one or two directions, and only one may be reverse, not {directions}")
    require_equal(rows, GATES[cell] * hidden, "dim 1 of the weight", f"{GATES[cell]} gates of {hidden}")
    require_equal(x.shape[2], directions * rows, "dim 2 of operand 0", "the gates of all directions")
    for index, one in enumerate(more[: states(cell)]):
        require_rank(one, 3, f"state {index}")
        for axis, dim in enumerate((directions, x.shape[1], hidden)):
            require_equal(
                one.shape[axis], dim, f"dim {axis} of state {index}", "that of the weight and the gates"
            )
    rest = more[states(cell) :]
    if cell == "gru_after":
        require_rank(rest[0], 2, "the bias")
        require_equal(rest[0].shape[0], directions, "dim 0 of the bias", "the directions")
        require_equal(rest[0].shape[1], hidden, "dim 1 of the bias", "the hidden units")
    if attrs["quantized"]:
        for one, name in zip(rest[:2], ("scales", "zeros"), strict=True):
            require_rank(one, 2, f"the {name}")
            require_equal(one.shape[0], directions, f"dim 0 of the {name}", "the directions")
            require_equal(one.shape[1], rows, f"dim 1 of the {name}", "the gates")
    if attrs["lengths"]:
        require_rank(rest[-1], 1, "the lengths")
        require_integer(rest[-1], "the lengths")
        require_equal(rest[-1].shape[0], x.shape[1], "how many lengths there are", "the batch")
    return (x.shape[0] + 1, states(cell), directions, x.shape[1], hidden)


def _sigmoid(x: Array) -> Array:
    return 0.5 * np.tanh(0.5 * x) + 0.5


def quantized(h: Array, seen: Array) -> tuple[Array, Array]:
    """(h as whole numbers of 0 to 255 less the zero point, their scale), as DynamicQuantizeLinear of the rows `seen`.

    h (batch, hidden) float; seen (batch) bool. Rows that are not seen give 0.
    """
    given = np.where(seen[:, None], h, 0)
    low, high = given.min(initial=0), given.max(initial=0)
    scale = (high - low) / h.dtype.type(255)
    if scale == 0:
        scale = h.dtype.type(1)
    zero = np.round(np.clip(0 - low / scale, 0, 255))
    return np.clip(np.round(given / scale) + zero, 0, 255) - zero, scale


def _lstm(gates: Array, c: Array) -> list[Array]:
    i, o, f, new = np.split(gates, 4, -1)
    c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(new)
    return [_sigmoid(o) * np.tanh(c), c]


def step_of(cell: str, x: Array, state: list[Array], weight: Array, bias: Array | None) -> list[Array]:
    """The next states: x (batch, gates * hidden), states (batch, hidden), weight (gates * hidden, hidden)."""
    h = state[0]
    if cell == "lstm":
        return _lstm(x + h @ weight.T, state[1])
    if cell in {"tanh", "relu"}:
        total = x + h @ weight.T
        return [np.tanh(total) if cell == "tanh" else np.maximum(total, 0)]
    xz, xr, xn = np.split(x, 3, -1)
    wz, wr, wn = np.split(weight, 3, 0)
    z, r = _sigmoid(xz + h @ wz.T), _sigmoid(xr + h @ wr.T)
    recurrent = (r * h) @ wn.T if bias is None else r * (h @ wn.T + bias)
    new = np.tanh(xn + recurrent)
    return [(1 - z) * new + z * h]


def _run(step: ReferenceCall) -> Array:
    cell, reverse = step.attrs["cell"], step.attrs["reverse"]
    result_type = step.results[0].dtype.numpy
    count = states(cell)
    wide = np.float64 if result_type == np.float64 else np.float32
    x, weight, *more = step.operands
    time, batch = x.shape[:2]
    lengths = np.clip(more.pop(), 0, time) if step.attrs["lengths"] else np.full(batch, time)
    zeros = more.pop().astype(wide) if step.attrs["quantized"] else None
    scales = more.pop().astype(wide) if step.attrs["quantized"] else None
    bias = more[count].astype(wide) if cell == "gru_after" else None
    directions, rows, hidden = weight.shape
    result = np.zeros((time + 1, count, directions, batch, hidden), wide)
    for way in range(directions):
        state = [one[way].astype(wide) for one in more[:count]]
        backwards = reverse or way == 1
        for done in range(lengths.max(initial=0)):
            goes_on = (done < lengths)[:, None]
            at = np.where(goes_on[:, 0], lengths - 1 - done if backwards else done, done)
            gates = x[at, np.arange(batch), way * rows : (way + 1) * rows].astype(wide)
            own, own_bias = weight[way].astype(wide), None if bias is None else bias[way]
            if scales is None or zeros is None:
                new = step_of(cell, gates, state, own, own_bias)
            else:
                h, scale = quantized(state[0], done <= lengths)
                new = _lstm(gates + (h @ (own - zeros[way, :, None]).T) * (scale * scales[way]), state[1])
            state = [np.where(goes_on, a, b) for a, b in zip(new, state, strict=True)]
            for index, one in enumerate(state):
                result[at, index, way, np.arange(batch)] = np.where(goes_on, one, 0)
        for index, one in enumerate(state):
            result[time, index, way] = one
    return result.astype(result_type)


ROWS = (
    Op("recurrent", "A recurrent cell over a sequence. Operands: x (T, B, D * G * H), what each step's gates get of "
       "its input, biases included; weight (D, G * H, H), gates in ONNX's order; the first states (D, B, H): h, and c "
       'of an LSTM; of "gru_after", whose reset gate multiplies what the candidate gets of h, its bias there (D, H); '
       "with `lengths`, that of each sequence (B). Result (T + 1, S, D, B, H): the S states behind each step, 0 where "
       "a sequence has ended, and at T the last ones. D = 2: forward and backward. `quantized`, of an LSTM: the weight "
       "is of int8, scales and zeros of its rows (D, G * H), floats, come before the lengths, and h is rounded to 8 "
       "bits before each product, by the range that it has in all sequences of a direction together. The zeros are "
       "whole numbers.", (3, 8), _run, _dtype,
       _shape, attrs=(Attr("cell", one_of(*GATES)), Attr("reverse", BOOL, default=False),
       Attr("lengths", BOOL, default=False), Attr("quantized", BOOL, default=False)),
       flops=recurrent_flops, source="ONNX LSTM, GRU, RNN; ONNX Runtime DynamicQuantizeLSTM"),
)  # fmt: skip
