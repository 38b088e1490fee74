"""Register a layer's operators with the PyTorch dispatcher, the same way in every repository.

Going through the dispatcher costs about 2 microseconds a call and buys everything else: autograd,
`torch.compile(fullgraph=True)`, fake tensors, FLOP counters and profilers see one named operator.

The namespace is derived from the name under which the package was imported, which the loader makes
unique per repository, version and variant: two versions of one kernel live in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from .flops import count_as

# The package that this file was laid into, e.g. "activation_cpu_1f0c…" -> the operators' namespace.
NAMESPACE = (__package__ or "kernels_hub_layers").replace(".", "_").replace("-", "_")

_LIBRARY = Library(NAMESPACE, "FRAGMENT")


def implementations(
    keys: Iterable[str], kernel: Callable[..., Any], formula: Callable[..., Any]
) -> dict[str, Callable[..., Any]]:
    """What `define` takes: the kernel on the devices of its dispatch keys, the formula in PyTorch on all others."""
    return {**dict.fromkeys(keys, kernel), "CompositeExplicitAutograd": formula}


def define(
    schema: str,
    implementations: Mapping[str, Callable[..., Any]],
    fake: Callable[..., Any],
    *,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Define one operator and return its overload, ready to call.

    schema: "name(Tensor x, float eps) -> Tensor", in torch.library's syntax.
    implementations: dispatch key -> function; "CPU", "CUDA", and "CompositeExplicitAutograd" for
        the reference that serves every device without one of its own.
    fake: the same arguments, returns empty outputs with the right shape, dtype and strides. Where there is no
        reference, it is one: FLOP counters count what these call.
    backward, setup_context: as in torch.library.register_autograd. Without them the operator has no
        gradient: calling it on inputs that require one raises at backward().
    """
    name = schema.partition("(")[0].strip()
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key, function in implementations.items():
        _LIBRARY.impl(name, function, key)
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
    if backward is not None:
        torch.library.register_autograd(
            f"{NAMESPACE}::{name}", backward, setup_context=setup_context, lib=_LIBRARY
        )
    operator = getattr(getattr(torch.ops, NAMESPACE), name)
    count_as(operator, implementations.get("CompositeExplicitAutograd", fake))
    return operator.default


def define_twice(
    name: str,
    arguments: str,
    implementations: Mapping[str, Callable[..., Any]],
    fake: Callable[..., Any],
    *,
    backward: Callable[..., Any],
    setup_context: Callable[..., Any],
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Define an operator without a gradient, `name`, and with one, `<name>_with_grad`; returns both.

    For operators whose gradient needs no more than their inputs. `torch.library` runs a gradient's formula in Python:
    4 microseconds a call even where nothing requires a gradient, which callers therefore look at themselves.
    """
    with_grad = define(
        f"{name}_with_grad{arguments}", implementations, fake, backward=backward, setup_context=setup_context
    )
    return define(f"{name}{arguments}", implementations, fake), with_grad


def savable(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """What `save_for_backward` takes of `tensors`: a copy of each that was made in inference mode.

    PyTorch saves no such tensor, and its own formulas, which save what they computed of it, have no need to.
    """
    return tuple(
        tensor.clone() if tensor is not None and tensor.is_inference() else tensor for tensor in tensors
    )


def differentiate(
    formula: Callable[..., Tensor], grad: Tensor, inputs: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients that have gradients themselves, for backward(create_graph=True); None where none is required.

    The formula is differentiated at views of the inputs: one tensor may be given as two of them.
    """
    views = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
    wanted = [view for view in views if view is not None and view.requires_grad]
    found = iter(torch.autograd.grad(formula(*views), wanted, grad, create_graph=True))
    return [next(found) if view is not None and view.requires_grad else None for view in views]
