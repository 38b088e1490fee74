"""Recognizes gated linear units: a recognized activation times another value. Numbers stay: see `outline`.

gated_silu(gate, up) = silu(gate) * up, and so for gelu, gelu_tanh and gelu_quick       Source: arXiv 2002.05202
"""

from __future__ import annotations

from kernels_hub.compiler.rewrite.outline import closed, outline, recognised
from kernels_hub.compiler.rewrite.pattern import Any, Op
from kernels_hub.compiler.rewrite.rule import Rule


def _rule(name: str) -> Rule:
    operands = ("gate", "up")
    return Rule(
        f"gated_{name}",
        Op("mul", Op("call", Any("gate")).where(recognised(name)).once(), Any("up")),
        lambda match: outline(match, f"gated_{name}", operands),
        lambda match: closed(match, operands),
        doc=f"{name}(gate) * up",
    )


GATED = tuple(_rule(name) for name in ("silu", "gelu", "gelu_tanh", "gelu_quick"))
