"""The program of this layer."""

from __future__ import annotations

from pathlib import Path

from .layer import Layer
from .table import TABLE

LAYER = Layer(TABLE, Path(__file__).parent)
