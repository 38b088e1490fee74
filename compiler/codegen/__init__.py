"""Code generation: a schedule becomes C++, Triton or Metal source text.

target.py     what a target is; targets.py has all of them
scalar.py     prints scalar expressions; each target has its dialect
loops.py      loop nests made ready for a target
cpp/          C++ for CPU: loops, products with epilogues, and the host function that runs them all
triton/       Triton kernels and the functions that launch them
metal/        Metal kernels
toolchain.py  the system compiler, and the cache of what it built
"""
