"""Spellings of pointwise ops in Metal, where they differ from C++: mostly library functions.

Functions are those of `metal::precise`; what the standard library of Metal lacks is in `prelude.METAL`.
"""

from __future__ import annotations

from kernels_hub.compiler.codegen.target import Spellings

_PRECISE = (
    "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
    "asinh", "acosh", "atanh",
)  # fmt: skip

SPELLINGS = Spellings(
    "metal",
    {
        **{name: f"metal::precise::{name}({{0}})" for name in _PRECISE},
        **{name: f"kh::{name}({{0}})" for name in ("expm1", "log1p", "erf")},
        **{name: f"metal::{name}({{0}})" for name in ("floor", "ceil", "trunc", "isinf")},
        "round": "metal::rint({0})",
        "sigmoid": "1 / (1 + metal::precise::exp(-{0}))",
        "abs": {"float": "metal::fabs({0})"},
        "floordiv": {"float": "kh::floor_divide({0}, {1})"},
        "mod": {"float": "kh::remainder({0}, {1})"},
        "fmod": {"float": "metal::fmod({0}, {1})"},
        "pow": dict.fromkeys(("int", "uint"), "kh::power({0}, {1})")
        | {"float": "metal::precise::pow({0}, {1})"},
        "maximum": {"int": "metal::max({0}, {1})", "uint": "metal::max({0}, {1})"},
        "minimum": {"int": "metal::min({0}, {1})", "uint": "metal::min({0}, {1})"},
        "atan2": "metal::precise::atan2({0}, {1})",
        "shl": "(static_cast<uint64_t>({1}) < 8 * sizeof({0}) ? {0} << {1} : 0)",
        "shr": {
            "int": "({0} >> metal::min(static_cast<uint64_t>({1}), static_cast<uint64_t>(8 * sizeof({0}) - 1)))",
            "uint": "(static_cast<uint64_t>({1}) < 8 * sizeof({0}) ? {0} >> {1} : 0)",
        },
    },
    dialect_of="cpp",
    library="std::",
)
