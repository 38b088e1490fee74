"""The program of this layer."""

from __future__ import annotations

from pathlib import Path

from .native_layer import NativeLayer
from .table import TABLE

LAYER = NativeLayer(TABLE, Path(__file__).parent)
