"""The colours of kinds of ops, on light and on dark paper: hues that red-green blindness keeps apart by lightness."""

from __future__ import annotations

LIGHT = {
    "input": "#2c5f8a", "output": "#2c5f8a", "constant": "#6d685e", "contraction": "#b3541e", "pointwise": "#22683f",
    "reduction": "#71408f", "view": "#8a8375", "indexing": "#0f6b70", "region": "#a02c2c", "other": "#6d685e",
    "marked": "#b4005f",
}  # fmt: skip
DARK = {
    "input": "#8fbfe6", "output": "#8fbfe6", "constant": "#a29b8e", "contraction": "#f0a276", "pointwise": "#8fd0a5",
    "reduction": "#c9a4e4", "view": "#8d877b", "indexing": "#7cc7cc", "region": "#f1a39b", "other": "#a29b8e",
    "marked": "#ff7ab8",
}  # fmt: skip


def properties(colours: dict[str, str]) -> str:
    """As CSS custom properties."""
    return " ".join(f"--{kind}:{colour};" for kind, colour in colours.items())
