"""Every algebraic, clamp, view and affine rule: fires, declines with the reason, and keeps the numbers.

What is recognised has its tables in test_recognition, test_attention and test_regroup.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernels_hub.compiler.ir.ops.conversion import convert
from kernels_hub.compiler.rewrite.affine import AFFINE
from kernels_hub.compiler.rewrite.algebra import ALGEBRA
from kernels_hub.compiler.rewrite.clamp import CLAMP
from kernels_hub.compiler.rewrite.contraction import CONTRACTION
from kernels_hub.compiler.rewrite.explain import rule_passes
from kernels_hub.compiler.rewrite.gradients import INFERENCE
from kernels_hub.compiler.rewrite.neighbouring import NEIGHBOURING
from kernels_hub.compiler.rewrite.parallel import PARALLEL
from kernels_hub.compiler.rewrite.parts import PARTS
from kernels_hub.compiler.rewrite.products import PRODUCTS
from kernels_hub.compiler.rewrite.rule import Match, Rule
from kernels_hub.compiler.rewrite.views import VIEWS
from tests.compiler.rewrite.cases import Case, check_declines, check_fires

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTS = ("int32", "int64", "int8")
ALL = (*FLOATS, *INTS)


def ap(op, *values, **attrs):
    return values[0].graph.apply(op, *values, **attrs)


def weights(x, *shape, name="w"):
    """A parameter of the dtype of x: positive numbers, all different."""
    array = np.linspace(0.5, 1.75, math.prod(shape), dtype=np.float32).reshape(shape)
    return x.graph.parameter(name, shape, x.dtype, convert(array, x.dtype))


def along(x, axis=1, name="w"):
    """Weights along an axis of x, broadcast to its shape."""
    return weights(x, x.shape[axis], name=name).broadcast(x.shape, (axis,))


def once(x, name="w"):
    """One weight, broadcast to the shape of x."""
    return weights(x, name=name).broadcast(x.shape, ())


def conv(x, op="conv", name="kernel"):
    """(n, 4, 3): or, transposed, (n, 4, 2)."""
    image = x.reshape(x.shape[0], 3, 1)
    attrs = {"strides": (1,), "padding": ((1, 1),) if op == "conv" else ((0, 0),), "dilations": (1,)}
    if op == "conv":
        return ap(op, image, weights(x, 4, 3, 1, name=name), **attrs)
    return ap(op, image, weights(x, 3, 4, 2, name=name), output_padding=(0,), **attrs)


def wide(x, padding=(2, 2), step=1):
    """As conv, with a larger kernel."""
    attrs = {"strides": (1,), "padding": (padding,), "dilations": (step,)}
    return ap("conv", x.reshape(x.shape[0], 3, 1), weights(x, 4, 3, 3, name="wide"), **attrs)


def matmul(x, name="matrix"):
    return x.reshape(x.shape[0], 3, 1) @ weights(x, 1, 4, name=name)


def zeros_around(x, number=0.0):
    """One more element before and behind the last dim."""
    padding = [(0, 0)] * (x.rank - 1) + [(1, 1)]
    return ap("pad", x, x.graph.constant(number, x.dtype), padding=padding)


def ends(x, y):
    """Something that is pointwise and used twice, and a slice of it."""
    product = x * y
    return ap("concat", product.slice(1, 1), product, axis=1)


FIRES = {
    "transposed_product": [
        Case(lambda x, y: (x @ y.transpose()).transpose(), FLOATS), Case(lambda x, y: (x.transpose() @ y).transpose()),
    ],
    "identity_operand": [
        Case(lambda x, y: x * 1, ALL), Case(lambda x, y: 1 * x, ALL), Case(lambda x, y: x / 1, ALL),
        Case(lambda x, y: x + -0.0, FLOATS), Case(lambda x, y: x - 0.0, FLOATS), Case(lambda x, y: x + 0, INTS),
        Case(lambda x, y: x.maximum(-math.inf), FLOATS), Case(lambda x, y: x & -1, INTS),
        Case(lambda x, y: x**1, ("float32", "int32")),
    ],
    "multiply_by_zero": [Case(lambda x, y: x * 0, INTS)],
    "subtract_itself": [Case(lambda x, y: x - x, INTS), Case(lambda x, y: x ^ x, ("bool", *INTS))],
    "idempotent": [Case(lambda x, y: x.maximum(x), ALL)],
    "inverse_twice": [Case(lambda x, y: x.unary("neg").unary("neg"), ALL), Case(lambda x, y: ~~x, ("bool", *INTS))],
    "rounded_twice": [Case(lambda x, y, op=op: x.unary(op).unary(op), FLOATS) for op in ("floor", "round", "abs", "sign")],
    "abs_of_neg": [Case(lambda x, y: abs(-x), ALL)],
    "add_negated": [Case(lambda x, y: x + -y, ALL), Case(lambda x, y: -x + y, ALL)],
    "subtract_negated": [Case(lambda x, y: x - -y, ALL)],
    "multiply_by_minus_one": [Case(lambda x, y: x * -1.0, FLOATS), Case(lambda x, y: -1 * x, INTS)],
    "divide_by_power_of_two": [Case(lambda x, y: x / 8.0, FLOATS), Case(lambda x, y: x / -0.25, FLOATS)],
    "power_zero": [Case(lambda x, y: x**0, ("float32", "int32"))],
    "integer_square": [Case(lambda x, y: x**2, INTS)],
    "cast_to_itself": [Case(lambda x, y: ap("cast", x, dtype=x.dtype), ALL)],
    "cast_twice": [
        Case(lambda x, y: x.cast("float32").cast("float16"), ("float16", "bfloat16")),
        Case(lambda x, y: x.cast("int64").cast("int8"), ("int8", "int32")),
        Case(lambda x, y: x.cast("float64").cast("bool"), ("float32",)),
    ],
    "select_equal": [Case(lambda x, y: (x < y).select(x, x), ALL)],
    "select_true": [Case(lambda x, y: ap("select", x.graph.full(x.shape, True, "bool"), x, y))],
    "select_false": [Case(lambda x, y: ap("select", x.graph.full(x.shape, False, "bool"), x, y))],
    "select_not": [Case(lambda x, y: (~(x < y)).select(x, y), ALL)],
    "equal_itself": [Case(lambda x, y: x.eq(x), INTS), Case(lambda x, y: x <= x, INTS)],
    "less_itself": [Case(lambda x, y: x < x, ALL)],
    "differs_from_itself": [Case(lambda x, y: x.ne(x), FLOATS)],
    "not_equal": [Case(lambda x, y: ~x.eq(y), ALL)],
    "not_different": [Case(lambda x, y: ~x.ne(y), ALL)],
    "not_less": [Case(lambda x, y: ~(x < y), INTS)],
    "add_zero": [Case(lambda x, y: x + 0.0, FLOATS), Case(lambda x, y: 0.0 + x, FLOATS)],
    "square": [Case(lambda x, y: x**2, ("float32",))],
    "cube": [Case(lambda x, y: x**3, ("float64",))],
    "reciprocal_square_root": [Case(lambda x, y: 1 / x.sqrt(), FLOATS)],
    "divide_by_constant": [Case(lambda x, y: x / 3.0, ("float32", "float64", "bfloat16"))],
    "clamp_same_bound": [
        Case(lambda x, y: x.maximum(-1).maximum(0), ALL), Case(lambda x, y: x.minimum(6).minimum(5), ALL),
        Case(lambda x, y: x.maximum(-0.0).maximum(-0.0), FLOATS), Case(lambda x, y: x.maximum(-math.inf).maximum(1)),
    ],
    "clamp_order": [
        Case(lambda x, y: x.minimum(6).maximum(0), ALL), Case(lambda x, y: x.minimum(0).maximum(6), ALL),
        Case(lambda x, y: x.minimum(0).maximum(0), ALL),
    ],
    "stop_gradient": [
        Case(lambda x, y: ap("stop_gradient", x), FLOATS), Case(lambda x, y: ap("stop_gradient", x, reason="a hook"), FLOATS),
    ],
    "with_derivative": [Case(lambda x, y: ap("with_derivative", x, y, y), FLOATS)],
    "view_of_nothing": [
        Case(lambda x, y: ap("permute", x, order=(0, 1))), Case(lambda x, y: ap("reshape", x, shape=x.shape)),
        Case(lambda x, y: ap("flip", x, axes=())),
        Case(lambda x, y: ap("slice", x, starts=(0, 0), stops=x.shape, steps=(1, 1))),
        Case(lambda x, y: ap("broadcast", x, shape=x.shape, axes=(0, 1))),
    ],
    "reshape_twice": [Case(lambda x, y: ap("reshape", x.reshape(-1), shape=(3, x.shape[0])))],
    "permute_twice": [Case(lambda x, y: ap("permute", x.permute(1, 0), order=(1, 0)))],
    "flip_twice": [Case(lambda x, y: x.flip(0).flip(0, 1)), Case(lambda x, y: x.flip(0).flip(0))],
    "broadcast_twice": [
        Case(lambda x, y: ap("broadcast", x.broadcast((2, *x.shape), (1, 2)), shape=(2, 5, *x.shape), axes=(0, 2, 3)))
    ],
    "slice_twice": [Case(lambda x, y: x.slice(0, 2).slice(0, 1, None, 2).slice(0, 3)), Case(lambda x, y: x.slice(1, 1).slice(1, 1))],
    "pad_twice": [Case(lambda x, y: x.pad([(1, 0), (0, 2)]).pad([(0, 3), (1, 0)]))],
    "view_behind_unary": [
        Case(lambda x, y: x.permute(1, 0).exp(), FLOATS), Case(lambda x, y: -x.broadcast_to((2, *x.shape)), ALL),
        Case(lambda x, y: x.flip(0).cast("float64")),
    ],
    "view_behind_binary": [
        Case(lambda x, y: x.permute(1, 0) - y.permute(1, 0), ALL),
        Case(lambda x, y: x.broadcast_to((2, *x.shape)) * y.broadcast_to((2, *x.shape)), ALL),
        Case(lambda x, y: x.permute(1, 0) * x.permute(1, 0), ALL),
    ],
    "view_behind_scalar": [
        Case(lambda x, y: x.permute(1, 0) - 2, ALL), Case(lambda x, y: 2 - x.reshape(-1), ALL),
        Case(lambda x, y: x.flip(1).maximum(0), ALL),
    ],
    "concat_of_one": [Case(lambda x, y: ap("concat", x, axis=0), ALL)],
    "concat_of_slices": [
        Case(lambda x, y: ap("concat", x.slice(1, 0, 1), x.slice(1, 1), axis=1), ALL),
        Case(lambda x, y: ap("concat", x.slice(0, 0, 2), x.slice(0, 2), axis=0), ALL),
        Case(lambda x, y: ap("concat", y, x.slice(1, 0, 1), x.slice(1, 1, 2), y.slice(1, 1), axis=1), ALL),
    ],
    "slice_of_concat": [
        Case(lambda x, y: ap("concat", x, y, axis=1).slice(1, 4), ALL),
        Case(lambda x, y: ap("concat", x, y, axis=1).slice(1, 0, 3, 2), ALL),
        Case(lambda x, y: ap("concat", x, y, axis=0).slice(0, x.shape[0]), ALL),
    ],
    "slice_of_broadcast": [
        Case(lambda x, y: x.broadcast_to((2, *x.shape)).slice(2, 1), ALL),
        Case(lambda x, y: x.broadcast_to((2, *x.shape)).slice(0, 1), ALL),
        Case(lambda x, y: x.graph.full(x.shape, 2, x.dtype).slice(0, 1, None, 3), ALL),
    ],
    "slice_before_pointwise": [
        Case(lambda x, y: (x * y).slice(1, 1), ALL), Case(lambda x, y: x.exp().slice(0, 0, None, 2), FLOATS),
        Case(lambda x, y: (x < y).select(x, y).slice(0, 1), ALL), Case(lambda x, y: x.cast("float64").slice(1, 0, 1), INTS),
    ],
    "pad_behind_unary": [
        Case(lambda x, y: -x.pad([(1, 0), (0, 2)], 1), ALL), Case(lambda x, y: x.pad([(1, 0), (0, 2)]).exp(), FLOATS),
        Case(lambda x, y: abs(x.pad([(1, 0), (0, 2)], mode="edge")), ALL),
    ],
    "pad_behind_scalar": [
        Case(lambda x, y: x.pad([(1, 0), (0, 2)], 1) * 2, ALL), Case(lambda x, y: 1 - x.pad([(1, 0), (0, 2)]), ALL),
        Case(lambda x, y: x.pad([(1, 0), (0, 2)], mode="reflect") < 2, ALL),
    ],
    "unsqueezed_weights": [
        Case(lambda x, y: ap("reshape", weights(x, 3), shape=(1, 3)), FLOATS),
        Case(lambda x, y: ap("reshape", weights(x, 3, 2), shape=(3, 1, 2, 1)), FLOATS),
    ],
    "subtract_weights": [Case(lambda x, y: x - along(x), FLOATS), Case(lambda x, y: x - once(x), FLOATS)],
    "scale_shifted": [
        Case(lambda x, y: (x + along(x)) * along(x, name="s"), FLOATS), Case(lambda x, y: along(x, name="s") * (along(x) + x), FLOATS),
        Case(lambda x, y: (x + once(x)) * along(x, name="s"), FLOATS), Case(lambda x, y: (x + along(x)) * 2.0, FLOATS),
    ],
    "scale_scaled": [Case(lambda x, y: (x * along(x)) * along(x, name="s"), FLOATS)],
    "shift_shifted": [Case(lambda x, y: (x + along(x)) + along(x, name="s"), FLOATS)],
    "divide_by_weights": [Case(lambda x, y: x / along(x), FLOATS), Case(lambda x, y: x / once(x), FLOATS)],
    "scale_conv": [Case(lambda x, y: (c := conv(x)) * along(c), ("float32", "float64", "bfloat16"))],
    "scale_matmul": [
        Case(lambda x, y: (m := matmul(x)) * along(m, 2), FLOATS), Case(lambda x, y: matmul(x) * 2.0, FLOATS),
    ],
    "scale_conv_transpose": [Case(lambda x, y: (c := conv(x, "conv_transpose")) * along(c)), Case(lambda x, y: conv(x, "conv_transpose") * 2.0)],
    "scale_commutes": [
        Case(lambda x, y: (m := weights(x, 2, 3).broadcast((x.shape[0], 2, 3), (1, 2)) @ x.unsqueeze(2)) * along(m, 1, "s")),
        Case(lambda x, y: (c := conv(x).permute(0, 2, 1)) * along(c, 2), FLOATS),
        Case(lambda x, y: (c := conv(x).reshape(x.shape[0], 2, 2, 3)) * along(c, 2)),
        Case(lambda x, y: (c := -conv(x).flip(1, 2)) * along(c)),
        Case(lambda x, y: (c := ap("concat", conv(x), conv(y, name="other"), axis=1)) * along(c)),
        Case(lambda x, y: conv(x).maximum(0.0).minimum(6.0) * 0.5), Case(lambda x, y: (c := conv(x).sum(2)) * along(c)),
        Case(lambda x, y: (c := ((k := conv(x)) + along(k, name="b")).permute(0, 2, 1)) * along(c, 2)),
    ],
    "shift_commutes": [
        Case(lambda x, y: (c := conv(x).permute(0, 2, 1)) + along(c, 2), FLOATS),
        Case(lambda x, y: (c := ((k := conv(x)) + once(k)).reshape(x.shape[0], 2, 2, 3)) + along(c, 1, "s")),
    ],
    "sum_of_product": [
        Case(lambda x, y: (x.unsqueeze(2).broadcast_to((x.shape[0], 3, 4)) * weights(x, 3, 4).broadcast((x.shape[0], 3, 4), (1, 2))).sum(1), FLOATS),
    ],
    "sum_before_permute": [
        Case(lambda x, y: (x.unsqueeze(2) * y.unsqueeze(1)).permute(2, 0, 1).sum(0), FLOATS),
        Case(lambda x, y: (x.unsqueeze(2) * y.unsqueeze(1)).permute(2, 0, 1).sum((1, 2)), ("float64",)),
    ],
    "pad_into_conv": [Case(lambda x, y: ap("conv", zeros_around(x.unsqueeze(1)), weights(x, 4, 1, 3), strides=(1,), padding=((1, 0),), dilations=(1,)), FLOATS)],
    "concat_of_products": [
        Case(lambda x, y: ap("concat", conv(x), conv(x, name="other"), axis=1), FLOATS),
        Case(lambda x, y: ap("concat", matmul(x).maximum(0.0), matmul(x, name="other").maximum(0.0), axis=2)),
        Case(lambda x, y: ap("concat", (c := conv(x)) + along(c, name="b"), conv(x, name="other") + 1.0, axis=1)),
    ],
    "parallel_convolutions": [
        Case(lambda x, y: conv(x) + conv(x, name="other"), FLOATS),
        Case(lambda x, y: ((c := conv(x)) + along(c, name="b")) + (conv(x, name="other") + conv(y, name="third"))),
        Case(lambda x, y: conv(x) + wide(x), FLOATS), Case(lambda x, y: wide(x, (3, 1)) + (conv(x) + conv(y, name="other"))),
    ],
    "slice_of_product": [Case(lambda x, y: conv(x).slice(1, 1, 3), FLOATS), Case(lambda x, y: matmul(x).slice(2, 0, 4, 2), FLOATS)],
}  # fmt: skip

DECLINES = {
    "transposed_product": [
        Case(lambda x, y: matmul(x).transpose(), FLOATS, "is a weight"),
        Case(lambda x, y: matmul(x).permute(1, 0, 2), FLOATS, "does not only exchange"),
        Case(lambda x, y: (z := x.transpose() @ y).transpose() + z, FLOATS, "used 2 times"),
    ],
    "identity_operand": [
        Case(lambda x, y: x + 0.0, FLOATS, "0.0 is not -0.0"), Case(lambda x, y: x - -0.0, FLOATS, "-0.0 is not 0.0"),
        Case(lambda x, y: 1 - x, INTS, "no known number"), Case(lambda x, y: x * y, ALL, "no known number"),
    ],
    "multiply_by_zero": [Case(lambda x, y: x * 0, FLOATS, "no integer")],
    "subtract_itself": [Case(lambda x, y: x - x, FLOATS, "no integer"), Case(lambda x, y: x - y, INTS, "already")],
    "idempotent": [Case(lambda x, y: x.maximum(y), ALL, "already")],
    "inverse_twice": [Case(lambda x, y: -abs(x), ALL, "made by abs")],
    "rounded_twice": [Case(lambda x, y: x.unary("ceil").unary("floor"), FLOATS, "1 nodes matched")],
    "abs_of_neg": [Case(lambda x, y: abs(x), ALL, "made by input")],
    "add_negated": [Case(lambda x, y: x + y, ALL, "made by input")],
    "subtract_negated": [Case(lambda x, y: -x - y, ALL, "made by input")],
    "multiply_by_minus_one": [Case(lambda x, y: x * -2, ALL, "-2")],
    "divide_by_power_of_two": [
        Case(lambda x, y: x / 3, FLOATS, "no power of two"), Case(lambda x, y: x / 2, INTS, "no float"),
        Case(lambda x, y: x / 0.0, FLOATS, "no power of two"), Case(lambda x, y: x / 2.0**127, ("float32",), "no normal"),
        Case(lambda x, y: x / math.inf, FLOATS, "no power of two"),
    ],
    "power_zero": [Case(lambda x, y: x**2, ("float32",), "not 0")],
    "integer_square": [Case(lambda x, y: x**2, ("float32",), "no integer")],
    "cast_to_itself": [Case(lambda x, y: x.cast("int32"), FLOATS, "is not int32")],
    "cast_twice": [
        Case(lambda x, y: x.cast("float16").cast("float32"), ("float32", "bfloat16"), "does not hold"),
        Case(lambda x, y: x.cast("float64").cast("float16"), ("int32",), "rounds otherwise"),
    ],
    "select_equal": [Case(lambda x, y: (x < y).select(x, y), ALL, "already")],
    "select_true": [Case(lambda x, y: (x < y).select(x, y), ALL, "no known number")],
    "select_false": [Case(lambda x, y: (x < y).select(x, y), ALL, "no known number")],
    "select_not": [Case(lambda x, y: (x < y).select(x, y), ALL, "made by lt")],
    "equal_itself": [Case(lambda x, y: x.eq(x), FLOATS, "no integer")],
    "less_itself": [Case(lambda x, y: x < y, ALL, "already")],
    "differs_from_itself": [Case(lambda x, y: x.ne(y), FLOATS, "already")],
    "not_equal": [Case(lambda x, y: ~x.ne(y), ALL, "made by ne")],
    "not_different": [Case(lambda x, y: ~x.eq(y), ALL, "made by eq")],
    "not_less": [Case(lambda x, y: ~(x < y), FLOATS, "no integer")],
    "add_zero": [Case(lambda x, y: x + 1.0, FLOATS, "not 0.0")],
    "square": [Case(lambda x, y: x**4, ("float32",), "not 2")],
    "cube": [Case(lambda x, y: x**2, ("float32",), "not 3")],
    "reciprocal_square_root": [Case(lambda x, y: 2 / x.sqrt(), FLOATS, "not 1")],
    "divide_by_constant": [
        Case(lambda x, y: x / 0.0, FLOATS, "is 0, infinite"), Case(lambda x, y: x / 3.0, ("float16",), "loses too much"),
        Case(lambda x, y: x.max() / 255.0, ("float32",), "one number"),
    ],
    "clamp_same_bound": [
        Case(lambda x, y: x.maximum(0.0).maximum(-0.0), FLOATS, "0.0 and -0.0"),
        Case(lambda x, y: x.maximum(math.nan).maximum(0), FLOATS, "NaN"), Case(lambda x, y: x.maximum(y).maximum(0), ALL, "no known number"),
    ],
    "clamp_order": [
        Case(lambda x, y: x.maximum(0).minimum(6), ALL, "made by input"),
        Case(lambda x, y: x.minimum(0.0).maximum(-0.0), FLOATS, "0.0 and -0.0"),
    ],
    "stop_gradient": [Case(lambda x, y: -x, FLOATS, "stop_gradient")],
    "with_derivative": [Case(lambda x, y: -x, FLOATS, "with_derivative")],
    "view_of_nothing": [Case(lambda x, y: x.flip(0), ALL, "run backwards")],
    "reshape_twice": [Case(lambda x, y: x.permute(1, 0).reshape(-1), ALL, "made by permute")],
    "permute_twice": [Case(lambda x, y: x.permute(1, 0), ALL, "made by input")],
    "flip_twice": [Case(lambda x, y: x.permute(1, 0).flip(0), ALL, "made by permute")],
    "broadcast_twice": [Case(lambda x, y: x.broadcast_to((2, *x.shape)), ALL, "made by input")],
    "slice_twice": [Case(lambda x, y: x.slice(0, 0, None, 2).slice(0, 3), ALL, "has steps")],
    "pad_twice": [
        Case(lambda x, y: x.pad([(1, 0), (0, 2)], 1).pad([(0, 3), (1, 0)]), ALL, "already"),
        Case(lambda x, y: x.pad([(1, 0), (0, 2)], mode="edge").pad([(0, 3), (1, 0)], mode="edge"), ALL, "mode"),
    ],
    "view_behind_unary": [
        Case(lambda x, y: ap("concat", (v := x.flip(0)).exp(), v, axis=0), FLOATS, "used 2 times"),
        Case(lambda x, y: x.exp(), FLOATS, "made by input"),
    ],
    "view_behind_binary": [
        Case(lambda x, y: x.flip(0) * y.flip(1), ALL, "views differ"),
        Case(lambda x, y: x.reshape(-1).reshape(3, x.shape[0]) * y.permute(1, 0), ALL, "a reshape and a permute"),
    ],
    "view_behind_scalar": [Case(lambda x, y: x.permute(1, 0) - y.permute(1, 0), ALL, "no known number")],
    "concat_of_one": [Case(lambda x, y: ap("concat", x, y, axis=0), ALL, "has 2 operands, not 1")],
    "concat_of_slices": [
        Case(lambda x, y: ap("concat", x.slice(1, 1), x.slice(1, 0, 1), axis=1), ALL, "no operand continues"),
        Case(lambda x, y: ap("concat", x.slice(1, 0, 1), y.slice(1, 1), axis=1), ALL, "no operand continues"),
        Case(lambda x, y: ap("concat", x.slice(1, 0, 1), x.slice(1, 1, 2), axis=0), ALL, "no operand continues"),
        Case(lambda x, y: ap("concat", x.slice(1, 0, 2, 2), x.slice(1, 2), axis=1), ALL, "no operand continues"),
    ],
    "slice_of_concat": [
        Case(lambda x, y: ap("concat", x, y, axis=1).slice(1, 2, 4), ALL, "in no operand"),
        Case(lambda x, y: ap("concat", x, y, axis=0).slice(0, 2), ALL, "in no operand"),
    ],
    "slice_of_broadcast": [Case(lambda x, y: x.permute(1, 0).slice(0, 1), ALL, "made by permute")],
    "slice_before_pointwise": [
        Case(ends, ALL, "used 2 times"), Case(lambda x, y: x.softmax(1).slice(1, 1), FLOATS, "made by softmax"),
    ],
    "pad_behind_unary": [
        Case(lambda x, y: ap("concat", (v := x.pad([(0, 0), (0, 1)])).exp(), v, axis=0), FLOATS, "used 2 times"),
        Case(lambda x, y: x.flip(0).exp(), FLOATS, "made by flip"),
    ],
    "pad_behind_scalar": [
        Case(lambda x, y: x.pad([(0, 0), (0, 1)]) * y.pad([(0, 0), (0, 1)]), ALL, "no known number"),
    ],
    "unsqueezed_weights": [
        Case(lambda x, y: ap("reshape", weights(x, 6), shape=(2, 3)), FLOATS, "does more than to add"),
        Case(lambda x, y: ap("reshape", x, shape=(1, *x.shape)), FLOATS, "depends on"),
    ],
    "subtract_weights": [
        Case(lambda x, y: x - y.max(0).broadcast(x.shape, (1,)), FLOATS, "depends on"),
        Case(lambda x, y: once(x, name="v") - along(x), FLOATS, "made of weights alone"),
    ],
    "scale_shifted": [
        Case(lambda x, y: ap("concat", (v := x + along(x)) * along(x, name="s"), v, axis=0), FLOATS, "used 2 times"),
        Case(lambda x, y: ((c := conv(x)) + along(c)) * along(c, 2, "s"), ("float32",), "one of the weights lies along (1,), the other along (2,)"),
    ],
    "scale_scaled": [
        Case(lambda x, y: ap("concat", (v := x * along(x)) * along(x, name="s"), v, axis=0), FLOATS, "used 2 times"),
        Case(lambda x, y: (x * y) * along(x), FLOATS, "made by input"),
    ],
    "shift_shifted": [
        Case(lambda x, y: ap("concat", (v := x + along(x)) + along(x, name="s"), v, axis=0), FLOATS, "used 2 times"),
        Case(lambda x, y: (x + y.max(0).broadcast(x.shape, (1,))) + along(x), FLOATS, "depends on"),
    ],
    "divide_by_weights": [
        Case(lambda x, y: x / 3.0, FLOATS, "a number, no vector"), Case(lambda x, y: along(x) / x, FLOATS, "made of weights alone"),
    ],
    "scale_conv": [
        Case(lambda x, y: (c := conv(x)) * along(c, 2), ("float32",), "lies along (2,), not along 1"),
        Case(lambda x, y: ap("concat", (c := conv(x)) * along(c), c, axis=0), FLOATS, "used 2 times"),
    ],
    "scale_matmul": [
        Case(lambda x, y: (m := matmul(x)) * along(m, 1), FLOATS, "lies along (1,), not along 2"),
        Case(lambda x, y: matmul(x) * 1e38, ("float32",), "may leave its range"),
        Case(lambda x, y: ap("concat", matmul(x) * 2.0, x.graph.parameters["matrix"].broadcast((x.shape[0], 1, 4), (1, 2)), axis=1), FLOATS, "is used 2 times"),
    ],
    "scale_conv_transpose": [Case(lambda x, y: (c := conv(x, "conv_transpose")) * along(c, 2), FLOATS, "along")],
    "scale_commutes": [
        Case(lambda x, y: conv(x).maximum(0.0) * -0.5, ("float32",), "no known number above zero"),
        Case(lambda x, y: (c := conv(x).maximum(0.0)) * along(c), ("float32",), "no known number above zero"),
        Case(lambda x, y: (c := conv(x).permute(0, 2, 1)) * along(c, 1), ("float32",), "lies along (2,), not along 1"),
        Case(lambda x, y: conv(x).permute(0, 2, 1).exp() * 2.0, ("float32",), "made by exp"),
        Case(lambda x, y: ap("concat", conv(x), conv(y, name="other").exp(), axis=1) * 2.0, ("float32",), "does not commute with a scale"),
        Case(lambda x, y: ap("concat", (c := conv(x)).permute(0, 2, 1) * 2.0, c.permute(0, 2, 1), axis=1), ("float32",), "used 2 times"),
    ],
    "shift_commutes": [Case(lambda x, y: x.reshape(x.shape[0], 3, 1) + 1.0, ("float32",), "no product and no shift")],
    "sum_of_product": [
        Case(lambda x, y: (x * y).sum(1), ("float32",), "each result is a sum of its own"),
        Case(lambda x, y: (x.unsqueeze(2).broadcast_to((x.shape[0], 3, 4)) * weights(x, 4).broadcast((x.shape[0], 3, 4), (2,))).sum(1), ("float32",), "no dim that is summed is of both"),
        Case(lambda x, y: (x.unsqueeze(2).broadcast_to((x.shape[0], 3, 4)) * weights(x, 3, 4).broadcast((x.shape[0], 3, 4), (1, 2))).sum(1), ("int32",), "left to loops"),
    ],
    "sum_before_permute": [Case(lambda x, y: (x + y).permute(1, 0).sum(0), FLOATS, "made by add")],
    "pad_into_conv": [Case(lambda x, y: ap("conv", zeros_around(x.unsqueeze(1), 1.0), weights(x, 4, 1, 3), strides=(1,), padding=((1, 0),), dilations=(1,)), FLOATS, "1.0, not 0.0")],
    "concat_of_products": [
        Case(lambda x, y: ap("concat", conv(x), conv(y, name="other"), axis=1), ("float32",), "is of"),
        Case(lambda x, y: ap("concat", conv(x), conv(x, name="other"), axis=2), ("float32",), "side by side along 2"),
        Case(lambda x, y: ap("concat", conv(x), conv(x, name="other").exp(), axis=1), ("float32",), "made by exp"),
    ],
    "parallel_convolutions": [
        Case(lambda x, y: conv(x) + conv(y, name="other"), FLOATS, "no two convolutions are of one input"),
        Case(lambda x, y: conv(x) + wide(x, (3, 3), 2), FLOATS, "no two convolutions are of one input"),
        Case(lambda x, y: ap("concat", (c := conv(x)) + conv(x, name="other"), c, axis=1), FLOATS, "1 of its terms are convolutions"),
        Case(lambda x, y: x + y, FLOATS, "0 of its terms are convolutions"),
    ],
    "slice_of_product": [
        Case(lambda x, y: conv(x).slice(2, 1, 3), ("float32",), "along 2, not along 1"),
        Case(lambda x, y: ap("concat", (c := conv(x)).slice(1, 1, 3), c, axis=1), ("float32",), "used 2 times"),
    ],
}  # fmt: skip

RULES = {
    rule.name: rule
    for rule in (
        *INFERENCE,
        *ALGEBRA,
        *CLAMP,
        *VIEWS,
        *PARTS,
        *NEIGHBOURING,
        *CONTRACTION,
        *PRODUCTS,
        *AFFINE,
        *PARALLEL,
    )
}
ELSEWHERE = {
    "activations",
    "affine_inputs",
    "attention",
    "gated",
    "heads",
    "indices",
    "norms",
    "regroup",
    "rotary",
    "scores",
    "softmax",
}
"""Files whose rules have their tables in other tests, which enumerate them."""


def untested(rules):
    """Names of rules that lack a case in which they fire, which also compares the numbers, or one in which they do not."""
    here = {
        name for name, rule in rules.items() if rule.replace.__module__.rpartition(".")[2] not in ELSEWHERE
    }
    return {name for name in here if not FIRES.get(name) or not DECLINES.get(name)}


def test_every_rule_is_tested():
    rules = {name: rule for name, (rule, _) in rule_passes().items()}
    assert not untested(rules)
    assert set(FIRES) == set(DECLINES) == set(RULES) <= set(rules)
    assert not [
        name
        for table in (FIRES, DECLINES)
        for name, cases in table.items()
        for case in cases
        if not case.dtypes
    ]


def test_a_rule_without_tests_is_noticed():
    def replace(match: Match):
        return match.root

    new = Rule("new", RULES["square"].pattern, replace)
    assert untested({**RULES, "new": new}) == {"new"}


def test_every_rule_says_what_it_does():
    assert not [name for name, rule in RULES.items() if len(rule.doc) < 8]


@pytest.mark.parametrize("name", RULES)
def test_fires(name):
    for case in FIRES[name]:
        check_fires(RULES[name], case)


@pytest.mark.parametrize("name", RULES)
def test_declines(name):
    for case in DECLINES[name]:
        check_declines(RULES[name], case)
