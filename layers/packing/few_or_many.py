"""Linear layers and feed-forward blocks: of few rows, or of float16, on weights as they are; of many on packed ones, or
as they are, too, where no copies are to be kept."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from . import few_rows, many_rows
from .direct import is_plain, records_gradient
from .packing import products


def pays(x: Tensor, weight: Tensor) -> bool:
    """Whether one of the two is faster than PyTorch for x (..., K) and weight (N, K)."""
    return products.pays(x, weight) or few_rows.pays(x, weight) or many_rows.pays(x, weight)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """activation(x weight^T + bias); x (..., K), weight (N, K) dense or the ticket of a PackedWeight."""
    if few_rows.pays(x, weight) and few_rows.takes(x, (weight,), (bias,)):
        return few_rows.linears(x, (weight,), (bias,), activation)
    if many_rows.pays(x, weight) and many_rows.takes(x, (weight,), (bias,)):
        return many_rows.linears(x, (weight,), (bias,), activation)
    return products.linear(x, weight, bias, activation)  # type: ignore[no-any-return]


def linear_directly(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor | None:
    """`linear` on weights as they are, past the dispatcher; None where the operator is to be called."""
    if few_rows.runs_directly(x, (weight,), (bias,)):
        return few_rows.linears(x, (weight,), (bias,), activation)
    if many_rows.runs_directly(x, (weight,), (bias,)):
        return many_rows.linears(x, (weight,), (bias,), activation)
    return None


def transposed_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x weight + bias; x (..., K), weight (K, N) dense, bias (N,)."""
    if many_rows.pays_transposed(x, weight) and many_rows.transposed_takes(x, weight, bias):
        return many_rows.transposed_linear(x, weight, bias)
    return products.transposed_linear(x, weight, bias)  # type: ignore[no-any-return]


def gated(
    x: Tensor, gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None, activation: str
) -> Tensor:
    """activation(x gate^T + gate_bias) * (x up^T + up_bias); x (..., K), gate and up (N, K) as in `linear`."""
    if (
        many_rows.pays(x, gate)
        and gate.shape == up.shape
        and many_rows.takes(x, (gate, up), (gate_bias, up_bias))
    ):
        return many_rows.gated(x, gate, up, gate_bias, up_bias, activation)
    return products.gated(x, gate, up, gate_bias, up_bias, activation)  # type: ignore[no-any-return]


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
    hidden = gated(x, gate, up, gate_bias, up_bias, activation)
    return linear(hidden, down, down_bias, "none")


def gated_mlp_directly(
    x: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    biases: tuple[Tensor | None, Tensor | None, Tensor | None],
    activation: str,
) -> Tensor | None:
    """`gated_mlp` on weights as they are, past the dispatcher; None where the operator is to be called."""
    (gate, up, down), (gate_bias, up_bias, down_bias) = weights, biases
    few = few_rows.runs_directly(x, weights[:2], biases[:2])
    if (
        (few or many_rows.runs_directly(x, weights[:2], biases[:2]))
        and is_plain(down)
        and (down_bias is None or is_plain(down_bias))
        and not records_gradient(down, down_bias)
        and _is_block(*weights, down_bias)
    ):
        if few:
            return few_rows.gated_mlp(x, weights, biases, activation)
        hidden = many_rows.gated(x, gate, up, gate_bias, up_bias, activation)
        return linear(hidden, down, down_bias, "none")
    return None


def _is_block(gate: Tensor, up: Tensor, down: Tensor, down_bias: Tensor | None) -> bool:
    """Whether a gate and an up that fit a few rows make a block with a down."""
    return gate.shape == up.shape and few_rows.are_like(gate.dtype, gate.shape[0], (down,), (down_bias,))


def joined_linear(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Tensor | None:
    """x weight^T + bias of several weights, side by side, if that is done on weights as they are."""
    largest = max(weights, key=Tensor.numel)
    if few_rows.pays(x, largest) and few_rows.takes(x, weights, biases):
        return few_rows.linears(x, weights, biases)
    if many_rows.pays(x, largest) and many_rows.takes(x, weights, biases):
        return many_rows.linears(x, weights, biases)
    return None


def joined_linear_directly(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> Tensor | None:
    """`joined_linear` past the dispatcher; None where the operator is to be called."""
    if few_rows.runs_directly(x, weights, biases):
        return few_rows.linears(x, weights, biases)
    if many_rows.runs_directly(x, weights, biases):
        return many_rows.linears(x, weights, biases)
    return None
