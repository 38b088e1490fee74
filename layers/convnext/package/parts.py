"""What a block of ConvNeXt is made of, under the names of those who wrote it."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import Identity

from .blocks import activation_name, has_written_forward, is_plain_linear, runs_own_forward

# Names of the convolution, the norm, the first linear layer, the activation, the second, and of the scale.
_NAMES = (
    ("dwconv", "layernorm", "pwconv1", "act", "pwconv2", "layer_scale_parameter"),
    ("depthwise_conv", "layer_norm", "pointwise_conv1", "activation_fn", "pointwise_conv2", "gamma"),
)


class Parts(NamedTuple):
    """The children of a block in the order in which it calls them, and what it multiplies with before the last."""

    convolution: nn.Conv2d
    norm: nn.LayerNorm
    first: nn.Linear
    activation: Any
    second: nn.Linear
    scale: Tensor | None
    drop_path: nn.Module


def parts_of(block: nn.Module) -> Parts:
    """The parts of a block, whatever they are by now. Raises AttributeError for a module of another kind.

    Read from the module's dictionaries: its attributes cost half a microsecond each.
    """
    children: dict[str, Any] = (
        block._modules
    )  # whether they are still what is expected is asked at every call
    for convolution, norm, first, activation, second, scale in _NAMES:
        if convolution in children:
            return Parts(
                children[convolution],
                children[norm],
                children[first],
                children[activation],
                children[second],
                block._parameters[scale] if scale in block._parameters else getattr(block, scale),
                children["drop_path"],
            )
    raise AttributeError(f"{type(block).__name__} is no block of ConvNeXt: it has no {_NAMES[0][0]}")


def called_in_turn(features: Tensor, parts: Parts) -> Tensor:
    """The block in plain PyTorch, by calls of its children."""
    made = parts.convolution(features).permute(0, 2, 3, 1)
    made = parts.second(parts.activation(parts.first(parts.norm(made))))
    if parts.scale is not None:
        made = parts.scale * made
    result: Tensor = features + parts.drop_path(made.permute(0, 3, 1, 2))
    return result


def fused_activation(parts: Parts) -> str | None:
    """The name of the activation, where calling the parts computes what their classes say; None otherwise."""
    convolution, norm = parts.convolution, parts.norm
    if not (
        type(convolution) is nn.Conv2d
        and _runs_as_written(convolution)
        and isinstance(norm, nn.LayerNorm)
        and _is_over_pixels(norm)
        and _runs_as_written(norm)
        and is_plain_linear(parts.first)
        and is_plain_linear(parts.second)
        and _passes_on(parts.drop_path)
    ):
        return None
    return activation_name(parts.activation)


def _runs_as_written(module: nn.Module) -> bool:
    return has_written_forward(type(module)) and runs_own_forward(module)


def _is_over_pixels(norm: nn.LayerNorm) -> bool:
    """Whether a norm is torch's, or transformers' of channels that come last."""
    if type(norm) is nn.LayerNorm:
        return True
    kind = type(norm)
    is_known = kind.__module__.startswith("transformers.models.") and kind.__name__.endswith("LayerNorm")
    return is_known and norm.__dict__.get("data_format") == "channels_last"


def _passes_on(module: nn.Module) -> bool:
    """Whether a module returns what it gets: nothing, or transformers' stochastic depth in eval mode."""
    kind = type(module)
    is_drop = kind.__module__.startswith("transformers.models.") and kind.__name__.lower().endswith(
        "droppath"
    )
    return (kind is Identity or (is_drop and not module.training)) and _runs_as_written(module)
