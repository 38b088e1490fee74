"""Pointwise ops that Triton kernels compute by a function of `triton.runtime`: exact, as no short expression is."""

from __future__ import annotations

from kernels_hub.compiler.codegen.target import Spellings

SPELLINGS = Spellings(
    "triton",
    {
        "floordiv": {"float": "kh.floor_divide({0}, {1})"},
        "mod": {"float": "kh.remainder({0}, {1})"},
    },
)
