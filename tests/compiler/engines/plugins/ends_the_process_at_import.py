"""Ends the process when it is imported."""

raise SystemExit(3)
