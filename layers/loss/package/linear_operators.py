"""Linear cross-entropy: a chunk of rows' logits at a time, in one buffer, and never all of them.

For a sum or a mean, the gradients are computed on the way forward, while a chunk's logits are at hand:
each row's logits become its gradient in place, and that is multiplied with the weight (gradient of
hidden) and with hidden (gradient of weight). The backward only scales them: three products of size
N x V x H in all, as without fusion. Where each row has a gradient of its own (reduction "none"), the
backward computes the logits again: four products.
Source: Liger-Kernel, arXiv 2410.10989; Cut Your Losses, arXiv 2411.09009.

Gradients of narrow dtypes are summed over the chunks in float32, and are those of the unscaled sum:
1 / N of a mean, and the scale of a gradient scaler, are applied at the end, where float16 does not
underflow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import kernels, reference
from .forms import LossForm
from .operators import rows_dtype
from .registration import define, differentiate, implementations

_FORM = "int ignore_index, float label_smoothing, float z_loss, float softcap"
_OPERANDS = f"Tensor hidden, Tensor weight, Tensor? bias, Tensor target, {_FORM}, int chunk"


class Gradients(NamedTuple):
    """Of hidden, weight and bias; an empty tensor where it is not needed."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor


class _Sums:
    """The gradients of a linear layer's operands, summed over chunks."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, needs: tuple[bool, bool, bool]
    ) -> None:
        self._operand = weight
        wide = torch.float32 if weight.dtype in (torch.bfloat16, torch.float16) else weight.dtype
        # An operator's results may not be one tensor: each that is not needed is an empty one of its own.
        self.hidden = hidden.new_empty(hidden.shape if needs[0] else 0)
        self.weight = weight.new_zeros(weight.shape if needs[1] else 0, dtype=wide)
        self.bias = weight.new_zeros(bias.shape if needs[2] and bias is not None else 0, dtype=wide)

    def add(self, rows: slice, hidden: Tensor, gradient: Tensor) -> None:
        """Take in the gradient (n, V) at the logits of some rows of hidden (n, H)."""
        if self.hidden.numel():
            torch.mm(gradient, self._operand, out=self.hidden[rows])
        if self.weight.numel():
            if self.weight.dtype == gradient.dtype:
                self.weight.addmm_(gradient.t(), hidden)
            else:
                self.weight.add_(torch.mm(gradient.t(), hidden))
        if self.bias.numel():
            self.bias.add_(gradient.sum(0, dtype=self.bias.dtype))

    def result(self) -> Gradients:
        return Gradients(self.hidden, self.weight, self.bias)


def _chunks(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, chunk: int
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """(rows, hidden of these rows, their logits); the logits are the caller's until the next step."""
    count, width = hidden.shape[0], weight.shape[0]
    buffer = hidden.new_empty(min(chunk, count), width)
    transposed = weight.t()
    for start in range(0, count, chunk):
        rows = slice(start, min(start + chunk, count))
        part = hidden[rows]
        logits = buffer[: part.shape[0]]
        if bias is None:
            torch.mm(part, transposed, out=logits)
        else:
            torch.addmm(bias, part, transposed, out=logits)
        yield rows, part, logits


def _operators(backend: Any) -> dict[str, Any]:
    """The three operators on a backend's row kernels: `kernels`, or `reference`."""

    def rows(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: Any) -> Tensor:
        *form, chunk = rest
        losses = hidden.new_empty(hidden.shape[0], dtype=rows_dtype(hidden))
        for at, _, logits in _chunks(hidden, weight, bias, chunk):
            losses[at] = backend.forward(logits, target[at], LossForm(*form))[0]
        return losses

    def rows_backward(
        grad: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        *form, chunk, needs_hidden, needs_weight, needs_bias = rest
        sums = _Sums(hidden, weight, bias, (needs_hidden, needs_weight, needs_bias))
        for at, part, logits in _chunks(hidden, weight, bias, chunk):
            backend.replace_by_gradient(logits, target[at], LossForm(*form))
            sums.add(at, part, logits.mul_(_of_kept(grad[at], target[at] != form[0])[:, None]))
        return sums.result()

    def total(
        hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        *form, chunk, needs_hidden, needs_weight, needs_bias = rest
        sums = _Sums(hidden, weight, bias, (needs_hidden, needs_weight, needs_bias))
        losses = hidden.new_empty(hidden.shape[0], dtype=rows_dtype(hidden))
        for at, part, logits in _chunks(hidden, weight, bias, chunk):
            losses[at] = backend.replace_by_gradient(logits, target[at], LossForm(*form))
            sums.add(at, part, logits)
        return losses.sum(), *sums.result()

    return {"rows": rows, "rows_backward": rows_backward, "total": total}


# ------------------------------------------------------------------------------------ shapes


def _fake_rows(hidden: Tensor, *_: Any) -> Tensor:
    return hidden.new_empty(hidden.shape[0], dtype=rows_dtype(hidden))


def _fake_gradients(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, needs: tuple[bool, bool, bool]
) -> Gradients:
    return _Sums(hidden, weight, bias, needs).result()


def _fake_rows_backward(
    grad: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return _fake_gradients(hidden, weight, bias, rest[-3:])  # type: ignore[arg-type]


def _fake_total(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    loss = hidden.new_empty((), dtype=rows_dtype(hidden))
    return loss, *_fake_gradients(hidden, weight, bias, rest[-3:])  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------ gradients


def losses_of_formula(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, form: LossForm
) -> Tensor:
    """The loss of each row in plain PyTorch, the logits whole: what can be differentiated twice."""
    return reference.forward(F.linear(hidden, weight, bias), target, form)[0]


def _save_rows(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *operands, ctx.ignore, ctx.smoothing, ctx.z, ctx.cap, ctx.chunk = inputs
    ctx.save_for_backward(*operands)


def _rows_derivative(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    hidden, weight, bias, target = ctx.saved_tensors
    form = LossForm(ctx.ignore, ctx.smoothing, ctx.z, ctx.cap)
    if torch.is_grad_enabled():
        found = differentiate(
            lambda hidden, weight, bias: losses_of_formula(hidden, weight, bias, target, form),
            grad,
            (hidden, weight, bias),
        )
        return *found, *[None] * 6
    needs = ctx.needs_input_grad[:3]
    found = _ROWS_BACKWARD(grad, hidden, weight, bias, target, *form, ctx.chunk, *needs)
    return *_as_operands(found, needs, (hidden, weight, bias)), *[None] * 6


def _save_total(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    hidden, weight, bias, target, ctx.ignore, ctx.smoothing, ctx.z, ctx.cap, *_ = inputs
    ctx.save_for_backward(hidden, weight, bias, target, *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _total_derivative(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    hidden, weight, bias, target, *gradients = ctx.saved_tensors
    if torch.is_grad_enabled():
        form = LossForm(ctx.ignore, ctx.smoothing, ctx.z, ctx.cap)
        found = differentiate(
            lambda hidden, weight, bias: losses_of_formula(hidden, weight, bias, target, form).sum(),
            grad,
            (hidden, weight, bias),
        )
        return *found, *[None] * 9
    grad = _of_kept(grad, (target != ctx.ignore).any())
    scaled = [gradient * grad for gradient in gradients]
    return *_as_operands(scaled, ctx.needs_input_grad[:3], (hidden, weight, bias)), *[None] * 9


def _of_kept(grad: Tensor, kept: Tensor) -> Tensor:
    """0 where no row counts: the mean of none has an infinite gradient, which reaches nothing."""
    return torch.where(kept, grad, 0.0)


def _as_operands(found: Any, needs: Any, operands: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(
        gradient.to(operand.dtype) if need and operand is not None else None
        for gradient, need, operand in zip(found, needs, operands, strict=True)
    )


_PLAIN = _operators(reference)
_NATIVE = _operators(kernels)
_NEEDS = "bool needs_hidden, bool needs_weight, bool needs_bias"


def _define(name: str, schema: str, fake: Any, **autograd: Any) -> Any:
    served = implementations(kernels.DISPATCH_KEYS, _NATIVE[name], _PLAIN[name])
    return define(schema, served, fake, **autograd)


_ROWS_BACKWARD = _define(
    "rows_backward",
    f"linear_cross_entropy_rows_backward(Tensor grad, {_OPERANDS}, {_NEEDS}) -> (Tensor, Tensor, Tensor)",
    _fake_rows_backward,
)
linear_cross_entropy_rows = _define(
    "rows",
    f"linear_cross_entropy_rows({_OPERANDS}) -> Tensor",
    _fake_rows,
    backward=_rows_derivative,
    setup_context=_save_rows,
)
linear_cross_entropy_total = _define(
    "total",
    f"linear_cross_entropy_total({_OPERANDS}, {_NEEDS}) -> (Tensor, Tensor, Tensor, Tensor)",
    _fake_total,
    backward=_total_derivative,
    setup_context=_save_total,
)
