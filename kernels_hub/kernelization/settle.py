"""Records on a kernelized module what its calls run on, once its compilation has ended."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from kernels_hub.kernelization.bind import Forward, KernelForward, weights_protocol
from kernels_hub.kernelization.outcome import RECORD_ATTRIBUTE, SwapDecision, record_of

if TYPE_CHECKING:
    from torch import nn

CHANGING = threading.RLock()
"""Held while forwards and records of modules change: what was compiled takes effect in calls of any thread."""


def settle(module: nn.Module, pending: Forward, outcome: SwapDecision, *, release: bool) -> None:
    """Note what the calls of a just-in-time compiled module run on. release: they need the kernels inside no more.

    Nothing happens where something else is bound meanwhile.
    """
    with CHANGING:
        state = module.__dict__
        bound, record = state.get("forward"), record_of(module)
        if type(bound) is not KernelForward or bound.func is not pending or record is None:
            return
        if release:
            _release_inside(module)
        state[RECORD_ATTRIBUTE] = replace(record, own=outcome)


def _release_inside(module: nn.Module) -> None:
    """Drop the packed weights of kernels that another one runs in place of; a call that needs them packs them again."""
    for one in module.modules():
        bound = one.__dict__.get("forward")
        if one is not module and type(bound) is KernelForward and (weights := weights_protocol(bound.func)):
            weights.release(one)
