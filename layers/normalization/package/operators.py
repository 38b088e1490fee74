"""The operators: schemas, shapes for tracing, gradients.

Each normalization is two operators. One saves what its gradient needs; its `_inference` twin has no
gradient, saves nothing, and skips the autograd layer, whose cost is that of a few thousand elements.
`functional.py` chooses by whether a gradient is wanted.

An operator is written once, as a function of the four functions that a backend has; applied to the
backend's own, to the reference's and to those below that only know shapes, it gives the
implementations that `define` takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import kernels, reference
from .forms import Form, GatedForm
from .registration import define, differentiate, implementations, savable

Function = Callable[..., Any]


def _define(
    schema: str,
    make: Callable[[Function], Function],
    native: Function,
    plain: Function,
    fake: Function,
    **autograd: Any,
) -> Function:
    served = implementations(kernels.DISPATCH_KEYS, make(native), make(plain))
    return define(schema, served, make(fake), **autograd)


def _present(tensor: Tensor | None, like: Tensor) -> Tensor:
    """Operators return tensors only: an empty one stands for None."""
    return like.new_empty(0) if tensor is None else tensor


# ------------------------------------------------------------------------------------ shapes


def _fake_stat(x: Tensor) -> Tensor:
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.new_empty(math.prod(x.shape[:-1]), dtype=dtype)


def _fake_forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, form: Form, save: bool
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    layout = torch.contiguous_format if form.centered else torch.preserve_format
    y = torch.empty_like(x, dtype=form.result_dtype(x, weight), memory_format=layout)
    total = None if residual is None else torch.empty_like(x)
    return y, total, _fake_stat(x) if save and form.centered else None, _fake_stat(x) if save else None


def _fake_backward(
    grad: Tensor,
    grad_total: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    form: Form,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    dweight = None if weight is None else weight.new_empty(weight.shape)
    return x.new_empty(x.shape), dweight, None if bias is None else bias.new_empty(bias.shape)


def _fake_gated_forward(x: Tensor, gate: Tensor | None, weight: Tensor | None, form: GatedForm) -> Tensor:
    return torch.empty_like(x, dtype=form.result_dtype(x, weight))


def _fake_gated_backward(
    grad: Tensor, x: Tensor, gate: Tensor | None, weight: Tensor | None, form: GatedForm
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    dgate = None if gate is None else gate.new_empty(gate.shape)
    return x.new_empty(x.shape), dgate, None if weight is None else weight.new_empty(weight.shape)


# ------------------------------------------------------------------------------------ gradients


def _make_norm_backward(backward: Function) -> Function:
    def norm_backward(
        grad: Tensor,
        grad_total: Tensor | None,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor | None,
        rstd: Tensor,
        eps: float,
        offset: float,
        centered: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        form = Form(eps, centered, offset)
        dx, dweight, dbias = backward(grad, grad_total, x, weight, bias, mean, rstd, form)
        return dx, _present(dweight, x), _present(dbias, x)

    return norm_backward


norm_backward = _define(
    "norm_backward(Tensor grad, Tensor? grad_total, Tensor x, Tensor? weight, Tensor? bias, Tensor? mean, Tensor rstd, "
    "float eps, float offset, bool centered) -> (Tensor, Tensor, Tensor)",
    _make_norm_backward,
    kernels.backward,
    reference.backward,
    _fake_backward,
)


def _save(
    ctx: Any,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    form: Form,
) -> None:
    ctx.set_materialize_grads(False)  # nobody wants a gradient of mean and rstd
    ctx.save_for_backward(*savable(x, weight, bias, mean, rstd))
    ctx.form = form


def _gradients(
    ctx: Any, grad: Tensor | None, grad_total: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Of x (its sum with the residual), weight and bias."""
    x, weight, bias, mean, rstd = ctx.saved_tensors
    form: Form = ctx.form
    if grad is None:
        return grad_total, None, None
    if torch.is_grad_enabled():  # create_graph=True: by operators that have gradients themselves
        dx, dweight, dbias = differentiate(
            lambda x, weight, bias: reference.forward(x, None, weight, bias, form, save=False)[0],
            grad,
            (x, weight, bias),
        )
        return dx if grad_total is None or dx is None else dx + grad_total, dweight, dbias
    dx, dweight, dbias = norm_backward(
        grad, grad_total, x, weight, bias, mean, rstd, form.eps, form.offset, form.centered
    )
    return dx, None if weight is None else dweight, None if bias is None else dbias


# ------------------------------------------------------------------------------------ RMSNorm


def _make_rms_norm(save: bool) -> Callable[[Function], Function]:
    def make(forward: Function) -> Function:
        def rms_norm(x: Tensor, weight: Tensor | None, eps: float, offset: float, round_first: bool) -> Any:
            y, _, _, rstd = forward(x, None, weight, None, Form(eps, False, offset, round_first), save)
            return (y, rstd) if save else y

        return rms_norm

    return make


def _rms_norm_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, eps, offset, round_first = inputs
    _save(ctx, x, weight, None, None, output[1], Form(eps, False, offset, round_first))


def _rms_norm_gradients(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    return (*_gradients(ctx, grad, None)[:2], None, None, None)


rms_norm = _define(
    "rms_norm(Tensor x, Tensor? weight, float eps, float offset, bool round_first) -> (Tensor, Tensor)",
    _make_rms_norm(save=True),
    kernels.forward,
    reference.forward,
    _fake_forward,
    backward=_rms_norm_gradients,
    setup_context=_rms_norm_context,
)
rms_norm_inference = _define(
    "rms_norm_inference(Tensor x, Tensor? weight, float eps, float offset, bool round_first) -> Tensor",
    _make_rms_norm(save=False),
    kernels.forward,
    reference.forward,
    _fake_forward,
)


def _make_add_rms_norm(save: bool) -> Callable[[Function], Function]:
    def make(forward: Function) -> Function:
        def add_rms_norm(
            x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, offset: float, round_first: bool
        ) -> Any:
            y, total, _, rstd = forward(
                x, residual, weight, None, Form(eps, False, offset, round_first), save
            )
            return (y, total, rstd) if save else (y, total)

        return add_rms_norm

    return make


def _add_rms_norm_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, weight, eps, offset, round_first = inputs
    _save(ctx, output[1], weight, None, None, output[2], Form(eps, False, offset, round_first))


def _add_rms_norm_gradients(
    ctx: Any, grad: Tensor | None, grad_total: Tensor | None, _: Tensor | None
) -> tuple[Any, ...]:
    dx, dweight, _ = _gradients(ctx, grad, grad_total)
    return dx, dx, dweight, None, None, None


add_rms_norm = _define(
    "add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps, float offset, bool round_first) "
    "-> (Tensor, Tensor, Tensor)",
    _make_add_rms_norm(save=True),
    kernels.forward,
    reference.forward,
    _fake_forward,
    backward=_add_rms_norm_gradients,
    setup_context=_add_rms_norm_context,
)
add_rms_norm_inference = _define(
    "add_rms_norm_inference(Tensor x, Tensor residual, Tensor? weight, float eps, float offset, bool round_first) "
    "-> (Tensor, Tensor)",
    _make_add_rms_norm(save=False),
    kernels.forward,
    reference.forward,
    _fake_forward,
)


# ------------------------------------------------------------------------------------ LayerNorm


def _make_layer_norm(save: bool) -> Callable[[Function], Function]:
    def make(forward: Function) -> Function:
        def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
            y, _, mean, rstd = forward(x, None, weight, bias, Form(eps, True), save)
            return (y, mean, rstd) if save else y

        return layer_norm

    return make


def _layer_norm_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, eps = inputs
    _save(ctx, x, weight, bias, output[1], output[2], Form(eps, True))


def _layer_norm_gradients(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Any, ...]:
    return (*_gradients(ctx, grad, None), None)


layer_norm = _define(
    "layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)",
    _make_layer_norm(save=True),
    kernels.forward,
    reference.forward,
    _fake_forward,
    backward=_layer_norm_gradients,
    setup_context=_layer_norm_context,
)
layer_norm_inference = _define(
    "layer_norm_inference(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor",
    _make_layer_norm(save=False),
    kernels.forward,
    reference.forward,
    _fake_forward,
)


def _make_add_layer_norm(save: bool) -> Callable[[Function], Function]:
    def make(forward: Function) -> Function:
        def add_layer_norm(
            x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
        ) -> Any:
            y, total, mean, rstd = forward(x, residual, weight, bias, Form(eps, True), save)
            return (y, total, mean, rstd) if save else (y, total)

        return add_layer_norm

    return make


def _add_layer_norm_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, weight, bias, eps = inputs
    _save(ctx, output[1], weight, bias, output[2], output[3], Form(eps, True))


def _add_layer_norm_gradients(
    ctx: Any, grad: Tensor | None, grad_total: Tensor | None, *_: Tensor | None
) -> tuple[Any, ...]:
    dx, dweight, dbias = _gradients(ctx, grad, grad_total)
    return dx, dx, dweight, dbias, None


add_layer_norm = _define(
    "add_layer_norm(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, float eps) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _make_add_layer_norm(save=True),
    kernels.forward,
    reference.forward,
    _fake_forward,
    backward=_add_layer_norm_gradients,
    setup_context=_add_layer_norm_context,
)
add_layer_norm_inference = _define(
    "add_layer_norm_inference(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor)",
    _make_add_layer_norm(save=False),
    kernels.forward,
    reference.forward,
    _fake_forward,
)


# ------------------------------------------------------------------------------------ RMSNorm with a gate


_GATED_ARGUMENTS = "Tensor? weight, float eps, str activation, bool gate_first, bool round_first, int groups"


def _make_gated(gated_forward: Function) -> Function:
    def rms_norm_gated(x: Tensor, gate: Tensor | None, weight: Tensor | None, *form: Any) -> Any:
        return gated_forward(x, gate, weight, GatedForm(*form))

    return rms_norm_gated


def _make_gated_backward(gated_backward: Function) -> Function:
    def rms_norm_gated_backward(
        grad: Tensor, x: Tensor, gate: Tensor | None, weight: Tensor | None, *form: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        dx, dgate, dweight = gated_backward(grad, x, gate, weight, GatedForm(*form))
        return dx, _present(dgate, x), _present(dweight, x)

    return rms_norm_gated_backward


rms_norm_gated_backward = _define(
    f"rms_norm_gated_backward(Tensor grad, Tensor x, Tensor? gate, {_GATED_ARGUMENTS}) -> (Tensor, Tensor, Tensor)",
    _make_gated_backward,
    kernels.gated_backward,
    reference.gated_backward,
    _fake_gated_backward,
)


def _gated_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*savable(*inputs[:3]))
    ctx.form = GatedForm(*inputs[3:])


def _gated_gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, gate, weight = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True
        found = differentiate(
            lambda x, gate, weight: reference.gated_forward(x, gate, weight, ctx.form),
            grad,
            (x, gate, weight),
        )
        return (*found, *(None,) * len(ctx.form))
    dx, dgate, dweight = rms_norm_gated_backward(grad, x, gate, weight, *ctx.form)
    return (
        dx,
        None if gate is None else dgate,
        None if weight is None else dweight,
        *(None,) * len(ctx.form),
    )


rms_norm_gated = _define(
    f"rms_norm_gated(Tensor x, Tensor? gate, {_GATED_ARGUMENTS}) -> Tensor",
    _make_gated,
    kernels.gated_forward,
    reference.gated_forward,
    _fake_gated_forward,
    backward=_gated_gradients,
    setup_context=_gated_context,
)
rms_norm_gated_inference = _define(
    f"rms_norm_gated_inference(Tensor x, Tensor? gate, {_GATED_ARGUMENTS}) -> Tensor",
    _make_gated,
    kernels.gated_forward,
    reference.gated_forward,
    _fake_gated_forward,
)
