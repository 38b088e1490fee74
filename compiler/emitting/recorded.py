"""What a module's result depends on beside its weights: the attributes that forwards read, while an example runs.

Attributes of modules, and of plain objects that modules hold (a config), are noted as they are read. What a forward
never reads (`layer_idx`, where there is no cache) may differ in another module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from kernels_hub.compiler.emitting.runtime.modules import fact_at, forward_digest, kind_of
from kernels_hub.compiler.emitting.runtime.parts import Module
from kernels_hub.compiler.emitting.source import Example

_FURNITURE = frozenset(vars(nn.Module())) - {"training"}

Reads = dict[int, set[str]]


def recorded(example: Example) -> tuple[Module, ...]:
    """The module and all inside of it, with the attributes that a run of the example reads."""
    with _recording(example.module) as (reads, kinds):
        example.run()
    found = []
    for path, module in example.module.named_modules(remove_duplicate=False):
        facts = {}
        for name in sorted(reads.get(id(module), ())):
            value = module.__dict__.get(name)
            if name == "training" and isinstance(module, nn.modules.dropout._DropoutNd) and module.p == 0:
                continue
            inner = reads.get(id(value)) if id(value) in kinds else None
            if inner is None:
                facts[name] = fact_at(module, name)
            else:
                facts |= {f"{name}.{one}": fact_at(module, f"{name}.{one}") for one in sorted(inner)}
        kind = type(module)
        found.append(Module(path, kind_of(kind), forward_digest(kind), facts))
    return tuple(found)


@contextmanager
def _recording(module: nn.Module) -> Iterator[tuple[Reads, dict[int, type]]]:
    reads: Reads = {}
    before: list[tuple[Any, type]] = []
    objects: dict[int, type] = {}
    try:
        for one in module.modules():
            for value in list(vars(one).values()):
                if _is_plain_object(value) and id(value) not in objects and _swap(value, reads, before):
                    objects[id(value)] = before[-1][1]
            _swap(one, reads, before)
        yield reads, objects
    finally:
        for one, kind in reversed(before):
            object.__setattr__(one, "__class__", kind)


def _swap(one: Any, reads: Reads, before: list[tuple[Any, type]]) -> bool:
    """Give an object a class that notes what is read of it; False where it cannot have another."""
    kind = type(one)
    noted = reads.setdefault(id(one), set())
    names = vars(one)

    def get(self: Any, name: str) -> Any:
        if name in names and name not in _FURNITURE:
            noted.add(name)
        return kind.__getattribute__(self, name)  # type: ignore[call-arg]

    body = {"__getattribute__": get, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    try:
        object.__setattr__(one, "__class__", type(kind.__name__, (kind,), body))
    except TypeError:
        return False
    before.append((one, kind))
    return True


def _is_plain_object(value: Any) -> bool:
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, (nn.Module, torch.Tensor, type, dict, list, tuple, set))
        and not callable(value)
        and type(value).__module__ != "builtins"
    )
