"""Linear layers of one input: PyTorch's own products."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor


def project(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> list[Tensor]:
    """F.linear(x, weight, bias) of each pair."""
    return [F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)]
