"""Cases for `benchmarks/layers.py`: the table of a BERT and that of a Llama."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Case = tuple[str, Callable[[], nn.Module], tuple[Tensor, ...]]


def cases(device: str, dtype: torch.dtype) -> list[Case]:
    """(layer and shape, factory of the original, inputs)."""
    found: list[Case] = []
    for rows, width, shape in ((30522, 384, (8, 128)), (32000, 512, (1, 128)), (32000, 2048, (4, 512))):
        indices = torch.randint(rows, shape, device=device)
        label = f"Embedding ({rows}, {width}) at {shape[0]} x {shape[1]}"
        found.append((label, lambda rows=rows, width=width: nn.Embedding(rows, width), (indices,)))
    return found
