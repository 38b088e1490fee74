"""nn.TransformerEncoder with a mask of padding, as it computes without gradients: zeros where the padding is.

PyTorch runs the layers on nested tensors there, which hold no padding, where every row of the mask has its padding at
the end, and pads what comes out with zeros, before the last norm. torch.export is given what the module computes with
gradients, other numbers at the padding: a program of it differs from the module.

    padding at the end of every row     0 at the padding
    elsewhere                           as the layers compute it, with the mask

A batch without any token, for which PyTorch raises, has zeros, too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

_ASKED: ContextVar[bool] = ContextVar("encoders as they are without gradients", default=False)
_DEVICES = ("cpu", "cuda", "xpu")


@contextmanager
def encoders_without_gradients() -> Iterator[None]:
    """While it is open, encoders are traced as they compute where nobody asks for a gradient."""
    token = _ASKED.set(True)
    try:
        yield
    finally:
        _ASKED.reset(token)


def encoded(
    forward: Callable[..., Tensor],
    encoder: nn.TransformerEncoder,
    src: Tensor,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Tensor:
    """`encoder.forward(src, …)`. forward: its own, that of the class."""
    if src_key_padding_mask is None or mask is not None or not _is_nested(encoder, src):
        return forward(encoder, src, mask, src_key_padding_mask, is_causal)
    of_floats = src_key_padding_mask.is_floating_point()
    padding = src_key_padding_mask != 0 if of_floats else src_key_padding_mask
    left_out = padding & ~(padding[:, :-1] & ~padding[:, 1:]).any()
    if of_floats:  # what is added to the scores of a key that nested tensors do not have
        src_key_padding_mask = src_key_padding_mask.masked_fill(left_out, -torch.inf)
    without_norm = copy.copy(encoder)  # the layers are the same ones
    without_norm._modules = {**encoder._modules, "norm": None}
    layers = forward(without_norm, src, None, src_key_padding_mask, is_causal)
    output = layers.masked_fill(left_out.unsqueeze(-1), 0.0)
    return output if encoder.norm is None else encoder.norm(output)


def _is_nested(encoder: nn.TransformerEncoder, src: Tensor) -> bool:
    """Whether PyTorch would make nested tensors of a source whose padding is at the end."""
    return (
        _ASKED.get()
        and getattr(encoder, "use_nested_tensor", False)
        and getattr(encoder, "mask_check", True)
        and torch.backends.mha.get_fastpath_enabled()
        and not encoder.layers[0].training
        and src.dim() == 3
        and src.device.type in _DEVICES
        and not torch.is_autocast_enabled()
    )
