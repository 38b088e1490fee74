"""nn.LSTM, nn.GRU and nn.RNN in a trace: one op of all their layers, where torch.export would write out every step.

The ops are this library's own, for PyTorch's are decomposed as they are traced, which fixes the length of a sequence.
`aten_ops.recurrent` brings them into the graph. Only where that is asked for: written out, they have a derivative, and
kernels in Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor


@torch.library.custom_op(
    "kernels_hub_import::recurrent",
    mutates_args=(),
    schema="(str cell, Tensor x, Tensor[] states, Tensor[] weights, bool has_bias, int layers, bool both_ways, "
    "bool batch_first) -> Tensor[]",
)
def _recurrent(
    cell: str, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor],
    has_bias: bool, layers: int, both_ways: bool, batch_first: bool,
) -> list[Tensor]:  # fmt: skip
    held = tuple(states) if cell == "lstm" else states[0]
    rest = [*weights], has_bias, layers, 0.0, False, both_ways, batch_first
    return list(getattr(torch, cell)(x, held, *rest))


@_recurrent.register_fake
def _(
    cell: str, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor],
    has_bias: bool, layers: int, both_ways: bool, batch_first: bool,
) -> list[Tensor]:  # fmt: skip
    del cell, weights, has_bias, layers, batch_first
    every_step = x.new_empty((x.shape[0], x.shape[1], states[0].shape[2] * (1 + both_ways)))
    return [every_step, *map(torch.empty_like, states)]


_ASKED: ContextVar[bool] = ContextVar("one op of recurrent layers", default=False)


@contextmanager
def recurrent_layers_whole(on: bool = True) -> Iterator[None]:
    """While it is open, recurrent layers that do not train are one op in what is traced."""
    token = _ASKED.set(on)
    try:
        yield
    finally:
        _ASKED.reset(token)


_CELLS = {torch.lstm: "lstm", torch.gru: "gru", torch.rnn_tanh: "rnn_tanh", torch.rnn_relu: "rnn_relu"}
_ARGUMENTS = 9


def instead(func: object, args: Sequence[object], kwargs: object) -> Callable[[], object] | None:
    """The one op in the place of a call; None of any other, of packed sequences, of projections, and of training.

    In training PyTorch's steps are traced, of which the gradient is derived.
    """
    cell = _CELLS.get(func)  # type: ignore[call-overload]
    if cell is None or not _ASKED.get() or kwargs or len(args) != _ARGUMENTS or not isinstance(args[3], bool):
        return None
    x, h, weights, has_bias, layers, _, training, both_ways, batch_first = args
    assert isinstance(weights, (list, tuple)) and isinstance(layers, int)
    if training or len(weights) != layers * (2 if both_ways else 1) * (4 if has_bias else 2):
        return None
    states = [*h] if isinstance(h, (list, tuple)) else [h]
    of_call = cell, x, states, [*weights], has_bias, layers, both_ways, batch_first
    return lambda: tuple(torch.ops.kernels_hub_import.recurrent(*of_call))
