"""The layers of this repository. `self` is the embedding whose forward they replace."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .operators import embedding


class Embedding(nn.Module):
    """torch.nn.Embedding: weight[input]. With max_norm, sparse or scale_grad_by_freq, PyTorch's own runs."""

    has_backward: bool = True
    can_torch_compile: bool = True

    weight: Tensor
    padding_idx: int | None
    max_norm: float | None
    norm_type: float
    scale_grad_by_freq: bool
    sparse: bool

    def forward(self, input: Tensor) -> Tensor:
        if self.max_norm is not None or self.sparse or self.scale_grad_by_freq:
            return F.embedding(
                input,
                self.weight,
                self.padding_idx,
                self.max_norm,
                self.norm_type,
                self.scale_grad_by_freq,
                self.sparse,
            )
        return embedding(input, self.weight, self.padding_idx)


class ScaledEmbedding(nn.Module):
    """Gemma's: weight[input_ids] times `embed_scale`, which is rounded to the weight's dtype first."""

    has_backward: bool = True
    can_torch_compile: bool = True

    weight: Tensor
    padding_idx: int | None
    max_norm: float | None
    norm_type: float
    scale_grad_by_freq: bool
    sparse: bool
    embed_scale: Tensor

    def forward(self, input_ids: Tensor) -> Tensor:
        if self.max_norm is not None or self.sparse or self.scale_grad_by_freq:
            rows = F.embedding(
                input_ids,
                self.weight,
                self.padding_idx,
                self.max_norm,
                self.norm_type,
                self.scale_grad_by_freq,
                self.sparse,
            )
            return rows * self.embed_scale.to(self.weight.dtype)
        return embedding(input_ids, self.weight, self.padding_idx, self.embed_scale)
