"""Nests with a root: what multiplies is one kernel with its epilogue."""

from __future__ import annotations

from kernels_hub.compiler.codegen.cpp_text import Names
from kernels_hub.compiler.codegen.triton_attention import print_attention
from kernels_hub.compiler.codegen.triton_conv import print_convolution
from kernels_hub.compiler.codegen.triton_kernel import Launch
from kernels_hub.compiler.codegen.triton_options import Options
from kernels_hub.compiler.codegen.triton_product import print_product
from kernels_hub.compiler.codegen.triton_text import Lines
from kernels_hub.compiler.schedule.kernel import Attention, Convolution, Nest, Product

_PRINTERS = {Product: print_product, Convolution: print_convolution, Attention: print_attention}


def print_root(name: str, nest: Nest, lines: Lines, names: Names, options: Options) -> Launch | None:
    """Write the kernel of a nest with a root; None where there is nothing to do."""
    assert nest.root is not None
    return _PRINTERS[type(nest.root)](name, nest, lines, names, options)
