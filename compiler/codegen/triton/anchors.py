"""Dispatches nests with an anchor to the kernel of that anchor, with the rest of the nest as its epilogue."""

from __future__ import annotations

from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.triton.attention import print_attention
from kernels_hub.compiler.codegen.triton.conv import print_convolution
from kernels_hub.compiler.codegen.triton.kernel import Launch
from kernels_hub.compiler.codegen.triton.options import Options
from kernels_hub.compiler.codegen.triton.product import print_product
from kernels_hub.compiler.codegen.triton.text import Lines
from kernels_hub.compiler.schedule.kernel import Attention, Convolution, Nest, Product

_PRINTERS = {Product: print_product, Convolution: print_convolution, Attention: print_attention}


def print_anchor(name: str, nest: Nest, lines: Lines, names: Names, options: Options) -> Launch | None:
    """Write the kernel of a nest with an anchor; None where there is nothing to do."""
    assert nest.anchor is not None
    return _PRINTERS[type(nest.anchor)](name, nest, lines, names, options)
