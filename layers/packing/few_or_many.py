"""Linear layers and feed-forward blocks: of few rows, or of float16, on weights as they are, of many on packed ones."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from . import few_rows
from .direct import is_plain, records_gradient
from .packing import products


def pays(x: Tensor, weight: Tensor) -> bool:
    """Whether one of the two is faster than PyTorch for x (..., K) and weight (N, K)."""
    return products.pays(x, weight) or few_rows.pays(x, weight)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """activation(x weight^T + bias); x (..., K), weight (N, K) dense or the ticket of a PackedWeight."""
    if few_rows.pays(x, weight) and few_rows.takes(x, (weight,), (bias,)):
        return few_rows.linears(x, (weight,), (bias,), activation)
    return products.linear(x, weight, bias, activation)  # type: ignore[no-any-return]


def linear_directly(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor | None:
    """`linear` of few rows, past the dispatcher; None where the operator is to be called."""
    if few_rows.runs_directly(x, (weight,), (bias,)):
        return few_rows.linears(x, (weight,), (bias,), activation)
    return None


def gated_mlp(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    gate_bias: Tensor | None,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    activation: str,
) -> Tensor:
    """(activation(x gate^T) * (x up^T)) down^T; x (..., K), gate and up (N, K), down (M, N), as in `linear`."""
    if (
        few_rows.pays(x, gate)
        and few_rows.takes(x, (gate, up), (gate_bias, up_bias))
        and _is_block(gate, up, down, down_bias)
    ):
        return few_rows.gated_mlp(x, (gate, up, down), (gate_bias, up_bias, down_bias), activation)
    hidden = products.gated(x, gate, up, gate_bias, up_bias, activation)
    return linear(hidden, down, down_bias, "none")


def gated_mlp_directly(
    x: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    biases: tuple[Tensor | None, Tensor | None, Tensor | None],
    activation: str,
) -> Tensor | None:
    """`gated_mlp` of few rows, past the dispatcher; None where the operator is to be called."""
    (*_, down), (*_, down_bias) = weights, biases
    if (
        few_rows.runs_directly(x, weights[:2], biases[:2])
        and is_plain(down)
        and (down_bias is None or is_plain(down_bias))
        and not records_gradient(down, down_bias)
        and _is_block(*weights, down_bias)
    ):
        return few_rows.gated_mlp(x, weights, biases, activation)
    return None


def _is_block(gate: Tensor, up: Tensor, down: Tensor, down_bias: Tensor | None) -> bool:
    """Whether a gate and an up that fit a few rows make a block with a down."""
    return gate.shape == up.shape and few_rows.are_like(gate.dtype, gate.shape[0], (down,), (down_bias,))


def joined_linear(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Tensor | None:
    """x weight^T + bias of several weights, side by side, if x has few rows."""
    if few_rows.pays(x, max(weights, key=Tensor.numel)) and few_rows.takes(x, weights, biases):
        return few_rows.linears(x, weights, biases)
    return None


def joined_linear_directly(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> Tensor | None:
    """`joined_linear` past the dispatcher; None where the operator is to be called, or there are many rows."""
    if few_rows.runs_directly(x, weights, biases):
        return few_rows.linears(x, weights, biases)
    return None
