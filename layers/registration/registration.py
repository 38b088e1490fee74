"""Register a layer's operators with the PyTorch dispatcher, the same way in every repository.

Going through the dispatcher costs about 2 microseconds a call and buys everything else: autograd,
`torch.compile(fullgraph=True)`, fake tensors, FLOP counters and profilers see one named operator.

The namespace is derived from the name under which the package was imported, which the loader makes
unique per repository, version and variant: two versions of one kernel live in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.library import Library

# The package that this file was laid into, e.g. "activation_cpu_1f0c…" -> the operators' namespace.
NAMESPACE = (__package__ or "kernels_hub_layers").replace(".", "_").replace("-", "_")

_LIBRARY = Library(NAMESPACE, "FRAGMENT")


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
    fake: the same arguments, returns empty outputs with the right shape, dtype and strides.
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
    return getattr(getattr(torch.ops, NAMESPACE), name).default
