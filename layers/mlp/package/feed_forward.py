"""Feed-forward blocks as functions, and the operators of the gated one and of its first half."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn import Parameter

from .blocks import FORMULAS, needs_gradient
from .fused_linear import linear
from .kernels import (
    GATED_LINEAR,
    GATED_MLP,
    PROJECTS,
    applies,
    dense,
    gated_linear_with_gradient,
    gated_mlp_directly,
    operand,
)
from .registration import define


def gated_mlp(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    activation: str = "silu",
) -> Tensor:
    """(activation(x gate^T) * (x up^T)) down^T, with a bias after each product where there is one.

    x: (..., K). gate, up: (N, K). down: (M, N). Returns (..., M). activation: as for `linear`.
    Source: SwiGLU and GEGLU, arXiv 2002.05202.
    """
    operands = (x, gate, up, down, gate_bias, up_bias, down_bias)
    _check(activation)
    if gated_mlp_directly is not None:
        directly = gated_mlp_directly(x, (gate, up, down), (gate_bias, up_bias, down_bias), activation)
        if directly is not None:
            return directly
    if (
        _whole is not None
        and applies(x, (gate, up, down), (gate_bias, up_bias, down_bias))
        and not needs_gradient(*operands)
    ):
        output: Tensor = _whole(
            x, operand(gate), operand(up), operand(down), gate_bias, up_bias, down_bias, activation
        )
        return output
    return _project(_gated_linear(x, gate, up, gate_bias, up_bias, activation), down, down_bias)


_FEW_ROWS = 32
"""Rows above which no backend reads a gate and an up as they lie."""


def joined_gated_mlp(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    activation: str = "silu",
) -> Tensor:
    """`gated_mlp` of a gate and an up that are one weight (2 N, K), the gate's rows first.

    x: (..., K). down: (M, N). Returns (..., M). activation: as for `linear`.
    """
    _check(activation)
    operands = (x, gate_up, down, gate_up_bias, down_bias)
    records = needs_gradient(*operands)
    if (
        gated_mlp_directly is not None
        and not records
        and not is_compiling()
        and x.numel() <= _FEW_ROWS * gate_up.shape[1]
        and (type(gate_up) is Tensor or type(gate_up) is Parameter)
    ):
        gate, up = gate_up.chunk(2)
        gate_bias, up_bias = (None, None) if gate_up_bias is None else gate_up_bias.chunk(2)
        biases = (gate_bias, up_bias, down_bias)
        directly = gated_mlp_directly(x, (gate, up, down), biases, activation)
        if directly is not None:
            return directly
    gate, up = linear(x, gate_up, gate_up_bias).chunk(2, dim=-1)
    hidden = FORMULAS[activation](gate)
    return _project(hidden * up if records or activation == "none" else hidden.mul_(up), down, down_bias)


def mlp(
    x: Tensor,
    first: Tensor,
    second: Tensor,
    first_bias: Tensor | None = None,
    second_bias: Tensor | None = None,
    activation: str = "gelu",
) -> Tensor:
    """activation(x first^T + first_bias) second^T + second_bias.

    x: (..., K). first: (N, K). second: (M, N). Returns (..., M). activation: as for `linear`.
    """
    return _project(linear(x, first, first_bias, activation), second, second_bias)


def _check(activation: str) -> None:
    if activation not in FORMULAS:
        raise ValueError(f"gated_mlp: unknown activation {activation!r}; known: {', '.join(FORMULAS)}")


def _project(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return linear(hidden, weight, bias) if PROJECTS else F.linear(hidden, weight, bias)


def _gated_linear(
    x: Tensor, gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None, activation: str
) -> Tensor:
    if applies(x, (gate, up), (gate_bias, up_bias)):
        if not needs_gradient(x, gate, up, gate_bias, up_bias):
            output: Tensor = _gated(x, operand(gate), operand(up), gate_bias, up_bias, activation)
            return output
        if gated_linear_with_gradient is not None:
            return gated_linear_with_gradient(x, gate, up, gate_bias, up_bias, activation)
    return reference(x, dense(gate), dense(up), gate_bias, up_bias, activation)


def reference(
    x: Tensor, gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None, activation: str
) -> Tensor:
    """The gated half in plain PyTorch: activation(x gate^T + gate_bias) * (x up^T + up_bias)."""
    return FORMULAS[activation](F.linear(x, gate, gate_bias)) * F.linear(x, up, up_bias)


def _fake(
    x: Tensor, gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None, activation: str
) -> Tensor:
    return x.new_empty((*x.shape[:-1], gate.shape[0]))


_gated = define(
    "gated_linear(Tensor x, Tensor gate, Tensor up, Tensor? gate_bias, Tensor? up_bias, str activation) -> Tensor",
    {**GATED_LINEAR, "CompositeExplicitAutograd": reference},
    _fake,
)


def _whole_reference(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    gate_bias: Tensor | None,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    activation: str,
) -> Tensor:
    return F.linear(reference(x, gate, up, gate_bias, up_bias, activation), down, down_bias)


def _whole_fake(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, *_: object) -> Tensor:
    return x.new_empty((*x.shape[:-1], down.shape[0]))


_whole = (
    None
    if GATED_MLP is None
    else define(
        "gated_mlp(Tensor x, Tensor gate, Tensor up, Tensor down, Tensor? gate_bias, Tensor? up_bias, "
        "Tensor? down_bias, str activation) -> Tensor",
        {**GATED_MLP, "CompositeExplicitAutograd": _whole_reference},
        _whole_fake,
    )
)
