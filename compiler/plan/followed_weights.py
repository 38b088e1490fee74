"""Weights of an executable: frozen as they were when it was compiled, or followed as they change.

Engines copy weights, pack them, or fold them into constants, each in its own way. So a graph that is compiled holds a
snapshot of its weights that nobody else can write to, whatever the engine: what is written to the module later has no
effect. An executable that follows its module asks before each call whether the weights are still those of its snapshot,
by the weight guard that layers ask, and is made again where they are not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from kernels_hub.compiler.engines.tensors import snapshot
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.transform import bind
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.runtime.facts import Held
from kernels_hub.compiler.runtime.module_guard import ModuleGuard
from kernels_hub.compiler.runtime.toolchain import build, load

Loader = Callable[[str], Array]


def frozen(graph: Graph, load_weight: Loader | None = None) -> Graph:
    """The graph with its weights as they are now, in memory that nobody else can write to.

    load_weight: gives a weight by its name; those of the graph by default.
    """
    made = bind(graph, {})
    for name in list(made.weights):
        array = snapshot(graph.weight(name) if load_weight is None else load_weight(name))
        array.flags.writeable = False
        made.weights[name] = array
    return made


class Followed:
    """The weights of a module that a graph was imported from. trace: imports it again."""

    def __init__(self, module: nn.Module, graph: Graph, trace: Callable[[], Graph]) -> None:
        self._module, self._trace = module, trace
        self._ties: frozenset[tuple[str, ...]] = frozenset()
        """Names that stand for one weight."""
        self._take(graph)

    def graph(self) -> Graph:
        """The graph with a snapshot of the weights that are there now, which `holds` compares with from here on."""
        before = self._ties
        self._guard = self._made_guard()
        self._ties = _ties(self._tensors())
        if before != self._ties or any(
            name in self._types and self._types[name] != _type(one) for name, one in self._tensors().items()
        ):
            self._take(self._trace())
        return frozen(self._graph, self._load)

    def holds(self, *, whole: bool = False) -> bool:
        """Whether weights are those of the last snapshot, as far as is compared now. whole: all of them is."""
        own = self._module.__dict__
        return self._guard.holds_all(own) if whole else self._guard.holds(own)

    def took(self, elapsed: int) -> None:
        """A call took so many nanoseconds."""
        self._guard.took(elapsed)

    def _take(self, graph: Graph) -> None:
        self._graph = graph
        tensors = self._tensors()
        self._types = {name: _type(one) for name, one in tensors.items()}
        self._ties = _ties(tensors)
        self._guard = self._made_guard()

    def _load(self, name: str) -> Array:
        from kernels_hub.compiler.importers.torch_export import array_of

        tensor = self._tensors().get(name)
        return self._graph.weight(name) if tensor is None else array_of(tensor)

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by all of their names, as the module holds them now."""
        module = self._module
        return {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }

    def _made_guard(self) -> ModuleGuard:
        held: list[Held] = []
        for module in self._module.modules():
            for table in (module._modules, module._parameters, module._buffers):
                held += (Held(table, name, value) for name, value in table.items())
        tensors = list(
            {id(one.value): one.value for one in held if isinstance(one.value, torch.Tensor)}.values()
        )
        counted = [tensor for tensor in tensors if not tensor.is_inference()]  # the others count no versions
        return ModuleGuard(self._module.__dict__, held, (), tensors, counted, tensors, _library())


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    try:
        return load(build('#include "module_guard.h"\n', "module_guard"))
    except (OSError, RuntimeError):  # no compiler, or one that fails: PyTorch compares
        return None


def _type(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def _ties(tensors: Mapping[str, torch.Tensor]) -> frozenset[tuple[str, ...]]:
    """The names of tensors that share their memory."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, one in tensors.items():
        if one.numel():
            groups.setdefault((one.data_ptr(), one.shape, one.stride()), []).append(name)
    return frozenset(tuple(names) for names in groups.values() if len(names) > 1)
