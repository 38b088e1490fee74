"""Keeps the copies that kernels make of weights within a budget, spent on the modules that gain most.

A kernel's `weights` module may say with `most_nbytes(module)` what its copies take at most; of one that does not, a
copy of every parameter is assumed, its sizes rounded up to whole blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kernels_hub.errors import CopyBudgetError, NoKernelError
from kernels_hub.kernelization.bind import Forward, weights_protocol
from kernels_hub.kernelization.fallback import KernelizeFallback
from kernels_hub.kernelization.outcome import SwapDecision
from kernels_hub.kernelization.steps import Plan

if TYPE_CHECKING:
    from torch import Tensor, nn

_BLOCK = 16
"""Rows and columns of a packed matrix come in multiples of it."""


def budget_in_bytes(copy_budget: float | None, model: nn.Module) -> int | None:
    """The bytes of a `copy_budget`: an int is one of bytes, a float a share of the parameters' bytes; None: no limit.

    Raises CopyBudgetError for what is neither.
    """
    if copy_budget is None:
        return None
    known = isinstance(copy_budget, int | float) and not isinstance(copy_budget, bool)
    if not known or not 0 <= copy_budget < math.inf:
        raise CopyBudgetError(
            f"copy_budget is {copy_budget!r}; give bytes as an int (64 << 20), or a share of the parameters' bytes "
            "as a float (0.25); 0 allows no copies"
        )
    if isinstance(copy_budget, int):
        return copy_budget
    return int(copy_budget * sum(parameter.nbytes for parameter in model.parameters()))


def over_budget(plan: Plan, budget: int, fallback: KernelizeFallback) -> dict[int, str]:
    """By the identity of modules whose copies do not fit: why they keep their original forward.

    Those with the highest gain for a byte come first, then those first in the model: equal plans give equal choices.
    Raises NoKernelError where no original may be kept.
    """
    candidates = [
        (_saving(own), most_nbytes(weights, module), module, own)
        for module, forward, own in _swapped(plan)
        if (weights := weights_protocol(forward)) is not None
    ]
    refused: dict[int, str] = {}
    left = budget
    for _, nbytes, module, own in sorted(candidates, key=lambda each: -each[0]):
        if nbytes <= left:
            left -= nbytes
            continue
        reason = f"kept: its copies of up to {_in_words(nbytes)} do not fit into copy_budget"
        if fallback is KernelizeFallback.NONE:
            raise NoKernelError(f"{own.layer_name}: {reason}; raise it, or allow the original forward")
        refused[id(module)] = reason
    return refused


def most_nbytes(weights: object, module: nn.Module) -> int:
    """What the copies of a module's weights take at most. weights: the `weights` module of its kernel."""
    told = getattr(weights, "most_nbytes", None)
    if told is not None:
        return int(told(module))
    return sum(_padded_nbytes(parameter) for parameter in module.parameters() if parameter.dim() > 1)


def _padded_nbytes(weight: Tensor) -> int:
    rows, columns = weight.shape[-2:]
    blocks = math.ceil(rows / _BLOCK) * math.ceil(columns / _BLOCK)
    return math.prod(weight.shape[:-2]) * blocks * _BLOCK * _BLOCK * weight.element_size()


def _swapped(plan: Plan) -> Iterator[tuple[nn.Module, Forward, SwapDecision]]:
    """Modules that get a kernel, with its forward; those of groups in the model's order."""
    for module, group in zip(plan.order, plan.group_of, strict=True):
        if group.record.own is not None:
            yield module, group.forward, group.record.own
    for step in plan.steps:
        if step.forward is not None and step.record.own is not None and step.record.own.swapped:
            yield step.module, step.forward, step.record.own


def _saving(own: SwapDecision) -> float:
    """The share of the original's time that the kernel saves; 0 where that is not known.

    A product's time is that of its weights' bytes, for any number of rows, so this orders by what a byte saves.
    """
    return 0.0 if own.gain is None else 1 - 1 / own.gain.ratio


def _in_words(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB" if nbytes >= 1 << 20 else f"{nbytes / 2**10:.1f} KiB"
