"""Weights of an executable: frozen as they were when it was compiled, or followed as they change.

Engines copy weights, pack them, or fold them into constants, each in its own way. So a graph that is compiled holds a
snapshot of its weights that nobody else can write to, whatever the engine: what is written to the module later has no
effect. An executable that follows its module asks before each call whether the weights are still those of its snapshot,
by the weight guard that layers ask, and is made again where they are not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from kernels_hub.compiler.engines.tensors import snapshot
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.transform import bind
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.runtime.facts import HasKeys, Held
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


@dataclass(frozen=True)
class _Form:
    """All that a graph depends on beside what weights hold: another form, another trace."""

    tensors: dict[str, tuple[torch.Size, torch.dtype]]
    ties: frozenset[tuple[str, ...]]
    modules: dict[str, tuple[nn.Module, type[nn.Module], tuple[int, ...]]]
    """By path: the part, its class, and its hooks."""
    hooks: tuple[int, ...]
    """Those of all modules."""


@dataclass(frozen=True)
class Taken:
    """A graph, and what its module was when it was traced and its weights were read."""

    graph: Graph
    form: _Form
    guard: ModuleGuard


class Followed:
    """The module that a graph was imported from, and its weights. trace: imports it again."""

    def __init__(self, module: nn.Module, graph: Graph, trace: Callable[[], Graph]) -> None:
        self._module, self._trace = module, trace
        self.current = self._next = Taken(graph, self._form(), self._made_guard())

    def graph(self) -> Graph:
        """The graph with a snapshot of the weights that are there now; `adopt` says that it is what runs.

        It is traced again where the module has other parts, other hooks, or weights of other names or types.
        """
        form = self._form()
        graph = self.current.graph if form == self.current.form else self._trace()
        guard = self._made_guard()  # before weights are read: an edit meanwhile is noticed later
        self._next = Taken(graph, form, guard)
        tensors = self._tensors()
        return frozen(graph, lambda name: _array_of(graph, name, tensors.get(name)))

    def adopt(self) -> None:
        """What `graph` gave last runs from here on: `holds` compares with it."""
        self.current = self._next

    def holds(self, *, whole: bool = False) -> bool:
        """Whether all is as it was for the graph that runs, as far as is compared now. whole: all of it is."""
        own, guard = self._module.__dict__, self.current.guard
        return guard.holds_all(own) if whole else guard.holds(own)

    def took(self, elapsed: int) -> None:
        """A call took so many nanoseconds."""
        self.current.guard.took(elapsed)

    def _form(self) -> _Form:
        tensors = self._tensors()
        return _Form(
            {name: _type(one) for name, one in tensors.items()},
            _ties(tensors),
            {
                path: (module, type(module), tuple(key for hooks in _hooks(module) for key in hooks))
                for path, module in self._module.named_modules(remove_duplicate=False)
            },
            tuple(key for hooks in _HOOKS_OF_ALL for key in hooks),
        )

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by all of their names, as the module holds them now."""
        module = self._module
        return {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }

    def _made_guard(self) -> ModuleGuard:
        held: list[Held] = []
        keys = [HasKeys(hooks, tuple(hooks)) for hooks in _HOOKS_OF_ALL]
        for module in self._module.modules():
            own = module.__dict__
            for table_name in ("_modules", "_parameters", "_buffers"):
                table = own[table_name]
                held.append(Held(own, table_name, table))  # some methods of nn.Sequential replace it
                held += (Held(table, name, value) for name, value in table.items())
                keys.append(HasKeys(table, tuple(table)))
            keys += (HasKeys(hooks, tuple(hooks)) for hooks in _hooks(module))
        tensors = list(
            {id(one.value): one.value for one in held if isinstance(one.value, torch.Tensor)}.values()
        )
        counted = [tensor for tensor in tensors if not tensor.is_inference()]  # the others count no versions
        return ModuleGuard(self._module.__dict__, held, (), tensors, counted, tensors, _library(), keys)


_HOOKS_OF_ALL: tuple[Any, ...] = (
    torch.nn.modules.module._global_forward_pre_hooks,
    torch.nn.modules.module._global_forward_hooks,
)
"""What `register_module_forward_pre_hook` and `register_module_forward_hook` of torch fill."""


def _hooks(module: nn.Module) -> tuple[Any, ...]:
    return module._forward_pre_hooks, module._forward_hooks


def _array_of(graph: Graph, name: str, tensor: torch.Tensor | None) -> Array:
    from kernels_hub.compiler.importers.torch_program import array_of

    return graph.weight(name) if tensor is None else array_of(tensor)


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
