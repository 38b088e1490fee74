"""Benchmarks against peers, in one run each: `python -m benchmarks.models`, `.kernelize`, `.layers`, `.import_time`."""
