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
from kernels_hub.compiler.ir.types import Array, DType

GATES = {"lstm": 4, "gru": 3, "gru_after": 3, "tanh": 1, "relu": 1}
"""Cell -> rows of its weight for each hidden unit."""


def states(cell: str) -> int:
    """How many states a cell has: h, and c of an LSTM."""
    return 2 if cell == "lstm" else 1


def _dtype(operands: Operands, attrs: Attrs) -> DType:
    floats = operands[:-1] if attrs["lengths"] else operands
    first = floats[0].dtype
    if not first.is_float or any(one.dtype is not first for one in floats):
        shown = ", ".join(str(one.dtype) for one in floats)
        raise TypeRuleError(f"gates, weights, states and bias are floats of one dtype, not {shown}")
    return first


def _shape(operands: Operands, attrs: Attrs) -> Shape:
    cell = attrs["cell"]
    wanted = 2 + states(cell) + (cell == "gru_after") + attrs["lengths"]
    if len(operands) != wanted:
        raise TypeRuleError(f"{cell} takes {wanted} operands, got {len(operands)}")
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
    if attrs["lengths"]:
        require_rank(rest[-1], 1, "the lengths")
        require_integer(rest[-1], "the lengths")
        require_equal(rest[-1].shape[0], x.shape[1], "how many lengths there are", "the batch")
    return (x.shape[0] + 1, states(cell), directions, x.shape[1], hidden)


def _sigmoid(x: Array) -> Array:
    return 0.5 * np.tanh(0.5 * x) + 0.5


def step_of(cell: str, x: Array, state: list[Array], weight: Array, bias: Array | None) -> list[Array]:
    """The next states: x (batch, gates * hidden), states (batch, hidden), weight (gates * hidden, hidden)."""
    h = state[0]
    if cell == "lstm":
        i, o, f, new = np.split(x + h @ weight.T, 4, -1)
        c = _sigmoid(f) * state[1] + _sigmoid(i) * np.tanh(new)
        return [_sigmoid(o) * np.tanh(c), c]
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
    lengths = more.pop() if step.attrs["lengths"] else np.full(x.shape[1], x.shape[0])
    bias = more[count].astype(wide) if cell == "gru_after" else None
    time, batch = x.shape[:2]
    directions, rows, hidden = weight.shape
    result = np.zeros((time + 1, count, directions, batch, hidden), wide)
    for way in range(directions):
        state = [one[way].astype(wide) for one in more[:count]]
        backwards = reverse or way == 1
        for at in range(time)[::-1] if backwards else range(time):
            gates = x[at, :, way * rows : (way + 1) * rows].astype(wide)
            own_bias = None if bias is None else bias[way]
            new = step_of(cell, gates, state, weight[way].astype(wide), own_bias)
            goes_on = (at < lengths)[:, None]
            state = [np.where(goes_on, a, b) for a, b in zip(new, state, strict=True)]
            for index, one in enumerate(state):
                result[at, index, way] = np.where(goes_on, one, 0)
        for index, one in enumerate(state):
            result[time, index, way] = one
    return result.astype(result_type)


ROWS = (
    Op("recurrent", "A recurrent cell over a sequence. Operands: x (T, B, D * G * H), what each step's gates get of "
       "its input, biases included; weight (D, G * H, H), gates in ONNX's order; the first states (D, B, H): h, and c "
       'of an LSTM; of "gru_after", whose reset gate multiplies what the candidate gets of h, its bias there (D, H); '
       "with `lengths`, that of each sequence (B). Result (T + 1, S, D, B, H): the S states behind each step, 0 where "
       "a sequence has ended, and at T the last ones. D = 2: forward and backward.", (3, 6), _run, _dtype, _shape,
       attrs=(Attr("cell", one_of(*GATES)), Attr("reverse", BOOL, default=False), Attr("lengths", BOOL, default=False)),
       flops=recurrent_flops, source="ONNX LSTM, GRU, RNN"),
)  # fmt: skip
