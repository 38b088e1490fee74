"""Steps of optimizers (ai.onnx.preview.training), which are arithmetic; Gradient, which is none, is refused.

Operands are a learning rate R, a number of updates T, then all tensors, all gradients, and each kind of state.
"""

from __future__ import annotations

from collections.abc import Callable

from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.ir.graph import Value

_DOMAIN = "ai.onnx.preview.training"


def _stepped(node: OnnxNode, states: int, step: Callable[..., tuple[Value, ...]]) -> list[Value]:
    """step(tensor, gradient, *states), for each tensor: new tensors first, then each kind of state."""
    values = node.all_inputs()[2:]
    count, rest = divmod(len(values), 2 + states)
    if rest or not count:
        raise node.refuse(f"{len(values)} tensors are no {2 + states} for each that is updated")
    columns = zip(*(step(*values[index::count]) for index in range(count)), strict=True)
    return [value for column in columns for value in column]


def _scalars(node: OnnxNode) -> tuple[Value, Value]:
    """R and T in float64: 1 - beta**T loses most of its digits in float32."""
    return node.input(0).reshape(()).cast("float64"), node.input(1).reshape(()).cast("float64")


def _regularized(node: OnnxNode, x: Value, gradient: Value) -> Value:
    coefficient: float = node.attr("norm_coefficient", 0.0)
    return x * coefficient + gradient


@onnx_op("Adagrad", since=1, domain=_DOMAIN)
def adagrad(node: OnnxNode) -> list[Value]:
    """Duchi, Hazan, Singer 2011, the rate falling with the number of updates."""
    rate, updates = _scalars(node)
    rate = rate / (updates * node.attr("decay_factor", 0.0) + 1.0)

    def step(x: Value, gradient: Value, squares: Value) -> tuple[Value, ...]:
        gradient = _regularized(node, x, gradient)
        squares = squares + gradient * gradient
        return x - rate.cast(x.dtype) * gradient / (
            squares.unary("sqrt") + node.attr("epsilon", 1e-6)
        ), squares

    return _stepped(node, 1, step)


@onnx_op("Adam", since=1, domain=_DOMAIN)
def adam(node: OnnxNode) -> list[Value]:
    """arXiv 1412.6980; before the first update there is no bias to correct."""
    rate, updates = _scalars(node)
    alpha, beta = node.attr("alpha", 0.9), node.attr("beta", 0.999)
    first, second = (node.constant(one, "float64").binary("pow", updates) for one in (alpha, beta))
    corrected = rate * (1.0 - second).unary("sqrt") / (1.0 - first)
    rate = (updates > 0.0).select(corrected, rate)

    def step(x: Value, gradient: Value, mean: Value, squares: Value) -> tuple[Value, ...]:
        gradient = _regularized(node, x, gradient)
        mean = mean * alpha + gradient * (1.0 - alpha)
        squares = squares * beta + gradient * gradient * (1.0 - beta)
        new = x - rate.cast(x.dtype) * (mean / (squares.unary("sqrt") + node.attr("epsilon", 1e-6)))
        return new * (1.0 - node.attr("norm_coefficient_post", 0.0)), mean, squares

    return _stepped(node, 2, step)


@onnx_op("Momentum", since=1, domain=_DOMAIN)
def momentum(node: OnnxNode) -> list[Value]:
    """Stochastic gradient descent with momentum, standard or Nesterov's; the first gradient counts in full."""
    rate, updates = _scalars(node)
    alpha, mode = node.attr("alpha"), node.attr("mode")
    beta = (updates > 0.0).select(node.constant(node.attr("beta"), "float64"), 1.0)
    if mode not in {"standard", "nesterov"}:
        raise node.refuse(f"the mode is {mode!r}; it must be standard or nesterov")

    def step(x: Value, gradient: Value, velocity: Value) -> tuple[Value, ...]:
        gradient = _regularized(node, x, gradient)
        velocity = velocity * alpha + beta.cast(x.dtype) * gradient
        way = velocity if mode == "standard" else gradient + velocity * alpha
        return x - rate.cast(x.dtype) * way, velocity

    return _stepped(node, 1, step)
