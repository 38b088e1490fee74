"""Raises what only Ctrl-C should."""

raise KeyboardInterrupt
