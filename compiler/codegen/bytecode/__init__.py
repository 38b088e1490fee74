"""Bytecode of a schedule, for the interpreter that comes built with the library: the C++ engine's plan, uncompiled.

The same kernels, on the same buffers, with the same products, convolutions, transforms and attention of the runtime;
what generated C++ fuses into loops is a list of instructions over tiles (interpreter/bytecode.h). It serves where no
compiler is.
"""
