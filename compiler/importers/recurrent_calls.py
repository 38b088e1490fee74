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

_SCHEMA = "Tensor[] weights, bool has_bias, int layers, bool both_ways, bool batch_first)"


@torch.library.custom_op(
    "kernels_hub_import::lstm",
    mutates_args=(),
    schema=f"(Tensor x, Tensor h, Tensor c, {_SCHEMA} -> (Tensor, Tensor, Tensor)",
)
def _lstm(
    x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor],
    has_bias: bool, layers: int, both_ways: bool, batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    y, h, c = torch.lstm(x, (h, c), [*weights], has_bias, layers, 0.0, False, both_ways, batch_first)
    return y, h, c


@_lstm.register_fake
def _(
    x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor],
    has_bias: bool, layers: int, both_ways: bool, batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    del weights, has_bias, layers, batch_first
    return _every_step(x, h, both_ways=both_ways), torch.empty_like(h), torch.empty_like(c)


@torch.library.custom_op(
    "kernels_hub_import::rnn",
    mutates_args=(),
    schema=f"(str cell, Tensor x, Tensor h, {_SCHEMA} -> (Tensor, Tensor)",
)
def _rnn(
    cell: str, x: Tensor, h: Tensor, weights: Sequence[Tensor],
    has_bias: bool, layers: int, both_ways: bool, batch_first: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    y, h = getattr(torch, cell)(x, h, [*weights], has_bias, layers, 0.0, False, both_ways, batch_first)
    return y, h


@_rnn.register_fake
def _(
    cell: str, x: Tensor, h: Tensor, weights: Sequence[Tensor],
    has_bias: bool, layers: int, both_ways: bool, batch_first: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    del cell, weights, has_bias, layers, batch_first
    return _every_step(x, h, both_ways=both_ways), torch.empty_like(h)


def _every_step(x: Tensor, h: Tensor, *, both_ways: bool) -> Tensor:
    """The states of the last layer at every step, those of both ways beside each other."""
    return x.new_empty((x.shape[0], x.shape[1], h.shape[2] * (1 + both_ways)))


_ASKED: ContextVar[bool] = ContextVar("one op of recurrent layers", default=False)


@contextmanager
def recurrent_layers_whole(on: bool = True) -> Iterator[None]:
    """While it is open, recurrent layers that do not train are one op in what is traced."""
    token = _ASKED.set(on)
    try:
        yield
    finally:
        _ASKED.reset(token)


_CELLS = {torch.gru: "gru", torch.rnn_tanh: "rnn_tanh", torch.rnn_relu: "rnn_relu"}
_ARGUMENTS = 9


def instead(func: object, args: Sequence[object], kwargs: object) -> Callable[[], object] | None:
    """The one op in the place of a call; None of any other, of packed sequences, of projections, and of training.

    In training PyTorch's steps are traced, of which the gradient is derived.
    """
    cell = "lstm" if func is torch.lstm else _CELLS.get(func)  # type: ignore[call-overload]
    if cell is None or not _ASKED.get() or kwargs or len(args) != _ARGUMENTS or not isinstance(args[3], bool):
        return None
    x, h, weights, has_bias, layers, _, training, both_ways, batch_first = args
    assert isinstance(weights, (list, tuple)) and isinstance(layers, int)
    if training or len(weights) != layers * (2 if both_ways else 1) * (4 if has_bias else 2):
        return None
    rest = [*weights], has_bias, layers, both_ways, batch_first
    ops = torch.ops.kernels_hub_import
    if isinstance(h, (list, tuple)):
        return lambda: ops.lstm(x, h[0], h[1], *rest)
    return lambda: ops.rnn(cell, x, h, *rest)
