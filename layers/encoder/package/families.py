"""The parts of layers of encoders under the names of those who wrote them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from torch import Tensor, nn

from .parts import Module, Parts

Children = Mapping[str, Module]
Linears = tuple[nn.Linear, nn.Linear, nn.Linear]


def parts_of(layer: nn.Module) -> Parts:
    """The parts of a layer, whatever they are by now. Raises KeyError and AttributeError for a module of another kind.

    Read from the module's dictionaries: its attributes cost half a microsecond each.
    """
    children: Mapping[str, Module] = (
        layer._modules
    )  # whether they are still what is expected is asked at every call
    for name, read in _READERS.items():
        if name in children:
            return read(layer, children)
    raise AttributeError(f"{type(layer).__name__} is no layer of an encoder that is known here")


def _bert(layer: Module, children: Children) -> Parts:
    if "attn" in children["attention"]._modules:
        return _mpnet(layer, children)
    attention, intermediate, output = (children[name] for name in ("attention", "intermediate", "output"))
    inner, joined = attention._modules["self"], attention._modules["output"]
    rest, second = joined._modules, output._modules
    return Parts(
        inner,
        (attention, inner, joined, rest["dropout"], intermediate, output, second["dropout"]),
        _named(inner, "query", "key", "value"),
        (rest["dense"], intermediate._modules["dense"], second["dense"]),
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
        _named(inner, "q", "k", "v"),
        (own["o"], intermediate._modules["dense"], second["dense"]),
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
        _named(attention, "query", "key", "value"),
        (own["dense"], children["ffn"], children["ffn_output"]),
        (own["LayerNorm"], children["full_layer_layer_norm"]),
        layer.activation,
        attention.attention_head_size,
        attention.scaling,
    )


def _distilbert(_: Module, children: Children) -> Parts:
    attention, block = children["attention"], children["ffn"]
    inside = block._modules
    return Parts(
        attention,
        (attention, block, inside["dropout"]),
        _named(attention, "q_lin", "k_lin", "v_lin"),
        (attention._modules["out_lin"], inside["lin1"], inside["lin2"]),
        (children["sa_layer_norm"], children["output_layer_norm"]),
        block.activation,
        attention.attention_head_size,
        attention.scaling,
    )


def _yolos(_: Module, children: Children) -> Parts:
    attention, intermediate, output = (children[name] for name in ("attention", "intermediate", "output"))
    inner, joined = attention._modules["attention"], attention._modules["output"]
    rest, second = joined._modules, output._modules
    return Parts(
        inner,
        (attention, inner, joined, rest["dropout"], intermediate, output, second["dropout"]),
        _named(inner, "query", "key", "value"),
        (rest["dense"], intermediate._modules["dense"], second["dense"]),
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
        _named(attention, "q_proj", "k_proj", "v_proj"),
        _then_mlp(attention, "o_proj", block),
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
        _named(attention, "q_proj", "k_proj", "v_proj"),
        _then_mlp(attention, "o_proj", block),
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
        _named(attention, "q_proj", "k_proj", "v_proj"),
        _then_mlp(attention, "out_proj", block),
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
        _named(attention, "q_proj", "k_proj", "v_proj"),
        (attention._modules["out_proj"], children["fc1"], children["fc2"]),
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
        _named(attention, "q_proj", "k_proj", "v_proj"),
        (attention._modules["out_proj"], inside["intermediate_dense"], inside["output_dense"]),
        (children["layer_norm"], children["final_layer_norm"]),
        block.intermediate_act_fn,
        attention.head_dim,
        attention.scaling,
    )


def _torch(layer: Module, children: Children) -> Parts:
    attention = _checked(children["self_attn"])
    return Parts(
        attention,
        (attention, children["dropout"], children["dropout1"], children["dropout2"]),
        (),
        (attention._modules["out_proj"], children["linear1"], children["linear2"]),
        (children["norm1"], children["norm2"]),
        layer.activation,
        attention.head_dim,
        1 / math.sqrt(attention.head_dim),
    )


def _timm(_: Module, children: Children) -> Parts:
    attention, block = children["attn"], children["mlp"]
    own, inside, scales = attention._modules, block._modules, (children["ls1"], children["ls2"])
    if own.get("gate") is not None:
        raise AttributeError("a gate")
    idle = own["q_norm"], own["k_norm"], own["norm"], inside["norm"]
    if any(type(norm) is not nn.Identity for norm in idle):
        raise AttributeError("norms of queries and keys, or of what is between")
    dropouts = (
        own["proj_drop"],
        inside["drop1"],
        inside["drop2"],
        children["drop_path1"],
        children["drop_path2"],
    )
    return Parts(
        attention,
        (attention, block, *idle, *scales, *dropouts),
        (own["qkv"],),
        (own["proj"], inside["fc1"], inside["fc2"]),
        (children["norm1"], children["norm2"]),
        block.act,
        attention.head_dim,
        attention.head_dim**-0.5,
        (_gamma(scales[0]), _gamma(scales[1])),
    )


def _torchvision(_: Module, children: Children) -> Parts:
    attention, block = children["self_attention"], children["mlp"]
    first, activation, dropout, second, last = block._modules.values()
    return Parts(
        attention,
        (attention, block, children["dropout"], dropout, last),
        (),
        (_checked(attention)._modules["out_proj"], first, second),
        (children["ln_1"], children["ln_2"]),
        activation,
        attention.head_dim,
        1 / math.sqrt(attention.head_dim),
    )


def _checked(attention: Module) -> Module:
    """A torch.nn.MultiheadAttention whose keys and values are projections of the input, and nothing else."""
    if not attention._qkv_same_embed_dim or attention.bias_k is not None or attention.add_zero_attn:
        raise AttributeError("keys and values that are not projections of the input")
    return attention


def _gamma(scale: Module) -> Tensor | None:
    return None if type(scale) is nn.Identity else scale._parameters["gamma"]


def _named(module: Module, *names: str) -> tuple[nn.Linear, ...]:
    own = module._modules
    return tuple([own[name] for name in names])


def _then_mlp(attention: Module, last: str, block: Module) -> Linears:
    inside = block._modules
    return attention._modules[last], inside["fc1"], inside["fc2"]


_READERS: Mapping[str, Callable[[Module, Children], Parts]] = {
    "full_layer_layer_norm": _albert,
    "sa_layer_norm": _distilbert,
    "layernorm_before": _vit,
    "layer_scale1": _dinov2,
    "layer_norm1": _clip,
    "self_attn_layer_norm": _bart,
    "feed_forward": _wav2vec2,
    "intermediate": _bert,
    "linear1": _torch,
    "ls1": _timm,
    "ln_1": _torchvision,
}
"""By a child that a layer of this kind has, and none of those before it."""
