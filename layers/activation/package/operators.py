"""The operators: three forms, each with a backward operator of its own.

    activation(x)              act(x)
    activation_mul(gate, up)   act(gate) * up, two tensors of one shape and dtype
    activation_and_mul(x)      act(x[…, :d]) * x[…, d:], the two halves in one tensor

Each is defined twice, without and with a gradient. Backward operators have gradients as well, from
`reference`: of any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import kernels, reference
from .registration import define_twice, implementations, savable

Function = Callable[..., Any]


def _define_both(
    name: str, arguments: str, native: Function, composite: Function, fake: Function, derivative: Function
) -> tuple[Function, Function]:
    """The operator without and with a formula; both save every tensor argument and the kind."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.kind = inputs
        ctx.save_for_backward(*savable(*tensors))

    served = implementations(kernels.DISPATCH_KEYS, native, composite)
    return define_twice(name, arguments, served, fake, backward=derivative, setup_context=setup_context)


def _derivative_of(composite: Function) -> Function:
    """The formula of a backward operator: differentiate what it computes, in plain PyTorch.

    In float64, where the device has it: terms cancel that float32 would lose, and this is rare.
    """

    def derivative(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        wide = torch.float32 if saved[0].device.type == "mps" else torch.float64
        pullback = torch.func.vjp(
            lambda *tensors: composite(*tensors, ctx.kind), *(tensor.to(wide) for tensor in saved)
        )[1]
        wide_grads = tuple(grad.to(wide) for grad in grads)
        results = pullback(wide_grads if len(grads) > 1 else wide_grads[0])
        return (*(result.to(tensor.dtype) for result, tensor in zip(results, saved, strict=True)), None)

    return derivative


# activation

_BACKWARD, _BACKWARD_WITH_GRAD = _define_both(
    "activation_backward",
    "(Tensor grad, Tensor x, int kind) -> Tensor",
    kernels.backward,
    reference.backward,
    lambda grad, x, kind: torch.empty_like(x),
    _derivative_of(reference.backward),
)


def _activation_derivative(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    operator = _BACKWARD_WITH_GRAD if torch.is_grad_enabled() else _BACKWARD
    return operator(grad, *ctx.saved_tensors, ctx.kind), None


_FORWARD, _FORWARD_WITH_GRAD = _define_both(
    "activation",
    "(Tensor x, int kind) -> Tensor",
    kernels.forward,
    reference.forward,
    lambda x, kind: torch.empty_like(x),
    _activation_derivative,
)


def activation(x: Tensor, kind: int) -> Tensor:
    """act(x), in the layout of x."""
    operator = _FORWARD_WITH_GRAD if torch.is_grad_enabled() and x.requires_grad else _FORWARD
    return operator(x, kind)


# activation_mul

_GATED_BACKWARD, _GATED_BACKWARD_WITH_GRAD = _define_both(
    "activation_mul_backward",
    "(Tensor grad, Tensor gate, Tensor up, int kind) -> (Tensor, Tensor)",
    kernels.gated_backward,
    reference.gated_backward,
    lambda grad, gate, up, kind: (torch.empty_like(gate), torch.empty_like(gate)),
    _derivative_of(reference.gated_backward),
)


def _gated_derivative(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    operator = _GATED_BACKWARD_WITH_GRAD if torch.is_grad_enabled() else _GATED_BACKWARD
    return (*operator(grad, *ctx.saved_tensors, ctx.kind), None)


_GATED_FORWARD, _GATED_FORWARD_WITH_GRAD = _define_both(
    "activation_mul",
    "(Tensor gate, Tensor up, int kind) -> Tensor",
    kernels.gated_forward,
    reference.gated_forward,
    lambda gate, up, kind: torch.empty_like(gate),
    _gated_derivative,
)


def activation_mul(gate: Tensor, up: Tensor, kind: int) -> Tensor:
    """act(gate) * up, in the layout of gate."""
    wanted = torch.is_grad_enabled() and (gate.requires_grad or up.requires_grad)
    return (_GATED_FORWARD_WITH_GRAD if wanted else _GATED_FORWARD)(gate, up, kind)


# activation_and_mul

_PACKED_BACKWARD, _PACKED_BACKWARD_WITH_GRAD = _define_both(
    "activation_and_mul_backward",
    "(Tensor grad, Tensor x, int kind) -> Tensor",
    kernels.packed_backward,
    reference.packed_backward,
    lambda grad, x, kind: x.new_empty(x.shape),
    _derivative_of(reference.packed_backward),
)


def _packed_derivative(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    operator = _PACKED_BACKWARD_WITH_GRAD if torch.is_grad_enabled() else _PACKED_BACKWARD
    return operator(grad, *ctx.saved_tensors, ctx.kind), None


_PACKED_FORWARD, _PACKED_FORWARD_WITH_GRAD = _define_both(
    "activation_and_mul",
    "(Tensor x, int kind) -> Tensor",
    kernels.packed_forward,
    reference.packed_forward,
    lambda x, kind: x.new_empty((*x.shape[:-1], x.shape[-1] // 2)),
    _packed_derivative,
)


def activation_and_mul(x: Tensor, kind: int) -> Tensor:
    """act(x[…, :d]) * x[…, d:] for x (…, 2d), contiguous."""
    operator = _PACKED_FORWARD_WITH_GRAD if torch.is_grad_enabled() and x.requires_grad else _PACKED_FORWARD
    return operator(x, kind)
