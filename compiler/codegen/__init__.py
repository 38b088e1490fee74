"""Source code from a schedule.

scalar     one printer of scalar expressions, two dialects
cpp        C++ for CPU: loops, products with epilogues, and the host function that runs them all
triton     Triton for GPU
toolchain  the system compiler and the cache of what it built
runtime/   the C++ headers that generated code includes
"""
