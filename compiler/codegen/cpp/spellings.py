"""Pointwise ops that C++ kernels compute by a function of `native/scalar.h`.

Those are vectorized, or exact as no short expression is.
"""

from __future__ import annotations

from kernels_hub.compiler.codegen.target import Spellings

_MATH = (
    "exp", "exp2", "expm1", "log", "log2", "log1p", "tanh", "erf", "sigmoid", "sin", "cos", "rsqrt",
    "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh",
)  # fmt: skip

SPELLINGS = Spellings(
    "cpp",
    {
        **{name: {"float": f"kh::{name}({{0}})"} for name in _MATH},
        "pow": {"float": "kh::pow({0}, {1})", "int": "kh::power({0}, {1})", "uint": "kh::power({0}, {1})"},
        "atan2": {"float": "kh::atan2({0}, {1})"},
        "fmod": {"float": "kh::fmod({0}, {1})"},
        "floordiv": {"float": "kh::floor_divide({0}, {1})"},
        "mod": {"float": "kh::remainder({0}, {1})"},
    },
)
