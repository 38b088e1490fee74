"""The cases of `python -m benchmarks.layers`: each layer against the module that it replaces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts, MixtralTopKRouter

Case = tuple[str, Callable[[], nn.Module], tuple[Tensor, ...]]

# tokens, experts, picked, hidden size, inner size
SHAPES = {
    "cpu": (
        (1, 4, 2, 256, 512),
        (64, 4, 2, 256, 512),
        (512, 4, 2, 256, 512),
        (1, 8, 2, 512, 1024),
        (64, 8, 2, 512, 1024),
        (8, 64, 8, 512, 256),
    ),
    "cuda": ((8192, 8, 2, 4096, 14336), (8192, 128, 8, 2048, 768), (16, 128, 8, 2048, 768)),
}


def config(experts: int, picked: int, width: int, inner: int) -> MixtralConfig:
    """Mixtral's, with transformers' own choice of how experts run."""
    found = MixtralConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_local_experts=experts,
        num_experts_per_tok=picked,
        num_attention_heads=4,
    )
    found._experts_implementation = "grouped_mm"
    return found


def mixture(experts: int, picked: int, width: int, inner: int) -> nn.Module:
    """Mixtral's experts."""
    module = MixtralExperts(config(experts, picked, width, inner))
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return module


def router(experts: int, picked: int, width: int, inner: int) -> nn.Module:
    """Mixtral's router."""
    module = MixtralTopKRouter(config(experts, picked, width, inner))
    nn.init.normal_(module.weight, std=width**-0.5)
    return module


def cases(device: str, dtype: torch.dtype) -> list[Case]:
    """(layer and shape, factory of the original module, example inputs) for each layer and shape."""
    found: list[Case] = []
    for tokens, *sizes in SHAPES[device]:
        experts, picked, width, _ = sizes
        x = torch.randn(tokens, width, device=device, dtype=dtype)
        weight, index = torch.randn(tokens, experts, device=device).softmax(1).topk(picked)
        shape = f"{tokens} x {picked} of {experts}, {width}x{sizes[3]}"
        found.append((f"GatedExperts {shape}", partial(mixture, *sizes), (x, index, weight.to(dtype))))
        found.append((f"TopKRouter {shape}", partial(router, *sizes), (x,)))
    return found
