"""The torch custom operator that runs executables under torch.compile without a graph break.

    kernels_hub_compiler::run(int executable, Tensor[] inputs) -> Tensor[]

Sizes that are dims of inputs, and sums and products of these, are known to the traced graph as such; others are sizes
of their own. Gradients do not flow through, as they do not through a call without torch.compile.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from kernels_hub.compiler.engines.engine import Signature
from kernels_hub.compiler.engines.tensors import torch_dtype
from kernels_hub.compiler.errors import PlanError
from kernels_hub.compiler.ir.dims import Dim, Symbol


class Runnable(Protocol):
    """What the operator runs: an Executable."""

    @property
    def signature(self) -> Signature:
        """Its inputs and outputs."""

    def execute(self, inputs: Sequence[torch.Tensor], /) -> Mapping[str, torch.Tensor]:
        """The outputs by name."""


_NUMBERS = itertools.count(1)
_EXECUTABLES: weakref.WeakValueDictionary[int, Runnable] = weakref.WeakValueDictionary()


def enter(executable: Runnable) -> int:
    """The number by which the operator knows an executable, for as long as that lives."""
    number = next(_NUMBERS)
    _EXECUTABLES[number] = executable
    return number


def _of(number: int) -> Runnable:
    try:
        return _EXECUTABLES[number]
    except KeyError:
        raise PlanError(
            f"executable {number} is gone: it has to live as long as the code that torch.compile made of its caller"
        ) from None


@torch.library.custom_op("kernels_hub_compiler::run", mutates_args=())
def _run(executable: int, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return list(_of(executable).execute([tensor.detach() for tensor in inputs]).values())


@_run.register_fake
def _(executable: int, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    signature = _of(executable).signature
    sizes: dict[Symbol, Any] = {}
    for of, tensor in zip(signature.inputs.values(), inputs, strict=True):
        for dim, size in zip(of.shape, tensor.shape, strict=True):
            if not isinstance(dim, int) and dim.only_symbol is not None:
                sizes.setdefault(dim.only_symbol, size)
    device = inputs[0].device if inputs else None
    return [
        torch.empty([_size(dim, sizes) for dim in of.shape], dtype=torch_dtype(of.dtype), device=device)
        for of in signature.outputs.values()
    ]


def _size(dim: Dim, sizes: Mapping[Symbol, Any]) -> Any:
    """A dim as torch.compile's sizes; one of its own where it is none that they tell."""
    if isinstance(dim, int):
        return dim
    if any(
        not isinstance(one, Symbol) or one not in sizes for monomial, _ in dim.terms for one, _ in monomial
    ):
        return torch.library.get_ctx().new_dynamic_size()
    total: Any = 0
    for monomial, factor in dim.terms:
        term: Any = factor
        for one, power in monomial:
            for _ in range(power):
                assert isinstance(one, Symbol)
                term = term * sizes[one]
        total = total + term
    return total


def run(number: int, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """A call while torch.compile traces."""
    tensors: list[torch.Tensor] = torch.ops.kernels_hub_compiler.run(number, list(inputs))
    return tensors
