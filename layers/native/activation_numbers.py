"""The numbers that `activations.h` gives to activations."""

from __future__ import annotations

_IN_ORDER = ("none", "relu", "silu", "gelu", "gelu_tanh", "quick_gelu", "relu6", "hardswish")
ACTIVATION_NUMBERS = {name: number for number, name in enumerate(_IN_ORDER)}
