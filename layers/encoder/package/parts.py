"""What a layer of an encoder is made of, and whether calling its parts computes what their classes say."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules import module as _module
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from .blocks import activation_name, has_written_forward_now
from .sdpa_of_transformers import calls_sdpa, has_no_hooks_but_records, records_weights

Module = Any
"""A module: its attributes are those of its kind."""


class Parts(NamedTuple):
    """The modules inside of a layer by what they do."""

    attention: Module
    """What calls the attention function, by its `config`; without one, what attends in a way of its own."""
    within: tuple[nn.Module, ...]
    """The modules that only call those below, the attention among them, and those that do nothing in eval mode."""
    projectors: tuple[nn.Linear, ...]
    """Of queries, keys and values; one of all three, side by side; none where the attention has their weight itself."""
    linears: tuple[nn.Linear, nn.Linear, nn.Linear]
    """Of what is attended to, and the two of the feed-forward block."""
    norms: tuple[nn.LayerNorm, nn.LayerNorm]
    activation: Any
    head_width: int
    scale: float
    """Of the scores."""
    scales: tuple[Tensor | None, Tensor | None] = (None, None)
    """What the results of the attention and of the feed-forward block are multiplied with before they are added."""

    def projections(self) -> list[tuple[Tensor | None, Tensor | None]]:
        """Weight and bias of queries, keys and values, or of all three."""
        if not self.projectors:
            own = self.attention._parameters
            return [(own["in_proj_weight"], own["in_proj_bias"])]
        return [weight_and_bias(linear) for linear in self.projectors]


def weight_and_bias(module: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    """The parameters of a linear layer or a norm."""
    held = module._parameters
    return held.get("weight"), held.get("bias")


def fused_activation(layer: nn.Module, parts: Parts) -> str | None:
    """The name of the activation, where calling the parts in eval mode computes what their classes say; else None."""
    within, attention = parts.within, parts.attention
    config = attention.__dict__.get("config")
    if not ((config is None or calls_sdpa(config)) and _has_no_global_hooks()):
        return None
    kind = type(layer)
    for module in within:
        if module.training or not _belongs_to(type(module), kind):  # type: ignore[arg-type]  # a class can be hashed
            return None
    rest = (*parts.projectors, *parts.linears, *parts.norms)
    for module in rest:
        if type(module) not in _KINDS and not _is_norm_of_timm(module):
            return None
    return (
        activation_name(parts.activation)
        if _run_as_written(within, attention) and _run_as_written(rest)
        else None
    )


@lru_cache(maxsize=4096)
def _belongs_to(kind: type[nn.Module], layer: type[nn.Module]) -> bool:
    """Whether a class of a module inside is of those who wrote the layer's, or of PyTorch's that layers are made of.

    The mapping proves what a class computes when the layer gets its kernel; a module that was put in another's place
    later is of somebody else's class.
    """
    if kind in _OF_ANYONE:
        return True
    return kind.__module__ == layer.__module__ or kind.__module__.startswith("timm.layers.")


def _is_norm_of_timm(module: Module) -> bool:
    """Whether a module is timm's LayerNorm, which computes what PyTorch's does but where it is made to be fast."""
    kind = type(module)
    return kind.__module__ == "timm.layers.norm" and kind.__name__ == "LayerNorm" and not module._fast_norm


_OF_ANYONE = frozenset((nn.Dropout, nn.Identity, nn.MultiheadAttention))
_KINDS = frozenset((nn.Linear, NonDynamicallyQuantizableLinear, nn.LayerNorm))


def _has_no_global_hooks() -> bool:
    """Whether nobody watches the calls of all modules."""
    return not (
        _module._global_forward_pre_hooks
        or _module._global_forward_hooks
        or _module._global_backward_pre_hooks
        or _module._global_backward_hooks
    )


def _run_as_written(modules: Sequence[nn.Module], recorded: nn.Module | None = None) -> bool:
    """Whether calling modules computes what the forwards of their classes do, and runs no hooks of their own.

    A kernel that `kernelize` has given one computes that. recorded: that which transformers may have put hooks on to
    record what it returns, which it does not now.
    """
    for module in modules:  # a loop of dictionaries: this is asked of a dozen modules at every call
        state = module.__dict__
        if (
            not has_written_forward_now(type(module))
            or ("forward" in state and not getattr(state["forward"], "computes_original", False))
            or state["_forward_pre_hooks"]
            or (state["_forward_hooks"] and not (module is recorded and _is_not_recorded_now(module)))
            or state["_backward_pre_hooks"]
            or state["_backward_hooks"]
        ):
            return False
    return True


def _is_not_recorded_now(module: nn.Module) -> bool:
    return has_no_hooks_but_records(module) and not records_weights()
