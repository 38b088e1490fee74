"""Let `torch.utils.flop_counter.FlopCounterMode` count a layer's operators.

It knows PyTorch's own operators, and counts nothing for others. An operator counts as what its formula in PyTorch
counts, which is run on tensors without data.

Importing the counter takes 80 ms, as it imports Triton: operators are registered with it when it is there, or as soon
as somebody imports it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

_COUNTER = "torch.utils.flop_counter"
_waiting: list[tuple[Any, Callable[..., Any]]] = []


def count_as(operator: Any, formula: Callable[..., Any]) -> None:
    """Have an operator counted as what `formula`, which takes the same arguments, calls of PyTorch's operators.

    operator: an OpOverloadPacket, such as torch.ops.namespace.name. Works whether the counter is imported or not.
    """
    counter = sys.modules.get(_COUNTER)
    if counter is not None and hasattr(counter, "FlopCounterMode"):
        _register(counter, operator, formula)
        return
    _waiting.append((operator, formula))
    if len(_waiting) == 1:
        sys.meta_path.insert(0, _AtImport())


def _register(counter: ModuleType, operator: Any, formula: Callable[..., Any]) -> None:
    def flops(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().to("meta"), (args, kwargs))
        with torch.no_grad(), _Count(counter.flop_registry) as count:
            formula(*args, **kwargs)
        return count.total

    counter.flop_registry.pop(operator, None)  # of an import that failed after it was defined
    counter.register_flop_formula(operator, get_raw=True)(flops)


class _Count(TorchDispatchMode):
    """Sums the FLOPs of what is called inside."""

    def __init__(self, formulas: dict[Any, Callable[..., int]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.formulas, self.total = formulas, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = self.formulas.get(func._overloadpacket)
        if formula is None:
            with self:
                output = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if output is NotImplemented else output
        output = func(*args, **kwargs)
        self.total += formula(*args, **kwargs, out_val=output)
        return output


class _AtImport:
    """A finder of modules that finds nothing itself, but learns that the counter is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _COUNTER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                for operator, formula in _waiting:
                    _register(module, operator, formula)
                _waiting.clear()

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
