"""The kinds of layers that are measured: how a module's shape is read, and how a module of a shape is made.

A kind has the name of a layer in mapping files. Its columns and depth are those of its (first) product; a layer
without one has a depth of its own: a norm its width, an activation 1. A row is what a module does to one token, one
pixel, or (of an activation) one element; so many elements of the first argument make a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kernels_hub.calibration.convolution_kinds import CONVOLUTIONS
from kernels_hub.calibration.gain_table import Shape
from kernels_hub.calibration.kind import ELEMENTS, Arguments, Build, Kind, Layer, Read, product
from kernels_hub.calibration.pooling_kinds import POOLINGS

if TYPE_CHECKING:
    from torch import nn

ROWS = (1, 2, 4, 16, 64, 256, 1024)
_WIDTHS = (64, 128, 256, 512, 1024, 2048, 4096)


def read_shape(layer: str, module: Layer) -> tuple[Shape, int] | None:
    """The shape of a module, and the elements of its first argument that make a row; None where it has none."""
    own_read = _READ_AS.get(layer)
    layer = _MEASURED_AS.get(layer, layer)
    kind = KINDS.get(layer)
    if kind is None:
        return None
    try:
        form, depth, columns, width = (own_read or kind.read)(module)
        dtype = _dtype(module)
    except (AttributeError, LookupError, TypeError, StopIteration, ZeroDivisionError):
        return None
    return Shape(f"{layer} {form}" if form else layer, dtype, depth, columns), width


def rows_of(shape: Shape) -> list[int]:
    """The classes of rows that are measured for a class of shape."""
    layer, form = split_kind(shape.kind)
    kind = KINDS.get(layer)
    if kind is None:
        return []
    measured = kind.rows
    if is_from_memory(shape):
        is_wide = kind.rows is ROWS and shape.depth >= _LEAST_DEPTH_FROM_MEMORY
        measured = [rows for rows in ROWS if is_wide and rows <= _MOST_ROWS_FROM_MEMORY]
    try:
        return [
            rows for rows in measured if kind.work(form, shape.depth, shape.columns, rows) <= kind.most_work
        ]
    except (ImportError, ValueError):  # a form that is not measured
        return []


def split_kind(name: str) -> tuple[str, str]:
    """The layer and the form of a shape's kind."""
    layer, _, form = name.removesuffix(_FROM_MEMORY).partition(" ")
    return layer, form


_FROM_MEMORY = " from memory"
_MOST_ROWS_FROM_MEMORY = 16
"""Of more, the products take longer than reading the weights does."""
_LEAST_DEPTH_FROM_MEMORY = 256
"""Of less, calling takes longer than reading the weights does."""


def from_memory(shape: Shape) -> Shape:
    """The same shape in a model of which no cache holds the weights: each call reads the module's from memory."""
    return replace(shape, kind=shape.kind + _FROM_MEMORY)


def is_from_memory(shape: Shape) -> bool:
    """Whether `from_memory` made it."""
    return shape.kind.endswith(_FROM_MEMORY)


def _dtype(module: Layer) -> str:
    for each in (module, *module.modules()):
        for tensor in each._parameters.values():
            if tensor is not None:
                return str(tensor.dtype).removeprefix("torch.")
    return "float32"  # an activation: its inputs are not known yet


# -- linear layers and feed-forward blocks -----------------------------------------------------------


def _read_linear(module: Layer) -> tuple[str, int, int, int]:
    return "", module.in_features, module.out_features, module.in_features


def _read_conv1d(module: Layer) -> tuple[str, int, int, int]:
    return "", module.nx, module.nf, module.nx


def _read_first_linear(module: Layer) -> tuple[str, int, int, int]:
    return _read_linear(next(child for child in module._modules.values() if hasattr(child, "in_features")))


def _linear(_: str, depth: int, columns: int) -> nn.Module:
    from torch import nn

    return nn.Linear(depth, columns)


def _conv1d(_: str, depth: int, columns: int) -> nn.Module:
    return _of_transformers("pytorch_utils", "Conv1D")(columns, depth)  # type: ignore[no-any-return]


def _linear_activation(_: str, depth: int, columns: int) -> nn.Module:
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertIntermediate

    return BertIntermediate(BertConfig(hidden_size=depth, intermediate_size=columns, num_attention_heads=1))


def _mlp(_: str, depth: int, columns: int) -> nn.Module:
    from transformers import ViTConfig
    from transformers.models.vit.modeling_vit import ViTMLP

    return ViTMLP(ViTConfig(hidden_size=depth, intermediate_size=columns, num_attention_heads=1))


def _gated_mlp(_: str, depth: int, columns: int) -> nn.Module:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    return LlamaMLP(LlamaConfig(hidden_size=depth, intermediate_size=columns, num_attention_heads=1))


def _read_joined_mlp(module: Layer) -> tuple[str, int, int, int]:
    depth, columns = module.gate_up_proj.in_features, module.gate_up_proj.out_features // 2
    return "", depth, columns, depth


def _joined_gated_mlp(_: str, depth: int, columns: int) -> nn.Module:
    from transformers import Phi3Config

    config = Phi3Config(hidden_size=depth, intermediate_size=columns, num_attention_heads=1, pad_token_id=0)
    return _of_transformers("models.phi3.modeling_phi3", "Phi3MLP")(config)  # type: ignore[no-any-return]


def _tokens(_: str, depth: int, __: int, rows: int) -> list[Arguments]:
    import torch

    return [((torch.randn(1, rows, depth),), {})]


_LINEAR_SIZES = [
    *(("", depth, columns) for depth in _WIDTHS for columns in _WIDTHS),
    *(("", depth, 1 << 15) for depth in (256, 512, 1024, 2048)),
]
_CONV1D_SIZES = [
    ("", depth, columns) for depth in _WIDTHS for columns in _WIDTHS if depth / 4 <= columns <= 4 * depth
]
_BLOCK_SIZES = [
    ("", depth, columns) for depth in _WIDTHS for columns in (*_WIDTHS, 8192) if depth <= columns <= 4 * depth
]

# -- attention ---------------------------------------------------------------------------------------


def _read_joined(names: tuple[str, str], width_of_a_head: str) -> Read:
    def read(module: Layer) -> tuple[str, int, int, int]:
        query, key = (module._modules[name] for name in names)
        shared = query.out_features // key.out_features
        return f"1:{shared}", query.in_features, getattr(module, width_of_a_head), query.in_features

    return read


def _read_joined_rotary(module: Layer) -> tuple[str, int, int, int]:
    depth, shared = (
        module.qkv_proj.in_features,
        module.config.num_attention_heads // module.num_key_value_heads,
    )
    return f"1:{shared}", depth, module.head_dim, depth


def _read_head_by_head(width_of_a_head: str) -> Read:
    def read(module: Layer) -> tuple[str, int, int, int]:
        depth = module.query_key_value.in_features
        return "1:1", depth, getattr(module, width_of_a_head), depth

    return read


def _encoder_attention(_: str, depth: int, columns: int) -> nn.Module:
    from transformers import ViTConfig
    from transformers.models.vit.modeling_vit import ViTAttention

    config = ViTConfig(hidden_size=depth, num_attention_heads=depth // columns)
    config._attn_implementation = "sdpa"
    return ViTAttention(config)


def _self_attention(_: str, depth: int, columns: int) -> nn.Module:
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertSelfAttention

    config = BertConfig(hidden_size=depth, num_attention_heads=depth // columns)
    config._attn_implementation = "sdpa"
    return BertSelfAttention(config)


def _rotary_attention(form: str, depth: int, columns: int) -> nn.Module:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention

    heads, shared = depth // columns, int(form.partition(":")[2])
    config = LlamaConfig(
        hidden_size=depth, num_attention_heads=heads, num_key_value_heads=heads // shared, head_dim=columns
    )
    config._attn_implementation = "sdpa"
    return LlamaAttention(config, 0)


def _sequences(_: str, depth: int, __: int, rows: int) -> list[Arguments]:
    import torch

    shapes = [(1, rows), *([(4, rows // 4)] if rows >= 16 else [])]
    return [((torch.randn(*shape, depth),), {}) for shape in shapes]


def _rotary_sequences(form: str, depth: int, columns: int, rows: int) -> list[Arguments]:
    import torch

    rotary_sequences: list[Arguments] = []
    for (hidden,), _ in _sequences(form, depth, columns, rows):
        angles = torch.randn(1, hidden.shape[1], columns)
        given: dict[str, Any] = {"position_embeddings": (angles.cos(), angles.sin()), "attention_mask": None}
        rotary_sequences.append(((hidden,), given))
    return rotary_sequences


def _sink_attention(form: str, depth: int, columns: int) -> nn.Module:
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention

    heads, shared = depth // columns, int(form.partition(":")[2])
    config = GptOssConfig(
        hidden_size=depth, num_attention_heads=heads, num_key_value_heads=heads // shared, head_dim=columns
    )
    config._attn_implementation = "eager"
    module = GptOssAttention(config, 0)
    module.sinks.data.zero_()
    return module


def _sink_sequences(form: str, depth: int, columns: int, rows: int) -> list[Arguments]:
    import torch

    sink_sequences: list[Arguments] = []
    for (hidden,), _ in _sequences(form, depth, columns, rows):
        length = hidden.shape[1]
        angles = torch.randn(1, length, columns // 2)
        mask = torch.full((1, 1, length, length), torch.finfo(torch.bfloat16).min).triu(1)
        given: dict[str, Any] = {"position_embeddings": (angles.cos(), angles.sin()), "attention_mask": mask}
        sink_sequences.append(((hidden,), given))
    return sink_sequences


# -- layers of encoders ------------------------------------------------------------------------------


def _read_encoder(module: Layer) -> tuple[str, int, int, int]:
    """The width, and the widest linear layer's: that of the feed-forward block."""
    norm = next(child for child in module.modules() if hasattr(child, "normalized_shape"))
    width = norm.normalized_shape[0]
    widest = max(child.out_features for child in module.modules() if hasattr(child, "out_features"))
    return "", width, widest, width


def _encoder(_: str, depth: int, columns: int) -> nn.Module:
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    heads = max(1, depth // _WIDTH_OF_A_HEAD)
    config = BertConfig(hidden_size=depth, intermediate_size=columns, num_attention_heads=heads)
    config._attn_implementation = "sdpa"
    return BertLayer(config)


_WIDTH_OF_A_HEAD = 64
_ENCODER_SIZES = [("", depth, columns * depth) for depth in _WIDTHS[:-1] for columns in (1, 2, 4)]


def _attention_sizes(*forms: str) -> list[tuple[str, int, int]]:
    return [
        (form, depth, columns)
        for form in forms
        for depth in (64, 128, 256, 512, 1024, 2048)
        for columns in (32, 64, 128)
        if depth // columns >= int(form.partition(":")[2])
    ]


# -- norms and activations ---------------------------------------------------------------------------


def _read_norm(module: Layer) -> tuple[str, int, int, int]:
    width = module.weight.numel()
    return "", width, 1, width


def _norm(modeling: str, name: str) -> Build:
    def build(_: str, depth: int, __: int) -> nn.Module:
        return _of_transformers(modeling, name)(depth)  # type: ignore[no-any-return]

    return build


def _torch_norm(_: str, depth: int, __: int) -> nn.Module:
    from torch import nn

    return nn.RMSNorm(depth)


def _read_activation(_: Layer) -> tuple[str, int, int, int]:
    return "", 1, 1, 1


def _build_activation(name: str) -> Build:
    def build(_: str, __: int, ___: int) -> nn.Module:
        from torch import nn

        own = getattr(nn, name, None)
        return (own or _of_transformers("activations", name))()  # type: ignore[no-any-return]

    return build


def _of_transformers(module: str, name: str) -> Layer:
    import importlib

    try:
        return getattr(importlib.import_module(f"transformers.{module}"), name)
    except AttributeError as error:
        raise ImportError(str(error)) from error


def _elements(_: str, __: int, ___: int, rows: int) -> list[Arguments]:
    import torch

    return [((torch.randn(rows),), {})]


def _passes(factor: int) -> Callable[[str, int, int, int], float]:
    return lambda _, depth, __, rows: float(factor * depth * rows)


def _norm_kind(build: Build) -> Kind:
    rows = (1, 4, 16, 64, 256, 1024)
    return Kind(_read_norm, build, _tokens, rows, [("", depth, 1) for depth in _WIDTHS], _passes(50))


def _activation_kind(name: str) -> Kind:
    return Kind(_read_activation, _build_activation(name), _elements, ELEMENTS, [("", 1, 1)], _passes(50))


KINDS: Mapping[str, Kind] = {
    "Linear": Kind(_read_linear, _linear, _tokens, ROWS, _LINEAR_SIZES, product(1)),
    "Conv1D": Kind(_read_conv1d, _conv1d, _tokens, ROWS, _CONV1D_SIZES, product(1)),
    "LinearActivation": Kind(
        _read_first_linear, _linear_activation, _tokens, ROWS, _BLOCK_SIZES, product(1)
    ),
    "MLP": Kind(_read_first_linear, _mlp, _tokens, ROWS, _BLOCK_SIZES, product(2)),
    "GatedMLP": Kind(_read_first_linear, _gated_mlp, _tokens, ROWS, _BLOCK_SIZES, product(3)),
    "JoinedGatedMLP": Kind(
        _read_joined_mlp, _joined_gated_mlp, _tokens, ROWS, _BLOCK_SIZES, product(3)
    ),
    **CONVOLUTIONS,
    "EncoderAttention": Kind(
        _read_joined(("q_proj", "k_proj"), "head_dim"), _encoder_attention, _sequences, ROWS,
        _attention_sizes("1:1"), product(16),
    ),
    "SelfAttention": Kind(
        _read_joined(("query", "key"), "attention_head_size"), _self_attention, _sequences, ROWS,
        _attention_sizes("1:1"), product(16),
    ),
    "BertEncoderLayer": Kind(
        _read_encoder, _encoder, _sequences, ROWS, _ENCODER_SIZES, product(4), most_work=2e10
    ),
    "RotaryAttention": Kind(
        _read_joined(("q_proj", "k_proj"), "head_dim"), _rotary_attention, _rotary_sequences, ROWS,
        _attention_sizes("1:1", "1:2", "1:4"), product(16),
    ),
    "SinkAttention": Kind(
        _read_joined(("q_proj", "k_proj"), "head_dim"), _sink_attention, _sink_sequences, ROWS,
        _attention_sizes("1:1", "1:2", "1:4", "1:8"), product(16),
    ),
    "RMSNorm": _norm_kind(_norm("models.llama.modeling_llama", "LlamaRMSNorm")),
    "RMSNormRoundedOnce": _norm_kind(_norm("models.gpt_oss.modeling_gpt_oss", "GptOssRMSNorm")),
    "RMSNormZeroCentered": _norm_kind(_norm("models.gemma.modeling_gemma", "GemmaRMSNorm")),
    "TorchRMSNorm": _norm_kind(_torch_norm),
    "SiLU": _activation_kind("SiLU"),
    "GELU": _activation_kind("GELU"),
    "GeluTanh": _activation_kind("GELUTanh"),
    "FastGELU": _activation_kind("FastGELUActivation"),
    "NewGELU": _activation_kind("NewGELUActivation"),
    "QuickGELU": _activation_kind("QuickGELUActivation"),
    **POOLINGS,
}  # fmt: skip


_MEASURED_AS = {
    "PreNormEncoderLayer": "BertEncoderLayer",
    "UnmaskedEncoderLayer": "BertEncoderLayer",
    "PostNormEncoderLayer": "BertEncoderLayer",
    "BiasedEncoderLayer": "BertEncoderLayer",
    "TorchEncoderLayer": "BertEncoderLayer",
    "JoinedEncoderLayer": "BertEncoderLayer",
    "MultiheadEncoderLayer": "BertEncoderLayer",
    "ClipAttention": "EncoderAttention",
    "EncoderDecoderAttention": "EncoderAttention",
    "WhisperAttention": "EncoderAttention",
    "OptAttention": "EncoderAttention",
    "Wav2Vec2Attention": "EncoderAttention",
    "UnmaskedSelfAttention": "SelfAttention",
    "NormedRotaryAttention": "RotaryAttention",
    "NormedRotaryAttentionCastBack": "RotaryAttention",
    "JoinedRotaryAttention": "RotaryAttention",
    "OptionalRotaryAttention": "RotaryAttention",
    "InterleavedRotaryAttention": "RotaryAttention",
    "InterleavedRotaryAttentionInPart": "RotaryAttention",
    "PhiAttention": "RotaryAttention",
    "GptNeoxAttention": "RotaryAttention",
    "BloomAttention": "SinkAttention",
    "SoftcappedRotaryAttention": "SinkAttention",
}
"""Layers that compute what another does, but for what PyTorch computes for both (norms) or their parts' names."""
_READ_AS: Mapping[str, Read] = {
    "JoinedRotaryAttention": _read_joined_rotary,
    "GptNeoxAttention": _read_head_by_head("head_size"),
    "BloomAttention": _read_head_by_head("head_dim"),
}
"""How the shape of one of them is read, where that is not as the other's."""
MEASURED = frozenset({*KINDS, *_MEASURED_AS})
"""Layers whose gains can be known."""


@lru_cache(maxsize=4096)
def class_of(shape: Shape) -> Shape:
    """The class of shape that is measured for a shape: its own, or its kind's largest where it is larger still."""
    cell = shape.cell
    layer, form = split_kind(cell.kind)
    if layer not in KINDS:
        return cell
    if is_from_memory(cell):
        return from_memory(class_of(replace(cell, kind=cell.kind.removesuffix(_FROM_MEMORY))))
    measured = {each for each in shapes(layer, cell.dtype) if split_kind(each.kind)[1] == form}
    depth = min(cell.depth, max((each.depth for each in measured), default=cell.depth))
    of_depth = [each.columns for each in measured if each.depth == depth]
    largest = Shape(cell.kind, cell.dtype, depth, min(cell.columns, max(of_depth, default=cell.columns)))
    return largest if largest in measured else cell


def shapes(layer: str, dtype: str) -> list[Shape]:
    """The classes of shape of a kind that `kernels-hub calibrate` measures, but for those of `from_memory`."""
    return [
        Shape(f"{layer} {form}" if form else layer, dtype, depth, columns).cell
        for form, depth, columns in KINDS[layer].sizes
    ]
