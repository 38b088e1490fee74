"""The activations by number, as the operators and the native code take them, and by name."""

from __future__ import annotations

SILU, GELU, GELU_TANH, QUICK_GELU = range(4)

# Name -> number. The names are those of transformers' `ACT2FN` and this package's own; several of
# transformers' classes are one function, computed in other orders.
NUMBERS: dict[str, int] = {
    "silu": SILU,
    "swish": SILU,
    "gelu": GELU,
    "gelu_python": GELU,
    "gelu_tanh": GELU_TANH,
    "gelu_pytorch_tanh": GELU_TANH,
    "gelu_python_tanh": GELU_TANH,
    "gelu_accurate": GELU_TANH,
    "gelu_fast": GELU_TANH,
    "gelu_new": GELU_TANH,
    "quick_gelu": QUICK_GELU,
}


def number(kind: int | str) -> int:
    """The number of an activation given by name or number; ValueError for one that is not there."""
    if isinstance(kind, str):
        if kind not in NUMBERS:
            raise ValueError(f"unknown activation {kind!r}; known: {', '.join(NUMBERS)}")
        return NUMBERS[kind]
    if not 0 <= kind <= QUICK_GELU:
        raise ValueError(f"unknown activation {kind!r}; known: 0 to {QUICK_GELU}")
    return kind
