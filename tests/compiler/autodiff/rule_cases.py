"""A graph in float64 for every row of the table of derivatives, several where a row has several sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels_hub.compiler import Graph, Value
from kernels_hub.compiler.ir.types import Array

Build = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """A graph with one output y; inputs are a, b, … in the order of the arrays, floats in float64."""

    row: str
    build: Build
    arrays: tuple[Array, ...]
    symbols: Mapping[int, tuple[Any, ...]]
    """Input -> its shape, where dims of it are symbols."""
    note: str = ""

    @property
    def id(self) -> str:
        return f"{self.row}-{self.note}" if self.note else self.row

    def graph(self) -> Graph:
        graph = Graph(self.row)
        given = [
            graph.input("abcd"[place], self.symbols.get(place, one.shape), one.dtype)
            for place, one in enumerate(self.arrays)
        ]
        graph.output("y", self.build(*given))
        return graph

    def inputs(self) -> dict[str, Array]:
        return {"abcd"[place]: one for place, one in enumerate(self.arrays)}


def floats(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> Array:
    """Numbers between bounds, no two closer than finite differences reach, none near a whole number."""
    count = int(np.prod(shape))
    grid = np.linspace(low, high, count + 2)[1:-1] + (high - low) / (7.3 * (count + 2))
    near = np.abs(grid - np.round(grid)) < 1e-3
    grid = np.where(near, grid + 3e-3, grid)
    return np.random.default_rng(seed).permutation(grid).reshape(shape)


def whole(*shape: int, below: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, below, shape)


ROWS: list[Case] = []


def case(row: str, build: Build, *arrays: Array, note: str = "", **symbols: tuple[Any, ...]) -> None:
    places = {"abcd".index(name): shape for name, shape in symbols.items()}
    ROWS.append(Case(row, build, tuple(np.asarray(one) for one in arrays), places, note))


def _unary(name: str) -> Build:
    return lambda a: a.unary(name)


def _binary(name: str) -> Build:
    return lambda a, b: a.binary(name, b)


def _op(name: str, **attrs: Any) -> Build:
    return lambda *operands: operands[0].apply(name, *operands, **attrs)


for _name in ("exp", "exp2", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh", "tanh", "asinh", "erf", "sigmoid",
              "neg", "abs"):  # fmt: skip
    case(_name, _unary(_name), floats(2, 3, low=-1.4, high=1.4))
for _name in ("log", "log2", "log1p", "sqrt", "rsqrt"):
    case(_name, _unary(_name), floats(2, 3, low=0.3, high=3))
for _name in ("asin", "acos", "atanh"):
    case(_name, _unary(_name), floats(2, 3, low=-0.9, high=0.9))
for _name in ("lgamma", "erfinv", "erfcx"):
    case(_name, _unary(_name), floats(2, 3, low=0.1, high=0.9))
case("ndtri", _unary("ndtri"), floats(2, 3, low=0.1, high=0.9))
for _name in ("hypot", "copysign"):
    case(_name, _binary(_name), floats(2, 3) + 0.05, floats(2, 3, seed=1))
case("logcumsumexp", _op("logcumsumexp", axis=1), floats(2, 4))
case("acosh", _unary("acosh"), floats(2, 3, low=1.2, high=3))
for _name in ("add", "sub", "mul", "div", "maximum", "minimum", "atan2"):
    case(_name, _binary(_name), floats(2, 3), floats(2, 3, seed=1))
    case(_name, _binary(_name), floats(2, 3), floats(3, seed=1) + 0.05, note="broadcast")
    case(_name, _binary(_name), floats(2, 3), floats(1, 1, seed=1) + 0.05, note="of one element")
for _name in ("mod", "fmod"):
    case(_name, _binary(_name), floats(2, 3, low=-5, high=5), floats(2, 3, low=0.7, high=2, seed=1))
case("maximum", lambda a: a.relu(), floats(2, 3), note="a number")
case("minimum", lambda a: a.clamp(-0.5, 0.7), floats(2, 3), note="clamp")
case("mul", lambda a: a * a * a, floats(2, 3), note="used again")
case("sub", lambda a: a - a.tanh() - a, floats(2, 3), note="used again")
case("pow", _binary("pow"), floats(2, 3, low=0.3, high=2), floats(2, 3, seed=1))
for _number in (0, 1, 2, 3, 7, -2):
    case("pow", lambda a, number=_number: a**number, floats(2, 3), note=f"to the {_number}")
for _number in (0.5, -0.5, 2.5):
    case("pow", lambda a, number=_number: a**number, floats(2, 3, low=0.3), note=f"to the {_number}")
case("pow", lambda b: 2.5**b, floats(2, 3), note="of a number")
case("select", lambda c, a, b: (c > 2).select(a, b), whole(2, 3, below=5), floats(2, 3), floats(3, seed=1))
case("cast", lambda a: a.cast("int32").cast("float64") * a, floats(2, 3), note="through an integer")


def _halves(a: Value) -> Value:
    first, second = a.split([2, 4], 1)
    return a.apply("concat", second * 3.0, first.unary("sin"), axis=1)


case("reshape", lambda a: a.reshape(3, 4).tanh() * 2, floats(2, 6))
case("reshape", lambda a: a.reshape(-1) ** 2, floats(2, 6), note="symbolic", a=("n", 6))
case("broadcast", lambda a: a.broadcast_to(4, 2, 3).unary("sin") * 2, floats(2, 1))
case(
    "broadcast",
    lambda a, b: a.broadcast_to(b.shape) * b,
    floats(3),
    floats(2, 3),
    note="symbolic",
    b=("n", 3),
)
case("permute", lambda a: a.permute(2, 0, 1).exp(), floats(2, 3, 2))
case("slice", lambda a: a.slice(1, 1, 4).exp(), floats(2, 5))
case("slice", lambda a: a.slice(0, 1, 6, 2).exp(), floats(7, 2), note="steps")
case("slice", lambda a: a.slice(0, 0, 8, 3).exp(), floats(8, 2), note="steps to the end")
case("slice", lambda a: a.slice(0, 3, 3, 2).exp().sum() + a.sum(), floats(7), note="nothing")
case("slice", lambda a: a.slice(0, 1, None, 2).exp(), floats(6, 2), note="symbolic steps", a=("n + 1", 2))
case("slice", lambda a: _halves(a), floats(2, 6), note="parts put together")
case("flip", lambda a: a.flip(1).exp(), floats(2, 3))
case("strided", lambda a: a.windows(0, 3, 2).exp(), floats(7, 2))
case("strided", lambda a: a.windows(0, 2).exp(), floats(4, 2), note="symbolic", a=("n + 3", 2))
case("pad", lambda a: a.pad([(1, 2), (0, 1)], 0.5).exp(), floats(2, 3))
case(
    "pad",
    lambda a, b: a.pad([(1, 2), (0, 1)], b.reshape(())).exp(),
    floats(2, 3),
    floats(1),
    note="with a value",
)
for _mode, _padding in (
    ("reflect", [(1, 2), (2, 0)]),
    ("edge", [(1, 2), (0, 3)]),
    ("wrap", [(4, 2), (0, 1)]),
):
    case("pad", lambda a, m=_mode, p=_padding: a.pad(p, mode=m).exp(), floats(3, 4), note=_mode)
case(
    "pad", lambda a: a.pad([(1, 1)], mode="reflect").exp(), floats(4), note="reflect, symbolic", a=("n + 2",)
)
case("concat", lambda a, b: a.apply("concat", a, b, a, axis=1).exp(), floats(2, 2), floats(2, 3, seed=1))


case("reduce_sum", lambda a: a.sum(1).exp(), floats(2, 3, 2, low=-1, high=1))
case("reduce_sum", lambda a: a.sum(), floats(2, 3), note="of all, symbolic", a=("n", 3))
case("reduce_mean", lambda a: a.mean((0, 2)).exp(), floats(2, 3, 2))
case("reduce_mean", lambda a: a.mean(), floats(2, 3), note="of all, symbolic", a=("n", 3))
case("reduce_prod", lambda a: a.reduce("prod", (0, 2)), floats(2, 3, 2))
case("reduce_prod", lambda a: a.reduce("prod", 1), np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 1.5]]), note="zeros")
case("reduce_max", lambda a: a.max(1), floats(2, 3, 2))
case("reduce_min", lambda a: a.min((0, 1)), floats(2, 3, 2))
case("softmax", lambda a: a.softmax(1), floats(2, 3, 2))
case("log_softmax", lambda a: a.along("log_softmax", 1), floats(2, 3, 2))
for _reverse in (False, True):
    case(
        "cumsum",
        lambda a, r=_reverse: a.cumulate("sum", 1, reverse=r).unary("sin"),
        floats(2, 4),
        note=f"reverse={_reverse}",
    )
case("cumprod", lambda a: a.cumulate("prod", 1).unary("sin"), floats(2, 4))
case(
    "cumprod",
    lambda a: a.cumulate("prod", 0),
    np.array([[1.5, 0.0], [0.0, 2.0], [0.5, 3.0]]),
    note="zeros",
    a=("n", 2),
)
for _name in ("cummax", "cummin"):
    case(_name, lambda a, n=_name: a.along(n, 1).unary("sin"), floats(2, 5))

case("matmul", lambda a, b: a @ b, floats(2, 3), floats(3, 4, seed=1))
case("matmul", lambda a, b: a @ b, floats(2, 1, 2, 3), floats(4, 3, 2, seed=1), note="batches broadcast")
case(
    "matmul",
    lambda a, b: (a @ b.transpose()).unary("sin"),
    floats(2, 2, 3),
    floats(4, 3, seed=1),
    note="linear",
    a=("n", "m", 3),
)
case("matmul", lambda a, b: a @ b, floats(3), floats(3, 2, seed=1), note="a vector")
case(
    "matmul",
    lambda a, b: a.broadcast_to(3, 2, 2, 4) @ b,
    floats(2, 2, 4),
    floats(3, 2, 4, 1, seed=1),
    note="a part of the batch is the same",
)
case("matmul", lambda a: a @ a.transpose(), floats(2, 3), note="with itself")
case(
    "matmul_few_bits",
    lambda a: a.graph.apply(
        "matmul_few_bits",
        a,
        a.graph.constant(whole(3, 2, 8, below=256).astype(np.uint8)),
        a.graph.constant(floats(3, 2, seed=1)),
        bits=4,
    ).unary("sin"),
    floats(2, 20, low=-0.1, high=0.1),
)

_PLAIN = {"strides": (1, 1), "dilations": (1, 1), "padding": [(0, 0), (0, 0)]}
for _note, _x, _w, _attrs in (
    ("plain", (2, 3, 4, 5), (2, 3, 2, 3), _PLAIN),
    ("padded", (1, 2, 3, 3), (3, 2, 3, 3), {**_PLAIN, "padding": [(1, 1), (2, 0)]}),
    ("strides", (1, 2, 6, 5), (2, 2, 2, 2), {**_PLAIN, "strides": (2, 3), "padding": [(1, 0), (0, 1)]}),
    ("dilations", (1, 1, 6, 6), (2, 1, 2, 2), {**_PLAIN, "dilations": (2, 3), "padding": [(1, 1), (1, 1)]}),
    ("both", (1, 2, 7, 6), (1, 2, 2, 2), {**_PLAIN, "strides": (2, 2), "dilations": (2, 1)}),
    ("groups", (2, 4, 3, 3), (6, 2, 2, 2), {**_PLAIN, "groups": 2}),
    ("more padding than kernel", (1, 1, 2, 2), (1, 1, 1, 2), {**_PLAIN, "padding": [(1, 2), (2, 2)]}),
):  # fmt: skip
    case("conv", _op("conv", **_attrs), floats(*_x), floats(*_w, seed=1), note=_note)
case(
    "conv",
    _op("conv", strides=(1,), dilations=(1,), padding=[(1, 1)]),
    floats(2, 2, 4),
    floats(2, 2, 3, seed=1),
    note="symbolic",
    a=("n", 2, "m + 3"),
)
for _note, _x, _w, _attrs in (
    ("plain", (2, 3, 3, 2), (3, 2, 2, 3), {**_PLAIN, "output_padding": (0, 0)}),
    ("strides", (1, 2, 3, 2), (2, 1, 3, 2), {**_PLAIN, "strides": (2, 2), "padding": [(1, 1), (0, 1)],
                                            "output_padding": (1, 0)}),
    ("groups", (1, 4, 2, 3), (4, 2, 2, 2), {**_PLAIN, "groups": 2, "dilations": (2, 1), "output_padding": (0, 1)}),
):  # fmt: skip
    case("conv_transpose", _op("conv_transpose", **_attrs), floats(*_x), floats(*_w, seed=1), note=_note)

case(
    "max_pool",
    _op("max_pool", kernel=(2, 2), strides=(2, 2), dilations=(1, 1), padding=[(0, 0), (0, 0)]),
    floats(1, 2, 5, 4),
    note="apart",
)
case(
    "max_pool",
    _op("max_pool", kernel=(2,), strides=(2,), dilations=(1,), padding=[(1, 0)]),
    floats(1, 1, 7),
    note="symbolic",
    a=("n", 1, "2*m + 1"),
)
_POOL = {"kernel": (2, 3), "strides": (1, 2), "dilations": (1, 1), "padding": [(1, 0), (1, 1)]}
for _name in ("max_pool", "sum_pool", "avg_pool"):
    case(_name, _op(_name, **_POOL), floats(2, 2, 4, 5))
    case(
        _name,
        _op(_name, **{**_POOL, "dilations": (2, 1), "strides": (2, 2), "ceil": True}),
        floats(1, 2, 5, 6),
        note="ceil",
    )
case("avg_pool", _op("avg_pool", **_POOL, count="padded"), floats(1, 2, 4, 5), note="padded")
case(
    "sum_pool",
    _op("sum_pool", kernel=(2,), strides=(1,), dilations=(1,), padding=[(0, 1)]),
    floats(2, 2, 4),
    note="symbolic",
    a=("n", 2, "m + 3"),
)

_CROP = {"coordinates": "crop", "roi": (0.0, 0.0, 0.1, 0.2, 1.0, 1.0, 0.8, 1.4), "extrapolation": 3.0}
for _note, _shape, _attrs in (
    ("nearest", (2, 1, 6, 8), {}),
    ("nearest, fewer", (2, 1, 2, 3), {"coordinates": "asymmetric", "nearest": "floor"}),
    ("linear", (2, 1, 5, 7), {"mode": "linear"}),
    ("linear, corners", (2, 1, 5, 7), {"mode": "linear", "coordinates": "align_corners"}),
    ("cubic", (2, 1, 4, 9), {"mode": "cubic", "exclude_outside": True}),
    ("antialias", (2, 1, 2, 2), {"mode": "linear", "antialias": True}),
    ("scales", (2, 1, 4, 6), {"mode": "linear", "scales": (1.0, 1.0, 1.5, 1.7)}),
    ("crop", (2, 1, 4, 5), {"mode": "linear", **_CROP}),
):  # fmt: skip
    case("resize", _op("resize", shape=_shape, **_attrs), floats(2, 1, 3, 4), note=_note)
case(
    "resize",
    lambda a: a.apply("resize", a, shape=a.graph.dims(("n", 1, 6)), mode="linear"),
    floats(2, 1, 3),
    note="symbolic",
    a=("n", 1, 3),
)

case("gather", lambda a, i: a.gather(i, 0).exp(), floats(4, 2), whole(2, 3, below=4))
case("gather", lambda a, i: a.gather(i, 1).exp(), floats(2, 4, 2), whole(3, below=4) - 4, note="from the end")
case("gather", lambda a, i: a.gather(i, 1), floats(2, 4), np.asarray(-2), note="a scalar")
case(
    "gather",
    lambda a, i: a.gather(i, 0).exp(),
    floats(4, 2),
    whole(2, 3, below=4),
    note="symbolic",
    b=("n", "m"),
)
case("gather_elements", lambda a, i: a.gather_elements(i, 1).exp(), floats(3, 4), whole(3, 5, below=4))
case(
    "gather_elements",
    lambda a, i: a.gather_elements(i, 0).exp(),
    floats(3, 4),
    whole(2, 3, below=3),
    note="fewer",
)
case(
    "gather_elements",
    lambda a, i: a.gather_elements(i, 1).exp(),
    floats(3, 4),
    np.array([[2], [-1], [0]]),
    note="one",
    a=("n", 4),
    b=("n", 1),
)
case("gather_nd", lambda a, i: a.apply("gather_nd", a, i).exp(), floats(3, 4, 2), whole(5, 2, below=3))
case(
    "gather_nd",
    lambda a, i: a.apply("gather_nd", a, i, batch_dims=1).exp(),
    floats(3, 4, 2),
    whole(3, 2, 1, below=4),
    note="batch",
)
_ONCE = np.array([[2, 0, 1], [0, 2, 3]])
for _how, _at in (("none", _ONCE), ("add", whole(2, 3, below=4))):
    case(
        "scatter_elements",
        _op("scatter_elements", axis=1, reduction=_how),
        floats(2, 4),
        _at,
        floats(2, 3, seed=1),
        note=_how,
    )
    case(
        "scatter_nd",
        _op("scatter_nd", reduction=_how),
        floats(5, 2),
        np.array([[3], [1], [3 if _how == "add" else 0]]),
        floats(3, 2, seed=1),
        note=_how,
    )
case("with_derivative", lambda a: a.apply("with_derivative", a.exp(), a, a.exp()), floats(2, 3))
for _length in (5, 6):
    _half = _length // 2 + 1
    for _note, _attrs, _shapes in (
        ("complex", {}, [(2, _length)] * 2),
        ("inverse", {"inverse": True, "scale": 0.5}, [(2, _length)] * 2),
        ("of real samples", {}, [(2, _length)]),
        ("half", {"form": "half"}, [(2, _length)]),
        ("samples", {"form": "real", "length": _length, "scale": 0.5}, [(2, _half)] * 2),
    ):
        case(
            "fourier",
            _op("fourier", axis=1, **_attrs),
            *(floats(*shape, seed=place) for place, shape in enumerate(_shapes)),
            note=f"{_note} of {_length}",
        )
