"""What a layer of an encoder is made of, under the names of those who wrote it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules import module as _module

from .blocks import activation_name, has_written_forward_now
from .sdpa_of_transformers import calls_sdpa, has_no_hooks_but_records, records_weights

Module = Any
"""A module: its attributes are those of its kind."""
Children = Mapping[str, Module]


class Parts(NamedTuple):
    """The modules inside of a layer by what they do."""

    attention: Module
    """What calls the attention function, by its `config`; without one, what computes attention in Python."""
    within: tuple[nn.Module, ...]
    """The modules that only call those below, the attention among them, and dropouts, which do nothing in eval mode."""
    linears: tuple[nn.Linear, ...]
    """Of queries, keys and values, of what they attend to, and the two of the feed-forward block."""
    norms: tuple[nn.LayerNorm, nn.LayerNorm]
    activation: Any
    head_width: int
    scale: float
    """Of the scores."""
    scales: tuple[Tensor | None, Tensor | None] = (None, None)
    """What the results of the attention and of the feed-forward block are multiplied with before they are added."""


def parts_of(layer: nn.Module) -> Parts:
    """The parts of a layer, whatever they are by now. Raises KeyError and AttributeError for a module of another kind.

    Read from the module's dictionaries: its attributes cost half a microsecond each.
    """
    children: Any = layer._modules  # whether they are still what is expected is asked at every call
    for name, read in _READERS.items():
        if name in children:
            return read(layer, children)
    raise AttributeError(f"{type(layer).__name__} is no layer of an encoder that is known here")


def _bert(layer: Module, children: Children) -> Parts:
    if "attn" in children["attention"]._modules:
        return _mpnet(layer, children)
    attention, intermediate, output = (children[name] for name in ("attention", "intermediate", "output"))
    inner, joined = attention._modules["self"], attention._modules["output"]
    own, first, second, rest = inner._modules, intermediate._modules, output._modules, joined._modules
    return Parts(
        inner,
        (attention, inner, joined, rest["dropout"], intermediate, output, second["dropout"]),
        (own["query"], own["key"], own["value"], rest["dense"], first["dense"], second["dense"]),
        (rest["LayerNorm"], second["LayerNorm"]),
        intermediate.intermediate_act_fn,
        inner.attention_head_size,
        inner.scaling,
    )


def _mpnet(_: Module, children: Children) -> Parts:
    attention, intermediate, output = (children[name] for name in ("attention", "intermediate", "output"))
    inner, rest, second = attention._modules["attn"], attention._modules, output._modules
    own = inner._modules
    return Parts(
        inner,
        (attention, inner, own["dropout"], rest["dropout"], intermediate, output, second["dropout"]),
        (own["q"], own["k"], own["v"], own["o"], intermediate._modules["dense"], second["dense"]),
        (rest["LayerNorm"], second["LayerNorm"]),
        intermediate.intermediate_act_fn,
        inner.attention_head_size,
        1 / math.sqrt(inner.attention_head_size),
    )


def _albert(layer: Module, children: Children) -> Parts:
    attention = children["attention"]
    own = attention._modules
    return Parts(
        attention,
        (attention, own["output_dropout"]),
        (own["query"], own["key"], own["value"], own["dense"], children["ffn"], children["ffn_output"]),
        (own["LayerNorm"], children["full_layer_layer_norm"]),
        layer.activation,
        attention.attention_head_size,
        attention.scaling,
    )


def _distilbert(_: Module, children: Children) -> Parts:
    attention, block = children["attention"], children["ffn"]
    own, inside = attention._modules, block._modules
    return Parts(
        attention,
        (attention, block, inside["dropout"]),
        (*(own[name] for name in ("q_lin", "k_lin", "v_lin", "out_lin")), inside["lin1"], inside["lin2"]),
        (children["sa_layer_norm"], children["output_layer_norm"]),
        block.activation,
        attention.attention_head_size,
        attention.scaling,
    )


def _yolos(_: Module, children: Children) -> Parts:
    attention, intermediate, output = (children[name] for name in ("attention", "intermediate", "output"))
    inner, joined = attention._modules["attention"], attention._modules["output"]
    own, rest, second = inner._modules, joined._modules, output._modules
    return Parts(
        inner,
        (attention, inner, joined, rest["dropout"], intermediate, output, second["dropout"]),
        (
            own["query"],
            own["key"],
            own["value"],
            rest["dense"],
            intermediate._modules["dense"],
            second["dense"],
        ),
        (children["layernorm_before"], children["layernorm_after"]),
        intermediate.intermediate_act_fn,
        inner.attention_head_size,
        inner.scaling,
    )


def _vit(layer: Module, children: Children) -> Parts:
    if "intermediate" in children:
        return _yolos(layer, children)
    attention, block = children["attention"], children["mlp"]
    return Parts(
        attention,
        (attention, block, children["dropout"]),
        (*_projections(attention, "o_proj"), *_of_mlp(block)),
        (children["layernorm_before"], children["layernorm_after"]),
        block.activation_fn,
        attention.head_dim,
        attention.scaling,
    )


def _dinov2(_: Module, children: Children) -> Parts:
    attention, block = children["attention"], children["mlp"]
    scales = children["layer_scale1"], children["layer_scale2"]
    return Parts(
        attention,
        (attention, block, *scales, children["drop_path"]),
        (*_projections(attention, "o_proj"), *_of_mlp(block)),
        (children["norm1"], children["norm2"]),
        block.activation_fn,
        attention.head_dim,
        attention.scaling,
        (scales[0]._parameters["lambda1"], scales[1]._parameters["lambda1"]),
    )


def _clip(_: Module, children: Children) -> Parts:
    attention, block = children["self_attn"], children["mlp"]
    return Parts(
        attention,
        (attention, block),
        (*_projections(attention, "out_proj"), *_of_mlp(block)),
        (children["layer_norm1"], children["layer_norm2"]),
        block.activation_fn,
        attention.head_dim,
        attention.scale,
    )


def _bart(layer: Module, children: Children) -> Parts:
    attention = children["self_attn"]
    return Parts(
        attention,
        (attention,),
        (*_projections(attention, "out_proj"), children["fc1"], children["fc2"]),
        (children["self_attn_layer_norm"], children["final_layer_norm"]),
        layer.activation_fn,
        attention.head_dim,
        attention.scaling,
    )


def _wav2vec2(_: Module, children: Children) -> Parts:
    attention, block = children["attention"], children["feed_forward"]
    inside = block._modules
    dropouts = children["dropout"], inside["intermediate_dropout"], inside["output_dropout"]
    return Parts(
        attention,
        (attention, block, *dropouts),
        (*_projections(attention, "out_proj"), inside["intermediate_dense"], inside["output_dense"]),
        (children["layer_norm"], children["final_layer_norm"]),
        block.intermediate_act_fn,
        attention.head_dim,
        attention.scaling,
    )


def _projections(attention: Module, last: str) -> tuple[nn.Linear, ...]:
    own = attention._modules
    return own["q_proj"], own["k_proj"], own["v_proj"], own[last]


def _of_mlp(block: Module) -> tuple[nn.Linear, nn.Linear]:
    inside = block._modules
    return inside["fc1"], inside["fc2"]


_READERS: Mapping[str, Callable[[Module, Children], Parts]] = {
    "full_layer_layer_norm": _albert,
    "sa_layer_norm": _distilbert,
    "layernorm_before": _vit,
    "layer_scale1": _dinov2,
    "layer_norm1": _clip,
    "self_attn_layer_norm": _bart,
    "feed_forward": _wav2vec2,
    "intermediate": _bert,
}
"""By a child that a layer of this kind has, and none of those before it."""


def fused_activation(parts: Parts) -> str | None:
    """The name of the activation, where calling the parts in eval mode computes what their classes say; else None."""
    within, linears, norms = parts.within, parts.linears, parts.norms
    config = parts.attention.__dict__.get("config")
    if not (
        (config is None or calls_sdpa(config))
        and _has_no_global_hooks()
        and _run_as_written(within, parts.attention)
    ):
        return None
    for module in within:
        if module.training:
            return None
    for linear in linears:
        if type(linear) is not nn.Linear:
            return None
    for norm in norms:
        if type(norm) is not nn.LayerNorm:
            return None
    return activation_name(parts.activation) if _run_as_written((*linears, *norms)) else None


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
