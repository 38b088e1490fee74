"""What the tests of emission compile: small modules, and the models that they are layers of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim

BATCH, LENGTH = Dim("batch"), Dim("length")


class GatedMLP(nn.Module):
    """As Llama's."""

    def __init__(self, size: int = 64, inner: int = 96) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Normed(nn.Module):
    """Something of everything: a folded norm, tied weights, a buffer, dropout, a number, several arguments."""

    def __init__(self, size: int = 48) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(size)
        self.linear = nn.Linear(size, size)
        self.other = nn.Linear(size, size)
        self.other.weight = self.linear.weight
        self.dropout = nn.Dropout(0.3)
        self.scale = 1.5
        self.index = 3
        self.table = torch.tensor([1.0, 0.5])
        self.register_buffer("shift", torch.linspace(-1, 1, size))
        with torch.no_grad():
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2)
            self.norm.weight.normal_()

    def forward(
        self, x: torch.Tensor, pair: Any = None, *, double: bool = False, **more: Any
    ) -> dict[str, Any]:
        hidden = self.linear(self.norm(x)) * self.scale * self.table[1] + self.shift
        if pair is not None:
            hidden = hidden + pair[0] * pair[1]
        out = self.other(self.dropout(hidden))
        return {"out": out * 2 if double else out, "both": (hidden, None)}


@dataclass(frozen=True)
class Case:
    """A module, its example arguments, and inputs of other sizes for it."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic_shapes: Any


def gated_mlp() -> Case:
    torch.manual_seed(1)
    return Case(GatedMLP(), (torch.randn(2, 5, 64),), {}, {"x": {0: BATCH, 1: LENGTH}})


def normed() -> Case:
    torch.manual_seed(2)
    rows = {0: BATCH}
    args = (torch.randn(4, 48), (torch.randn(4, 48), torch.randn(48)))
    return Case(Normed(), args, {"double": True}, {"x": rows, "pair": (rows, None), "double": None})


def bert(**changes: Any) -> nn.Module:
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    config = BertConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=50,
        **changes,
    )
    return BertModel(config).eval()


def token_ids(batch: int = 2, length: int = 7) -> torch.Tensor:
    return torch.arange(batch * length).reshape(batch, length) % 50


def llama(**changes: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(4)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=50,
        **changes,
    )
    return LlamaModel(config).eval()


def write_onnx(path: Path) -> None:
    """An encoder block: attention of one head, and a norm, with symbolic batch and length."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(5)
    size = 32

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(
            (random.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32), name
        )

    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["embedded"]),
        *(helper.make_node("MatMul", ["embedded", f"layer.{one}.weight"], [one]) for one in "qkv"),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["raw"]),
        helper.make_node("Mul", ["raw", "root"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["mixed"]),
        helper.make_node("Add", ["mixed", "embedded"], ["summed"]),
        helper.make_node("LayerNormalization", ["summed", "norm.scale", "norm.bias"], ["last"], axis=-1),
    ]
    weights = [
        weight("table", 40, size),
        *(weight(f"layer.{one}.weight", size, size) for one in "qkv"),
        numpy_helper.from_array(np.float32(size**-0.5), "root"),
        weight("norm.scale", size),
        weight("norm.bias", size),
    ]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("last", TensorProto.FLOAT, ["batch", "length", size])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
