"""The operators: attention, the same with what its gradients need, and the gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import kernels, reference
from .form import Form, result_like
from .registration import define, differentiate, implementations, savable

_INPUTS = "Tensor query, Tensor key, Tensor value, Tensor? mask"
_FORM = "bool causal, SymInt offset, float scale, float softcap"

Function = Callable[..., Any]


def _define(schema: str, make: Callable[[Any], Function], fake: Function, **autograd: Function) -> Function:
    """`make` turns a backend (`kernels` or `reference`) into an implementation of the schema."""
    served = implementations(kernels.DISPATCH_KEYS, make(kernels), make(reference))
    return define(schema, served, fake, **autograd)


def _fake(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *form: Any) -> Tensor:
    return result_like(query, value)


def _fake_with_statistics(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *form: Any
) -> tuple[Tensor, Tensor]:
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    return result_like(query, value), query.new_empty((2, *query.shape[:3]), dtype=dtype)


def _fake_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _make_inference(backend: Any) -> Function:
    def attention_inference(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *form: Any
    ) -> Any:
        return backend.forward(query, key, value, mask, Form(*form), save=False)[0]

    return attention_inference


def _make_forward(backend: Any) -> Function:
    def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *form: Any) -> Any:
        return backend.forward(query, key, value, mask, Form(*form), save=True)

    return attention


def _make_backward(backend: Any) -> Function:
    def attention_backward(
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        result: Tensor,
        statistics: Tensor,
        *form: Any,
    ) -> Any:
        return backend.backward(grad, query, key, value, mask, result, statistics, Form(*form))

    return attention_backward


def _context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, mask, *form = inputs
    ctx.set_materialize_grads(False)  # nobody wants a gradient of the statistics
    ctx.save_for_backward(*savable(query, key, value, mask, *output))
    ctx.form = Form(*form)


def _gradients(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    nothing = (None,) * (1 + len(ctx.form))
    if grad is None:
        return (None, None, None, *nothing)
    query, key, value, mask, result, statistics = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: by operators that have gradients themselves
        found = differentiate(
            lambda query, key, value: reference.differentiable(query, key, value, mask, ctx.form),
            grad,
            (query, key, value),
        )
        return (*found, *nothing)
    return (*attention_backward(grad, query, key, value, mask, result, statistics, *ctx.form), *nothing)


attention_inference = _define(f"attention_inference({_INPUTS}, {_FORM}) -> Tensor", _make_inference, _fake)
attention_backward = _define(
    f"attention_backward(Tensor grad, {_INPUTS}, Tensor result, Tensor statistics, {_FORM}) "
    "-> (Tensor, Tensor, Tensor)",
    _make_backward,
    _fake_backward,
)
attention = _define(
    f"attention({_INPUTS}, {_FORM}) -> (Tensor, Tensor)",
    _make_forward,
    _fake_with_statistics,
    backward=_gradients,
    setup_context=_context,
)
