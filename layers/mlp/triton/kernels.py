"""The gated half of a feed-forward block in one Triton kernel: both products read each tile of x once.

gated_linear_kernel            activation(x gate^T + gate_bias) * (x up^T + up_bias)
gated_linear_gradient_kernel   the gradients at both pre-activations, in one pass
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from . import matmul
from .blocks import FORMULAS
from .linear_gradient import (
    gradient_of_product,
    linear,
    linear_with_gradient,
    on_triton,
)
from .matmul import ProductTile, activate, tile_origin
from .operands import applies, dense, operand
from .registration import define, differentiate
from .releases import other_fields
from .triton_launches import cdiv, launch

__all__ = [
    "GATED_LINEAR",
    "GATED_MLP",
    "LINEAR",
    "PROJECTS",
    "applies",
    "dense",
    "gated_linear_with_gradient",
    "gated_mlp_directly",
    "linear_directly",
    "linear_with_gradient",
    "operand",
    "weights",
]

weights = None
"""Nothing is packed on this backend."""

GATED_MLP = None
gated_mlp_directly = linear_directly = None
PROJECTS = False
"""A product without activation has no epilogue to fuse: cuBLAS and hipBLASLt are left to it."""

BLOCK = 1024


def gated_tile_for(
    m: int, n: int, dtype: torch.dtype, *, aligned: bool, tf32: bool = False, hip: bool = False
) -> ProductTile:
    """As `tile_for`; two accumulators of the largest tile would not fit into registers."""
    tile = matmul.tile_for(m, n, dtype, aligned=aligned, tf32=tf32, hip=hip)
    tile = replace(tile, n=min(tile.n, 64))
    others = other_fields("gated linear", f"tf32 {tile.m} {tile.n} {tile.k}") if tf32 else None
    return replace(tile, **others) if others else tile


@triton.jit
def gated_linear_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    gate_ptr,
    up_ptr,
    gate_bias_ptr,
    up_bias_ptr,
    y_ptr,
    gate_pre_ptr,
    up_pre_ptr,
    M,
    N,
    K,
    stride_x,
    stride_gate,
    stride_up,
    ACTIVATION: tl.constexpr,
    HAS_GATE_BIAS: tl.constexpr,
    HAS_UP_BIAS: tl.constexpr,
    SAVE_PRE: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """x (M, K), gate and up (N, K), rows at their strides; biases (N,); y and both pre (M, N) contiguous."""
    row, column = tile_origin(M, N, BLOCK_M, BLOCK_N, GROUP)
    rows, columns, ks = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    x_rows = tl.where(row + rows < M, rows, 0)
    w_rows = tl.where(column + columns < N, columns, 0)
    x_ptrs = x_ptr + row.to(tl.int64) * stride_x + (x_rows[:, None] * stride_x + ks[None, :])
    gate_ptrs = gate_ptr + column.to(tl.int64) * stride_gate + (w_rows[None, :] * stride_gate + ks[:, None])
    up_ptrs = up_ptr + column.to(tl.int64) * stride_up + (w_rows[None, :] * stride_up + ks[:, None])
    gate = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            x = tl.load(x_ptrs)
            w_gate = tl.load(gate_ptrs)
            w_up = tl.load(up_ptrs)
        else:
            x = tl.load(x_ptrs, mask=ks[None, :] < K - k, other=0.0)
            w_gate = tl.load(gate_ptrs, mask=ks[:, None] < K - k, other=0.0)
            w_up = tl.load(up_ptrs, mask=ks[:, None] < K - k, other=0.0)
        if UPCAST:
            x, w_gate, w_up = x.to(tl.float32), w_gate.to(tl.float32), w_up.to(tl.float32)
        gate = tl.dot(x, w_gate, gate, input_precision=PRECISION)
        up = tl.dot(x, w_up, up, input_precision=PRECISION)
        x_ptrs += BLOCK_K
        gate_ptrs += BLOCK_K
        up_ptrs += BLOCK_K
    in_row = column + columns < N
    if HAS_GATE_BIAS:
        gate += tl.load(gate_bias_ptr + column + columns, mask=in_row, other=0.0).to(tl.float32)[None, :]
    if HAS_UP_BIAS:
        up += tl.load(up_bias_ptr + column + columns, mask=in_row, other=0.0).to(tl.float32)[None, :]
    offsets = row.to(tl.int64) * N + column + (rows[:, None] * N + columns[None, :])
    inside = (row + rows < M)[:, None] & in_row[None, :]
    if SAVE_PRE:
        tl.store(gate_pre_ptr + offsets, gate.to(gate_pre_ptr.dtype.element_ty), mask=inside)
        tl.store(up_pre_ptr + offsets, up.to(up_pre_ptr.dtype.element_ty), mask=inside)
    tl.store(y_ptr + offsets, (activate(gate, ACTIVATION) * up).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def slope(x, ACTIVATION: tl.constexpr):  # type: ignore[no-untyped-def]
    """The derivative of the activation at a float32 value."""
    if ACTIVATION == "relu":
        y = tl.where(x > 0.0, 1.0, 0.0)
    elif ACTIVATION == "silu":
        s = tl.sigmoid(x)
        y = s * (1.0 + x * (1.0 - s))
    elif ACTIVATION == "gelu":
        density = 0.3989422804014327 * tl.exp(-0.5 * x * x)
        y = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * density
    elif ACTIVATION == "gelu_tanh":  # x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
        s = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        y = s + x * s * (1.0 - s) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
    elif ACTIVATION == "quick_gelu":
        s = tl.sigmoid(1.702 * x)
        y = s + 1.702 * x * s * (1.0 - s)
    else:
        y = tl.full(x.shape, 1.0, tl.float32)
    return y


@triton.jit
def gated_linear_gradient_kernel(  # type: ignore[no-untyped-def]
    gradient_ptr,
    gate_pre_ptr,
    up_pre_ptr,
    at_gate_ptr,
    at_up_ptr,
    size,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """y = f(gate) up: at_gate = gradient f'(gate) up, at_up = gradient f(gate). Contiguous, `size` elements."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    gradient = tl.load(gradient_ptr + offsets, mask=inside).to(tl.float32)
    gate = tl.load(gate_pre_ptr + offsets, mask=inside).to(tl.float32)
    up = tl.load(up_pre_ptr + offsets, mask=inside).to(tl.float32)
    at_gate = gradient * up * slope(gate, ACTIVATION)
    at_up = gradient * activate(gate, ACTIVATION)
    tl.store(at_gate_ptr + offsets, at_gate.to(at_gate_ptr.dtype.element_ty), mask=inside)
    tl.store(at_up_ptr + offsets, at_up.to(at_up_ptr.dtype.element_ty), mask=inside)


def gated_linear_with_gradient(
    x: Tensor, gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None, activation: str
) -> Tensor:
    """activation(x gate^T + gate_bias) * (x up^T + up_bias), recorded for backward."""
    output: Tensor = _operator(x, gate, up, gate_bias, up_bias, activation)[0]
    return output


def _run(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    gate_bias: Tensor | None,
    up_bias: Tensor | None,
    activation: str,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    rows, gate, up = matmul.as_rows(x), matmul.as_rows(gate), matmul.as_rows(up)
    (m, k), n = rows.shape, gate.shape[0]
    y = x.new_empty((*x.shape[:-1], n))
    gate_pre, up_pre = (
        (torch.empty_like(y), torch.empty_like(y)) if save else (x.new_empty(0), x.new_empty(0))
    )
    precision = matmul.precision_of(x.dtype)
    aligned = matmul.are_aligned(k, rows, gate, up)
    tile = gated_tile_for(
        m, n, x.dtype, aligned=aligned, tf32=precision == "tf32", hip=torch.version.hip is not None
    )
    launch(
        gated_linear_kernel,
        (cdiv(m, tile.m) * cdiv(n, tile.n),),
        (
            rows,
            gate,
            up,
            gate_bias if gate_bias is not None else y,
            up_bias if up_bias is not None else y,
            y,
            gate_pre if save else y,
            up_pre if save else y,
            m,
            n,
            k,
            rows.stride(0),
            gate.stride(0),
            up.stride(0),
        ),
        ACTIVATION=activation,
        HAS_GATE_BIAS=gate_bias is not None,
        HAS_UP_BIAS=up_bias is not None,
        SAVE_PRE=save,
        EVEN_K=k % tile.k == 0,
        PRECISION=precision,
        UPCAST=matmul.upcasts(x.dtype),
        GROUP=tile.group,
        **tile.constants,
    )
    return y, gate_pre, up_pre


def _gated_linear(
    x: Tensor, gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None, activation: str
) -> Tensor:
    if not matmul.fits(x, gate, up):
        return _reference(x, gate, up, gate_bias, up_bias, activation)[0]
    return _run(x, gate, up, gate_bias, up_bias, activation, save=False)[0]


def _forward(
    x: Tensor, gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    if not matmul.fits(x, gate, up):
        return _reference(x, gate, up, gate_bias, up_bias, activation)
    return _run(x, gate, up, gate_bias, up_bias, activation, save=True)


def _reference(
    x: Tensor, gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    gate_pre, up_pre = F.linear(x, gate, gate_bias), F.linear(x, up, up_bias)
    return FORMULAS[activation](gate_pre) * up_pre, gate_pre, up_pre


def _fake(
    x: Tensor, gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    shape = (*x.shape[:-1], gate.shape[0])
    return x.new_empty(shape), x.new_empty(shape), x.new_empty(shape)


def _gradient(gradient: Tensor, gate_pre: Tensor, up_pre: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    gradient = gradient.contiguous()
    at_gate, at_up = torch.empty_like(gate_pre), torch.empty_like(up_pre)
    if (size := gradient.numel()) > 0:
        launch(
            gated_linear_gradient_kernel,
            (cdiv(size, BLOCK),),
            (gradient, gate_pre, up_pre, at_gate, at_up, size),
            ACTIVATION=activation,
            BLOCK=BLOCK,
            num_warps=4,
        )
    return at_gate, at_up


def _gradient_reference(
    gradient: Tensor, gate_pre: Tensor, up_pre: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        gate, up = gate_pre.detach().requires_grad_(), up_pre.detach().requires_grad_()
        return torch.autograd.grad(FORMULAS[activation](gate) * up, (gate, up), gradient)  # type: ignore[return-value]


def _gradient_fake(
    gradient: Tensor, gate_pre: Tensor, up_pre: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gate_pre), torch.empty_like(up_pre)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *operands, ctx.activation = inputs
    ctx.save_for_backward(*operands, output[1], output[2])
    ctx.mark_non_differentiable(output[1], output[2])


def _backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Any, ...]:
    *operands, gate_pre, up_pre = ctx.saved_tensors
    if torch.is_grad_enabled():
        # By the formula: what the kernels save hides from a second derivative how it came about.
        return *differentiate(
            lambda *given: _reference(*[*given, ctx.activation])[0], gradient, operands
        ), None
    x, gate, up, *_ = operands
    needs_x, needs_gate, needs_up, needs_gate_bias, needs_up_bias, _ = ctx.needs_input_grad
    at_gate, at_up = _gradient_operator(gradient, gate_pre, up_pre, ctx.activation)
    of_x, of_gate, of_gate_bias = gradient_of_product(
        at_gate, x, gate, (needs_x, needs_gate, needs_gate_bias)
    )
    more_of_x, of_up, of_up_bias = gradient_of_product(at_up, x, up, (needs_x, needs_up, needs_up_bias))
    if of_x is not None and more_of_x is not None:
        of_x = of_x + more_of_x
    return of_x, of_gate, of_up, of_gate_bias, of_up_bias, None


LINEAR = on_triton(linear)
GATED_LINEAR = on_triton(_gated_linear)

_gradient_operator = define(
    "gated_linear_gradient(Tensor gradient, Tensor gate_pre, Tensor up_pre, str activation) -> (Tensor, Tensor)",
    {**on_triton(_gradient), "CompositeExplicitAutograd": _gradient_reference},
    _gradient_fake,
)

_operator = define(
    "gated_linear_with_gradient(Tensor x, Tensor gate, Tensor up, Tensor? gate_bias, Tensor? up_bias, str activation)"
    " -> (Tensor, Tensor, Tensor)",
    {**on_triton(_forward), "CompositeExplicitAutograd": _reference},
    _fake,
    backward=_backward,
    setup_context=_save,
)
