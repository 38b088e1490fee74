"""Engines: what runs graphs. Each is a plugin behind one protocol, the four that come along too.

engine      the protocol: check, compile, load; Support, Decline, Knob, CompiledPlan
registry    engines that come along, entry points, plugin paths; what failed to load, and why
reference   the NumPy oracle
library     PyTorch's own kernels
cpp         generated C++ for CPU
triton      generated Triton for GPU
"""
