"""Small modules with example arguments, traced; gradients of theirs by torch, by the oracle, and compiled."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from kernels_hub.compiler import Graph, compile, import_torch
from kernels_hub.compiler.autodiff import Differentiated, differentiate
from kernels_hub.compiler.engines.tensors import to_array, to_tensor
from kernels_hub.compiler.importers.torch_trace import paths_of
from kernels_hub.compiler.rewrite.fold import FoldParameters
from kernels_hub.compiler.rewrite.pipeline import INFERENCE_PASS, PIPELINE, rewrite
from tests.compiler.export.emitted_layers import BATCH, LENGTH, bert, gated_mlp, llama, token_ids

UNFOLDED = tuple(one for one in PIPELINE if one is not INFERENCE_PASS and not isinstance(one, FoldParameters))
"""Without the pass that leaves out where gradients end."""


@dataclass(frozen=True)
class Sample:
    """A module and arguments of a call by name; floats among them get gradients where they require them."""

    module: nn.Module
    args: Mapping[str, Any]
    dynamic_shapes: Mapping[str, Any]


class LayerNormBlock(nn.Module):
    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class SoftmaxHead(nn.Module):
    """A classifier with its loss."""

    def __init__(self, size: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.linear = nn.Linear(size, classes)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.linear(x)
        picked = logits.log_softmax(-1).gather(-1, target.unsqueeze(-1))
        return -picked.mean(), logits.softmax(-1)


class Embedded(nn.Module):
    """Tied: the table gathers and multiplies."""

    def __init__(self, words: int = 12, size: int = 8) -> None:
        super().__init__()
        self.table = nn.Embedding(words, size)
        self.linear = nn.Linear(size, size)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.linear(self.table(ids)).tanh() @ self.table.weight.T


class ConvBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 4)
        self.conv = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.out = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.silu(self.conv(nn.functional.relu(self.norm(x))))
        return self.out(nn.functional.max_pool2d(hidden, 2).mean((2, 3)))


class Rotated(nn.Module):
    """One layer of a Llama, with the tables of its rotary embedding as arguments."""

    def __init__(self, heads: int | None = None) -> None:
        super().__init__()
        self.layer = llama(**({} if heads is None else {"num_key_value_heads": heads})).layers[0]

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return self.layer(x, position_embeddings=(cos, sin), attention_mask=None)


def _rotary_tables(length: int, width: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.outer(torch.arange(length), 10 ** -torch.linspace(0, 2, width // 2))
    angles = torch.cat([angles, angles], -1).unsqueeze(0)
    return angles.cos(), angles.sin()


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)).requires_grad_()


def _rotated(heads: int | None = None) -> Sample:
    torch.manual_seed(5)
    cos, sin = _rotary_tables(6)
    dims = {"x": {0: BATCH, 1: LENGTH}, "cos": {1: LENGTH}, "sin": {1: LENGTH}}
    return Sample(Rotated(heads), {"x": _x(2, 6, 64), "cos": cos, "sin": sin}, dims)


def _bert() -> Sample:
    layer = bert(attn_implementation="eager").encoder.layer[0]
    return Sample(layer, {"hidden_states": _x(2, 5, 64)}, {"hidden_states": {0: BATCH, 1: LENGTH}})


def _seeded(module: type[nn.Module]) -> nn.Module:
    torch.manual_seed(6)
    return module()


SAMPLES = {
    "gated_mlp": lambda: Sample(gated_mlp().module, {"x": _x(2, 5, 64)}, {"x": {0: BATCH, 1: LENGTH}}),
    "layer_norm_block": lambda: Sample(_seeded(LayerNormBlock), {"x": _x(3, 4, 16)}, {"x": {0: BATCH, 1: LENGTH}}),
    "llama": _rotated,
    "llama_grouped": lambda: _rotated(2),
    "bert": _bert,
    "softmax_head": lambda: Sample(_seeded(SoftmaxHead), {"x": _x(6, 16), "target": torch.arange(6) % 10},
                                   {"x": {0: BATCH}, "target": {0: BATCH}}),
    "embedded": lambda: Sample(_seeded(Embedded), {"ids": token_ids(2, 5) % 12}, {"ids": {0: BATCH, 1: LENGTH}}),
    "conv_block": lambda: Sample(_seeded(ConvBlock), {"x": _x(2, 4, 9, 8)}, {"x": {0: BATCH}}),
}  # fmt: skip


def traced(sample: Sample, dtype: torch.dtype) -> tuple[nn.Module, dict[str, Any], Graph]:
    """The module and its arguments in a dtype, and the graph after rewriting."""
    module = copy.deepcopy(sample.module).to(dtype).eval()
    args = {
        name: one.detach().to(dtype).requires_grad_(one.requires_grad) if one.is_floating_point() else one
        for name, one in sample.args.items()
    }
    graph = import_torch(module, (), args, dynamic_shapes=dict(sample.dynamic_shapes))
    return module, args, rewrite(graph, UNFOLDED).graph


def torch_gradients(
    module: nn.Module, args: Mapping[str, Any], cotangents: list[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Input or parameter -> its gradient by autograd."""
    result = module(**args)
    outputs = [one for one in (result if isinstance(result, tuple) else (result,)) if one is not None]
    given = dict(zip(paths_of(module, (), dict(args)), args.values(), strict=True))
    asked = {name: one for name, one in (*given.items(), *module.named_parameters()) if one.requires_grad}
    found = torch.autograd.grad(outputs, list(asked.values()), cotangents)
    return dict(zip(asked, found, strict=True))


def cotangents_of(module: nn.Module, args: Mapping[str, Any]) -> list[torch.Tensor]:
    """Seeded gradients of the module's results."""
    result = module(**args)
    outputs = result if isinstance(result, tuple) else (result,)
    random = torch.Generator().manual_seed(8)
    return [torch.randn(one.shape, generator=random).to(one.dtype) for one in outputs if one is not None]


def derived(graph: Graph, module: nn.Module, args: Mapping[str, Any]) -> Differentiated:
    """What a training layer would be made of: gradients of what requires them."""
    asked = [name for name, one in args.items() if isinstance(one, torch.Tensor) and one.requires_grad]
    return differentiate(
        graph, [*asked, *(name for name in graph.parameters if not _is_buffer(module, name))]
    )


def _is_buffer(module: nn.Module, name: str) -> bool:
    return name in dict(module.named_buffers())


def compiled_gradients(
    both: Differentiated, args: Mapping[str, Any], cotangents: list[torch.Tensor], engines: Any
) -> dict[str, torch.Tensor]:
    """By compiled forward and backward graphs, rewritten."""
    graphs = [rewrite(one, UNFOLDED).graph for one in (both.forward, both.backward)]
    arrays = {name: to_array(one.detach(), both.forward.inputs[name].dtype) for name, one in args.items()}
    forward, backward = (compile(one, "cpu", engines=engines, rewrite=False) for one in graphs)
    outputs = forward(*(to_tensor(np.array(arrays[name])) for name in both.forward.inputs))
    outputs = dict(
        zip(both.forward.outputs, outputs if isinstance(outputs, (tuple, list)) else [outputs], strict=True)
    )
    named = both.backward_inputs(dict(args), outputs, dict(zip(both.outputs, cotangents, strict=True)))
    found = backward(*(one.detach().contiguous() for one in named.values()))
    found = found if isinstance(found, (tuple, list)) else [found]
    by_name = dict(zip(both.backward.outputs, found, strict=True))
    return {name: by_name[one] for name, one in both.gradients.items()}
