"""What distinguishes one normalization from another: two small records that every backend takes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Form(NamedTuple):
    """A normalization of rows, in float32:

        centred   x - mean(x) if `centered` else x
        normal    centred / sqrt(mean(centred²) + eps)
        result    normal * (weight + offset) + bias

    and where it is rounded. `round_first`: `normal` is rounded to x's dtype before the product,
    which has the promoted dtype of x and weight (Llama). Otherwise one rounding, to x's dtype.
    """

    eps: float
    centered: bool = False
    offset: float = 0.0
    round_first: bool = False

    def result_dtype(self, x: Tensor, weight: Tensor | None) -> torch.dtype:
        """Dtype of the result."""
        if not self.round_first or weight is None or weight.dtype == x.dtype:
            return x.dtype
        return torch.promote_types(x.dtype, weight.dtype)


class GatedForm(NamedTuple):
    """An RMSNorm with a gate; `activation` is "silu" or "sigmoid".

    gate_first: the input is multiplied by activation(gate), then normalized in `groups` equal parts
        of the row, then multiplied by weight (Mamba 2). Otherwise the product with the gate comes last.
    round_first: as in `Form`; the product with weight is rounded too, to the promoted dtype of x and
        weight. Otherwise one rounding at the end.
    """

    eps: float
    activation: str = "silu"
    gate_first: bool = False
    round_first: bool = False
    groups: int = 1

    def result_dtype(self, x: Tensor, weight: Tensor | None) -> torch.dtype:
        """Dtype of the result."""
        return self.product_dtype(x, weight) if self.gate_first else x.dtype

    def product_dtype(self, x: Tensor, weight: Tensor | None) -> torch.dtype:
        """Dtype of normal * weight."""
        if not self.round_first:
            return torch.float32
        return x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
