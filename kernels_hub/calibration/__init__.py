"""Measures how much faster kernels are than PyTorch on this processor, and keeps the figures."""
