"""Gives a name where an engine belongs."""

engines = "fast"
