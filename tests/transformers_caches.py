"""A cache as an argument and in a result of transformers' models, whatever the installed release calls it."""

from __future__ import annotations

from typing import Any

from transformers.modeling_outputs import BaseModelOutputWithPast

CACHE = "cache" if hasattr(BaseModelOutputWithPast, "cache") else "past_key_values"
"""Renamed in transformers 5.24."""


def cache_of(result: Any) -> Any:
    """The cache in a result."""
    return getattr(result, CACHE)
