"""Rules that compute something else, planted for the judge to find; and other right forms, which it has to take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from kernels_hub.compiler import Graph, Value

Build = Callable[[Graph], Value]


@dataclass(frozen=True)
class Plant:
    """right: the graph; other: what a rule makes of it."""

    name: str
    right: Build
    other: Build

    def graphs(self) -> tuple[Graph, Graph]:
        return made(self.right), made(self.other)


def made(build: Build) -> Graph:
    graph = Graph("planted")
    graph.output("y", build(graph))
    return graph


def x(g: Graph, *shape: int, dtype: str = "float32", name: str = "x") -> Value:
    return g.inputs[name] if name in g.inputs else g.input(name, shape or (4, 8), dtype)


def w(g: Graph, *shape: int, name: str = "w") -> Value:
    if name in g.parameters:
        return g.parameters[name]
    random = np.random.default_rng(len(name) + sum(shape))
    return g.parameter(name, shape, "float32", random.standard_normal(shape).astype(np.float32))


def ints(g: Graph, name: str = "i", dtype: str = "int32") -> Value:
    return x(g, 4, 8, dtype=dtype, name=name)


def variance(v: Value, *, less: int = 0) -> Value:
    centred = v - v.mean(-1, keepdims=True)
    return (centred * centred).sum(-1, keepdims=True) / float(v.shape[-1] - less)


def layer_norm(v: Value, eps: float = 1e-5, *, less: int = 0) -> Value:
    return (v - v.mean(-1, keepdims=True)) * (variance(v, less=less) + eps).rsqrt()


def scores(g: Graph) -> Value:
    return x(g, 4, 16, name="q") @ x(g, 16, 4, name="k")


def mask(g: Graph) -> Value:
    return x(g, 4, 4, dtype="bool", name="mask")


def causal(g: Graph, diagonal: int) -> Value:
    return g.constant(np.tril(np.ones((4, 4), bool), diagonal))


def pooled(v: Value, op: str, before: int, behind: int, **more: object) -> Value:
    return v.unary(op, kernel=(3,), strides=(1,), dilations=(1,), padding=((before, behind),), **more)


def convolved(g: Graph, before: int, behind: int, dilation: int = 1) -> Value:
    return x(g, 1, 2, 12).graph.apply(
        "conv",
        x(g, 1, 2, 12),
        w(g, 3, 2, 3),
        strides=(1,),
        dilations=(dilation,),
        padding=((before, behind),),
    )


def gelu(v: Value) -> Value:
    return v * 0.5 * ((v * (1 / math.sqrt(2))).erf() + 1.0)


def gelu_tanh(v: Value) -> Value:
    return v * 0.5 * (((v + v * v * v * 0.044715) * math.sqrt(2 / math.pi)).tanh() + 1.0)


def u(name: str) -> Callable[[Value], Value]:
    return lambda v: v.unary(name)


def table(g: Graph) -> Value:
    return w(g, 12, 5, name="table")


def ids(g: Graph) -> Value:
    return x(g, 6, dtype="int64", name="ids")


def _rules(rows: Mapping[str, tuple[Build, Build]]) -> tuple[Plant, ...]:
    return tuple(Plant(name, right, other) for name, (right, other) in rows.items())


def product(g: Graph) -> Value:
    return x(g) * x(g, name="z")


def filled(g: Graph, number: float) -> Value:
    """Takes the input, and does not read it."""
    assert x(g).shape == (4, 8)
    return g.full((4, 8), number)


def linear(g: Graph) -> Value:
    return x(g, 4, 64) @ w(g, 64, 16)


def square(g: Graph) -> Value:
    return x(g, 6, 6)


WRONG = _rules({
    "a clamp of a product dropped": (lambda g: product(g).minimum(1000.0), product),
    "a lower clamp of a linear dropped": (lambda g: linear(g).maximum(-500.0), linear),
    "a clamp of what a sum comes to": (lambda g: x(g).exp().sum(-1).minimum(1e6), lambda g: x(g).exp().sum(-1)),
    "relu6 as relu": (lambda g: x(g).relu().minimum(6.0), lambda g: x(g).relu()),
    "a bound off by 1e-4": (lambda g: x(g).minimum(6.0), lambda g: x(g).minimum(6.0001)),
    "a scale of 1.00005 dropped": (lambda g: linear(g) * 1.00005, linear),
    "a scale of 1.00005 of an input dropped": (lambda g: (x(g) * 1.00005).tanh(), lambda g: x(g).tanh()),
    "a bias of 1e-6 dropped": (lambda g: x(g) + 1e-6, x),
    "an epsilon of a quotient dropped": (
        lambda g: x(g) / (abs(x(g)).sum(-1, keepdims=True) + 1e-6),
        lambda g: x(g) / abs(x(g)).sum(-1, keepdims=True),
    ),
    "an epsilon of a norm of another size": (
        lambda g: layer_norm(x(g, 4, 64), 1e-6), lambda g: layer_norm(x(g, 4, 64), 1e-5)
    ),
    "an epsilon outside of the root": (
        lambda g: (x(g) - x(g).mean(-1, keepdims=True)) / (variance(x(g)) + 1e-5).sqrt(),
        lambda g: (x(g) - x(g).mean(-1, keepdims=True)) / (variance(x(g)).sqrt() + 1e-5),
    ),
    "an epsilon as a maximum": (
        lambda g: x(g) * ((x(g) * x(g)).mean(-1, keepdims=True) + 1e-6).rsqrt(),
        lambda g: x(g) * (x(g) * x(g)).mean(-1, keepdims=True).maximum(1e-6).rsqrt(),
    ),
    "the unbiased variance": (
        lambda g: layer_norm(x(g, 4, 64)), lambda g: layer_norm(x(g, 4, 64), less=1)
    ),
    "a slice off by one": (lambda g: x(g).slice(1, 1, 5), lambda g: x(g).slice(1, 0, 4)),
    "a strided slice of the other phase": (lambda g: x(g).slice(1, 0, 8, 2), lambda g: x(g).slice(1, 1, 8, 2)),
    "a pool's padding on the other side": (
        lambda g: pooled(x(g, 1, 2, 12), "max_pool", 1, 1), lambda g: pooled(x(g, 1, 2, 12), "max_pool", 2, 0)
    ),
    "a mean pool that counts its padding": (
        lambda g: pooled(x(g, 1, 2, 12), "avg_pool", 1, 1),
        lambda g: pooled(x(g, 1, 2, 12), "avg_pool", 1, 1, count="padded"),
    ),
    "a maximum pool over zeros": (
        lambda g: pooled(x(g, 1, 2, 12), "max_pool", 1, 1),
        lambda g: pooled(x(g, 1, 2, 12).pad([(0, 0), (0, 0), (1, 1)]), "max_pool", 0, 0),
    ),
    "a convolution's padding on the other side": (lambda g: convolved(g, 2, 0), lambda g: convolved(g, 1, 1)),
    "a convolution's dilation dropped": (lambda g: convolved(g, 2, 2, 2), lambda g: convolved(g, 1, 1)),
    "a cast to float16 and back dropped": (lambda g: x(g).cast("float16").cast("float32"), x),
    "a cast to bfloat16 and back dropped": (lambda g: (x(g) * 2.0).cast("bfloat16").cast("float32"), lambda g: x(g) * 2.0),
    "a cast to integers and back dropped": (lambda g: x(g).cast("int32").cast("float32"), x),
    "a narrow integer that wraps": (lambda g: ints(g).cast("int8").cast("int32"), ints),
    "floor as trunc": (lambda g: x(g).unary("floor"), lambda g: x(g).unary("trunc")),
    "halves up instead of to even": (lambda g: x(g).unary("round"), lambda g: (x(g) + 0.5).unary("floor")),
    "ceil as floor plus one": (lambda g: x(g).unary("ceil"), lambda g: x(g).unary("floor") + 1.0),
    "integers divided down": (lambda g: ints(g) / ints(g, "j"), lambda g: ints(g) // ints(g, "j")),
    "a remainder of the other sign": (
        lambda g: ints(g) % ints(g, "j"), lambda g: g.apply("fmod", ints(g), ints(g, "j"))
    ),
    "a shift as a division": (lambda g: ints(g) >> 1, lambda g: ints(g) / 2),
    "ids clamped one too low": (
        lambda g: table(g).gather(ids(g)), lambda g: table(g).gather(ids(g).minimum(10))
    ),
    "ids from the end clamped": (lambda g: table(g).gather(ids(g)), lambda g: table(g).gather(ids(g).maximum(0))),
    "-x as 0 - x": (lambda g: -x(g), lambda g: 0.0 - x(g)),
    "0 - x as -x": (lambda g: 0.0 - x(g), lambda g: -x(g)),
    "0 x as 0": (lambda g: x(g) * 0.0, lambda g: filled(g, 0.0)),
    "x - x as 0": (lambda g: x(g).exp() - x(g).exp(), lambda g: filled(g, 0.0)),
    "x / x as 1": (lambda g: x(g) / x(g), lambda g: filled(g, 1.0)),
    "the root of a square as it is": (lambda g: (x(g) * x(g)).sqrt(), x),
    "softmax without the maximum": (
        lambda g: x(g).softmax(), lambda g: x(g).exp() / x(g).exp().sum(-1, keepdims=True)
    ),
    "softmax of the other axis": (lambda g: square(g).softmax(-1), lambda g: square(g).softmax(0)),
    "a sum of the other axis": (lambda g: square(g).sum(0), lambda g: square(g).sum(1)),
    "a transpose dropped": (
        lambda g: square(g).transpose() @ w(g, 6, 6), lambda g: square(g) @ w(g, 6, 6)
    ),
    "a product the other way round": (lambda g: square(g) @ w(g, 6, 6), lambda g: w(g, 6, 6) @ square(g)),
    "a difference the other way round": (
        lambda g: x(g) - x(g, name="z"), lambda g: -(x(g) - x(g, name="z"))
    ),
    "a mask of the other sign": (
        lambda g: mask(g).select(scores(g), -math.inf).softmax(),
        lambda g: mask(g).select(-math.inf, scores(g)).softmax(),
    ),
    "a causal mask off by one": (
        lambda g: causal(g, 0).select(scores(g), -1e9).softmax(),
        lambda g: causal(g, 1).select(scores(g), -1e9).softmax(),
    ),
    "a mask of -1e9 for -inf": (
        lambda g: mask(g).select(scores(g), -math.inf).softmax(),
        lambda g: mask(g).select(scores(g), -1e9).softmax(),
    ),
    "relu as gelu": (lambda g: x(g).relu(), lambda g: gelu(x(g))),
    "gelu by tanh": (lambda g: gelu(x(g)), lambda g: gelu_tanh(x(g))),
    "a sigmoid that is cut off": (lambda g: x(g).sigmoid(), lambda g: x(g).maximum(-20.0).sigmoid()),
    "log1p by log": (lambda g: x(g).unary("log1p"), lambda g: (x(g) + 1.0).log()),
    "expm1 by exp": (lambda g: x(g).unary("expm1"), lambda g: x(g).exp() - 1.0),
    "a sum of magnitudes as the magnitude of a sum": (lambda g: abs(x(g)).sum(-1), lambda g: abs(x(g).sum(-1))),
    "less as less or equal": (lambda g: x(g) < 0.7, lambda g: x(g) <= 0.7),
    "NaN let through": (lambda g: x(g).unary("isnan").select(0.0, x(g)), x),
    "a maximum that loses NaN": (lambda g: x(g).relu(), lambda g: (x(g) > 0.0).select(x(g), 0.0)),
    "a maximum that begins at 0": (lambda g: x(g).max(-1), lambda g: x(g).max(-1).maximum(0.0)),
    "a running sum that leaves out its own": (
        lambda g: x(g).along("cumsum", -1), lambda g: x(g).cumulate("sum", 1, exclusive=True)
    ),
    "the last of equals": (
        lambda g: x(g).along("argmax", -1), lambda g: 7 - x(g).flip(1).along("argmax", -1)
    ),
    "a leak of 0.001 dropped": (
        lambda g: (x(g) > 0.0).select(x(g), x(g) * 0.001), lambda g: x(g).relu()
    ),
    "the sign of 0": (lambda g: x(g).unary("sign"), lambda g: (x(g) < 0.0).select(x(g).like(-1.0).broadcast_to(4, 8), 1.0)),
    "a logarithm of a sum without the maximum": (
        lambda g: (x(g) - x(g).max(-1, keepdims=True)).exp().sum(-1).log() + x(g).max(-1),
        lambda g: x(g).exp().sum(-1).log(),
    ),
})  # fmt: skip

RIGHT = _rules({
    "a clamp from below of the negative": (
        lambda g: product(g).minimum(1000.0), lambda g: -((-product(g)).maximum(-1000.0))
    ),
    "relu6 in the other order": (
        lambda g: x(g).relu().minimum(6.0), lambda g: x(g).minimum(6.0).maximum(0.0)
    ),
    "a scale of the input": (lambda g: linear(g) * 1.00005, lambda g: (x(g, 4, 64) * 1.00005) @ w(g, 64, 16)),
    "a root and a quotient for rsqrt": (
        lambda g: layer_norm(x(g, 4, 64)),
        lambda g: (x(g, 4, 64) - x(g, 4, 64).mean(-1, keepdims=True)) / (variance(x(g, 4, 64)) + 1e-5).sqrt(),
    ),
    "a mean as a sum": (lambda g: x(g).mean(-1), lambda g: x(g).sum(-1) * (1 / 8)),
    "softmax written out": (
        lambda g: x(g).softmax(),
        lambda g: (x(g) - x(g).max(-1, keepdims=True)).exp()
        / (x(g) - x(g).max(-1, keepdims=True)).exp().sum(-1, keepdims=True),
    ),
    "two products in one": (
        lambda g: x(g) @ w(g, 8, 4) + x(g) @ w(g, 8, 4, name="v"),
        lambda g: x(g) @ (w(g, 8, 4) + w(g, 8, 4, name="v")),
    ),
    "a product associated": (
        lambda g: (x(g) @ w(g, 8, 6)) @ w(g, 6, 3, name="v"), lambda g: x(g) @ (w(g, 8, 6) @ w(g, 6, 3, name="v"))
    ),
    "a product transposed": (
        lambda g: (square(g) @ w(g, 6, 6)).transpose(), lambda g: w(g, 6, 6).transpose() @ square(g).transpose()
    ),
    "gelu factored otherwise": (
        lambda g: gelu(x(g)), lambda g: (x(g) + x(g) * (x(g) * (1 / math.sqrt(2))).erf()) * 0.5
    ),
    "a difference as a sum": (lambda g: x(g) - x(g, name="z"), lambda g: x(g) + -x(g, name="z")),
    "a half as a quotient": (lambda g: x(g) * 0.5, lambda g: x(g) / 2.0),
    "a sum in two steps": (lambda g: x(g, 3, 4, 5).sum((1, 2)), lambda g: x(g, 3, 4, 5).sum(1).sum(1)),
    "a sum backwards": (lambda g: x(g, 3, 4096).sum(1), lambda g: x(g, 3, 4096).flip(1).sum(1)),
    "a mask and its opposite": (
        lambda g: mask(g).select(scores(g), -math.inf).softmax(),
        lambda g: (~mask(g)).select(-math.inf, scores(g)).softmax(),
    ),
    "a table times a weight": (
        lambda g: table(g).gather(ids(g)) @ w(g, 5, 3, name="v"),
        lambda g: (table(g) @ w(g, 5, 3, name="v")).gather(ids(g)),
    ),
    "a convolution of one place as a product": (
        lambda g: g.apply("conv", x(g, 2, 3, 7), w(g, 4, 3, 1), strides=(1,), dilations=(1,), padding=((0, 0),)),
        lambda g: w(g, 4, 3, 1).reshape(1, 4, 3).broadcast_to(2, 4, 3) @ x(g, 2, 3, 7),
    ),
    "terms associated": (
        lambda g: (x(g) + x(g, name="z")) + x(g, name="t"), lambda g: x(g) + (x(g, name="z") + x(g, name="t"))
    ),
    "an exact shift": (lambda g: ints(g) >> 1, lambda g: ints(g) // 2),
    "less as not less or equal": (lambda g: x(g) < 0.7, lambda g: (x(g) < 0.7) & (x(g) != 0.7)),
})  # fmt: skip
