"""The modules inside of a block whose forwards the block's kernel makes idle, and why it may not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kernels_hub.kernelization.bind import KernelForward

if TYPE_CHECKING:
    from torch import nn

ALL = "*"
"""In `covers`: all children, and all that is inside of them."""


def covered_modules(module: nn.Module, covers: Sequence[str]) -> Iterator[tuple[str, nn.Module]]:
    """What a module's kernel computes itself, with its path. covers: names of children, or `ALL`."""
    if ALL in covers:
        yield from ((path, child) for path, child in module.named_modules() if path)
        return
    for name in covers:
        child = module._modules.get(name)
        if child is not None:
            yield name, child


def must_run_itself(child: nn.Module, parameter: type) -> str | None:
    """Why a block's kernel may not compute what its child does; None if it may."""
    others = child._forward_pre_hooks or child._backward_hooks or child._backward_pre_hooks
    if others or not all(map(_only_records, child._forward_hooks.values())):
        return "it has hooks"
    if type(child.__dict__.get("forward")) not in (KernelForward, type(None)):
        return "its forward was already replaced on this instance"
    reason = unusual_parameter(child._parameters, parameter)
    return f"its {reason}" if reason else None


def _only_records(hook: object) -> bool:
    """Whether a hook is that by which transformers records outputs where it is asked to: the kernel asks at the call.

    It is put on all modules that may be recorded at the first call for any output, and stays.
    """
    return getattr(hook, "__name__", "") == "output_capturing_hook" and hook.__module__ == (
        "transformers.utils.output_capturing"
    )


def unusual_parameter(parameters: Mapping[str, nn.Parameter | None], parameter: type) -> str | None:
    """The first parameter that is of another class, in words; None without one. parameter: torch.nn.Parameter."""
    for name, value in parameters.items():
        if value is not None and type(value) is not parameter:
            return f"parameter {name!r} is a {type(value).__name__}, not a plain torch.nn.Parameter"
    return None
