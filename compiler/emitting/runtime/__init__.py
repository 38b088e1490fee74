"""Copied into every emitted layer repository: torch and the standard library are all that it needs.

layer.py       a call: which program, or the original forward and why
parts.py       the records of table.py
arguments.py   Python arguments to tensors and back
modules.py     whether a module is what the program was made for
state.py       a module's weights, packed
arena.py       where scratch buffers lie for given sizes
arrays.py      safetensors files
verified.py    the bytes of files that came along
weights.py     what kernelize asks of kernels that pack weights
toolchain.py   the compiler's own, in what is emitted: C++ to a loaded library, built once a machine
"""
