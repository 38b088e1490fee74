"""Throws when it is imported."""

1 / 0
