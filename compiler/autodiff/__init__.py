"""Reverse-mode differentiation: `differentiate(graph)` gives a forward and a backward graph of the same IR.

    forward     computes what the graph computes, and what the backward needs to be kept
    backward    takes gradients of the outputs and what was kept, and gives gradients of inputs and parameters

One rule an op, in tables by family (`rules/`), as the op table has it; this package imports neither torch nor triton.
"""

from kernels_hub.compiler.autodiff.derive import Differentiated, Kept, differentiate

__all__ = ["Differentiated", "Kept", "differentiate"]
