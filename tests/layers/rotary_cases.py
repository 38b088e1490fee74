"""Cases of the rotary embedding, shared by the CPU and the Triton tests, and the originals in transformers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers.models.cohere import modeling_cohere
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama
from transformers.models.olmo import modeling_olmo
from transformers.models.phi3 import modeling_phi3

from tests.tolerances import assert_close

Rotary = Callable[..., tuple[Tensor, Tensor]]

ORIGINALS: dict[str, Rotary] = {
    "apply_rotary_pos_emb": modeling_llama.apply_rotary_pos_emb,
    "apply_rotary_pos_emb_interleaved": modeling_cohere.apply_rotary_pos_emb,
}

ORIGINALS_OF_NARROWER_ANGLES: dict[str, tuple[str, Rotary]] = {
    "GPT-NeoX": ("apply_rotary_pos_emb", modeling_gpt_neox.apply_rotary_pos_emb),
    "Phi 3": ("apply_rotary_pos_emb", modeling_phi3.apply_rotary_pos_emb),
    "GPT-OSS": ("apply_rotary_pos_emb_of_halves", modeling_gpt_oss.apply_rotary_pos_emb),
}
"""Originals of cosines and sines half as wide as q and k."""
OLMO: Rotary = modeling_olmo.apply_rotary_pos_emb

# batch, heads of q, heads of k, positions, width
SHAPES = [
    (1, 8, 8, 128, 64),
    (2, 3, 1, 5, 6),
    (1, 4, 2, 1, 128),
    (3, 2, 2, 7, 2),
    (2, 2, 1, 0, 8),
    (1, 5, 5, 3, 80),
]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def make(shape: tuple[int, ...], dtype: torch.dtype, layout: str, device: str = "cpu") -> list[Tensor]:
    """q, k, cos, sin. layout: "heads first" is contiguous, "positions first" a transposed view, "strided" has gaps."""
    batch, q_heads, k_heads, positions, width = shape
    generator = torch.Generator().manual_seed(7)

    def random(heads: int) -> Tensor:
        if layout == "heads first":
            x = torch.randn(batch, heads, positions, width, generator=generator)
        elif layout == "positions first":
            x = torch.randn(batch, positions, heads, width, generator=generator).transpose(1, 2)
        else:
            x = torch.randn(batch, positions, heads, 2 * width, generator=generator).transpose(1, 2)[..., ::2]
        return x.to(dtype).to(device)

    angles = torch.randn(batch, positions, width, generator=generator).to(dtype).to(device)
    return [random(q_heads), random(k_heads), angles.cos(), angles.sin()]


def check_forward(rotary: Rotary, original: Rotary, tensors: list[Tensor], **kwargs: int) -> None:
    found = rotary(*tensors, **kwargs)
    exact = original(*(x.double() for x in tensors), **kwargs)
    for ours, reference, like in zip(found, exact, tensors, strict=False):
        assert ours.dtype == like.dtype
        assert_close(ours, reference)
        assert ours.data_ptr() != like.data_ptr() or not ours.numel()


def check_backward(rotary: Rotary, original: Rotary, tensors: list[Tensor]) -> None:
    q, k, cos, sin = tensors
    ours = [x.detach().clone().requires_grad_() for x in (q, k)]
    exact = [x.detach().double().requires_grad_() for x in (q, k)]
    outputs = rotary(*ours, cos, sin)
    references = original(*exact, cos.double(), sin.double())
    gradients = [torch.randn(x.shape, generator=torch.Generator().manual_seed(8)).to(x) for x in outputs]
    torch.autograd.backward(outputs, gradients)
    torch.autograd.backward(references, [g.double() for g in gradients])
    for mine, reference in zip(ours, exact, strict=True):
        assert mine.grad is not None and reference.grad is not None
        assert_close(mine.grad, reference.grad)
