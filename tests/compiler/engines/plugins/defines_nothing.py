"""A module that is no plugin."""

ANSWER = 42
