"""Engines: plugins that compile and run graphs, behind one protocol; the bundled ones are plugins as well.

engine      the protocol: check, compile, load; Support, Decline, Knob, CompiledPlan
registry    engines that come along, entry points, plugin paths; what failed to load, and why
reference   the NumPy oracle
library     PyTorch's own kernels
cpp         generated C++ for CPU
triton      generated Triton for GPU
"""
