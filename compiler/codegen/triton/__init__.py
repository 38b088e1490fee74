"""Triton source text from a schedule."""
