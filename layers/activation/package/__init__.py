"""SiLU and the GELU family, alone and as the gate of a gated linear unit."""

from . import layers
from .functional import (
    activation,
    activation_and_mul,
    activation_mul,
    gelu,
    gelu_and_mul,
    gelu_tanh,
    gelu_tanh_and_mul,
    quick_gelu,
    silu,
    silu_and_mul,
)
from .kinds import NUMBERS

__all__ = [
    "NUMBERS",
    "activation",
    "activation_and_mul",
    "activation_mul",
    "gelu",
    "gelu_and_mul",
    "gelu_tanh",
    "gelu_tanh_and_mul",
    "layers",
    "quick_gelu",
    "silu",
    "silu_and_mul",
]
