"""The operators: schemas, shapes for tracing, gradients.

`gated_experts` is one kernel and has no gradient. `gated_experts_with_gradient` is made of grouped
products, one over all experts each, and saves the pre-activations; its backward is five more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import kernels, reference
from .blocks import FORMULAS
from .registration import define, differentiate, implementations
from .routing import Routing, route

_OPERANDS = "Tensor x, Tensor gate_up, Tensor down, Tensor index, Tensor weight, str activation"


def _forward(
    x: Tensor, gate_up: Tensor, down: Tensor, index: Tensor, weight: Tensor, activation: str, backend: Any
) -> tuple[Tensor, Tensor]:
    routing = route(index, gate_up.shape[0])
    pre = backend.grouped_product(routing.gather(x), gate_up, routing.ends)
    gate, up = pre.chunk(2, dim=-1)
    y = backend.grouped_product(FORMULAS[activation](gate) * up, down, routing.ends)
    return routing.sum((y * _weights(routing, weight)).to(x.dtype)), pre


def _weights(routing: Routing, weight: Tensor) -> Tensor:
    return weight.flatten()[routing.order][:, None]


def _backward(
    grad: Tensor,
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    index: Tensor,
    weight: Tensor,
    pre: Tensor,
    activation: str,
    backend: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    routing = route(index, gate_up.shape[0])
    ends, share = routing.ends, _weights(routing, weight)
    at_y = routing.gather(grad)
    with torch.enable_grad():
        gate, up = (part.detach().requires_grad_() for part in pre.chunk(2, dim=-1))
        hidden = FORMULAS[activation](gate) * up
    at_hidden = backend.grouped_product(at_y, down.transpose(1, 2), ends)
    products = (
        (at_hidden.float() * hidden.detach().float())
        if x.dtype != torch.float64
        else at_hidden * hidden.detach()
    )
    at_weight = torch.empty_like(weight.flatten())
    at_weight[routing.order] = products.sum(-1).to(weight.dtype)
    at_pre = torch.cat(torch.autograd.grad(hidden, (gate, up), (at_hidden * share).to(hidden.dtype)), dim=-1)
    of_x = routing.sum(backend.grouped_product(at_pre, gate_up.transpose(1, 2), ends))
    of_gate_up = backend.grouped_outer(at_pre, routing.gather(x), ends)
    of_down = backend.grouped_outer((at_y * share).to(x.dtype), hidden.detach(), ends)
    return of_x, of_gate_up, of_down, at_weight.view_as(weight)


def _on(backend: Any, function: Any) -> Any:
    return lambda *arguments: function(*arguments, backend)


def _both(function: Any) -> dict[str, Any]:
    return implementations(kernels.DISPATCH_KEYS, _on(kernels, function), _on(reference, function))


def _fake_experts(
    x: Tensor, gate_up: Tensor, down: Tensor, index: Tensor, weight: Tensor, activation: str
) -> Tensor:
    return x.new_empty(x.shape)


def _fake_forward(
    x: Tensor, gate_up: Tensor, down: Tensor, index: Tensor, weight: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(index.shape[0] * index.shape[1], gate_up.shape[1])


def _fake_backward(
    grad: Tensor,
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    index: Tensor,
    weight: Tensor,
    pre: Tensor,
    activation: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return tuple(t.new_empty(t.shape) for t in (x, gate_up, down, weight))  # type: ignore[return-value]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *operands, ctx.activation = inputs
    ctx.save_for_backward(*operands, output[1])
    ctx.mark_non_differentiable(output[1])


def _derivative(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    x, gate_up, down, index, weight, pre = ctx.saved_tensors
    if torch.is_grad_enabled():  # a gradient's gradient goes through the formula
        found = differentiate(
            lambda x, gate_up, down, weight: reference.gated_experts(
                x, gate_up, down, index, weight, ctx.activation
            ),
            grad,
            (x, gate_up, down, weight),
        )
    else:
        needs = [ctx.needs_input_grad[at] for at in (0, 1, 2, 4)]
        gradients = _BACKWARD(grad, x, gate_up, down, index, weight, pre, ctx.activation)
        found = [gradient if need else None for gradient, need in zip(gradients, needs, strict=True)]
    return found[0], found[1], found[2], None, found[3], None


gated_experts = define(
    f"gated_experts({_OPERANDS}) -> Tensor",
    implementations(kernels.DISPATCH_KEYS, kernels.gated_experts, reference.gated_experts),
    _fake_experts,
)
_BACKWARD = define(
    "gated_experts_backward(Tensor grad, Tensor x, Tensor gate_up, Tensor down, Tensor index, Tensor weight, "
    "Tensor pre, str activation) -> (Tensor, Tensor, Tensor, Tensor)",
    _both(_backward),
    _fake_backward,
)
gated_experts_with_gradient = define(
    f"gated_experts_with_gradient({_OPERANDS}) -> (Tensor, Tensor)",
    _both(_forward),
    _fake_forward,
    backward=_derivative,
    setup_context=_save,
)


def _fake_clamped(
    x: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor,
    down: Tensor,
    down_bias: Tensor,
    index: Tensor,
    weight: Tensor,
    alpha: float,
    limit: float,
) -> Tensor:
    return x.new_empty(x.shape)


clamped_experts = define(
    "clamped_experts(Tensor x, Tensor gate_up, Tensor gate_up_bias, Tensor down, Tensor down_bias, Tensor index, "
    "Tensor weight, float alpha, float limit) -> Tensor",
    implementations(kernels.DISPATCH_KEYS, kernels.clamped_experts, reference.clamped_experts),
    _fake_clamped,
)


def _fake_top_k(logits: Tensor, k: int, renormalise: bool, rounded: bool) -> tuple[Tensor, Tensor]:
    shape = (*logits.shape[:-1], k)
    dtype = logits.dtype if rounded or logits.dtype == torch.float64 else torch.float32
    return logits.new_empty(shape, dtype=dtype), logits.new_empty(shape, dtype=torch.int64)


top_k_softmax = define(
    "top_k_softmax(Tensor logits, int k, bool renormalise, bool rounded) -> (Tensor, Tensor)",
    implementations(kernels.DISPATCH_KEYS, kernels.top_k_softmax, reference.top_k_softmax),
    _fake_top_k,
)
