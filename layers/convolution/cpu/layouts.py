"""The packed copies of one convolution's weight.

oneDNN chooses the blocked layout of a weight by the input's size (16 to 64 output channels a block).
Given another layout it reorders at every call, which can take longer than the convolution. So every
input size is asked for, and sizes that want the same layout share one copy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .reference import output_shape

_MAX_SHAPES = 32
"""Input shapes that are remembered for a weight; a model fed with more runs the rest unpacked."""


class ConvolutionLayout(NamedTuple):
    """What inputs of one shape take."""

    weight: Tensor
    output_shape: tuple[int, ...]


class Layouts:
    """A weight as oneDNN wants it for each input shape, and the bias that goes with it."""

    __slots__ = ("_by_shape", "_distinct", "_plain", "bias", "fits")

    def __init__(self, folded: Tensor | None = None, bias: Tensor | None = None) -> None:
        """folded: a weight that exists nowhere else; None where the caller has the weight."""
        self.fits = folded is None or bool(
            folded.isfinite().all() and (bias is None or bias.isfinite().all())
        )
        """Whether folding stayed in the range of the dtype."""
        self.bias = bias
        self._by_shape: dict[tuple[int, ...], ConvolutionLayout] = {}
        self._distinct: list[Tensor] = []
        self._plain = folded if self.fits else None

    def find(self, shape: torch.Size) -> ConvolutionLayout | None:
        """The layout for inputs of a shape; None where `make` has not made it yet."""
        return self._by_shape.get(shape)

    def make(
        self,
        shape: torch.Size,
        weight: Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> ConvolutionLayout:
        """Pack for inputs of a shape; beyond the limit, the plain weight.

        weight: None for a folded weight.
        """
        with torch.inference_mode(False), torch.no_grad():
            plain = self._plain_weight() if weight is None else weight.detach()
            result = output_shape(shape, plain.shape, stride, padding, dilation)
            if len(self._by_shape) >= _MAX_SHAPES:
                if weight is None:
                    self._plain = plain
                return ConvolutionLayout(plain, result)
            packed = torch.ops.mkldnn._reorder_convolution_weight(
                plain, padding, stride, dilation, groups, list(shape)
            )
        for known in self._distinct:
            if torch.equal(_bytes(known), _bytes(packed)):  # oneDNN's descriptors do not compare
                packed = known
                break
        else:
            self._distinct.append(packed)
        layout = self._by_shape[shape] = ConvolutionLayout(packed, result)
        self._plain = None
        return layout

    def nbytes(self) -> int:
        """Bytes held beside the original weight."""
        total = sum(torch.ops.mkldnn._nbytes(packed) for packed in tuple(self._distinct))
        return total + (0 if self._plain is None else self._plain.nbytes)

    def _plain_weight(self) -> Tensor:
        plain = self._plain
        return self._distinct[0].to_dense() if plain is None else plain


def _bytes(packed: Tensor) -> Tensor:
    """A view of a packed tensor's memory, padding included."""
    nbytes = torch.ops.mkldnn._nbytes(packed)
    memory = (ctypes.c_uint8 * nbytes).from_address(torch.ops.mkldnn.data_ptr(packed))
    return torch.frombuffer(memory, dtype=torch.uint8)
