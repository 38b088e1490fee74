"""Stands for the compiler's interval packing, whose source takes this file's place in what is emitted."""

from __future__ import annotations

from kernels_hub.compiler.schedule.intervals import ALIGNMENT, Packing, roomy

__all__ = ["ALIGNMENT", "Packing", "roomy"]
