"""From a graph to kernels: what is computed together, where it lies in memory, in which order.

schedule   the whole way; `print(schedule(graph))` shows it (text)
expand     composites and row-wise ops written out (group_norm along the channels); scores takes attention apart
units      which values are made for themselves
layout     row-major, or channels last around convolutions
lower      values as loads and computations at an index: views (views), pads and gathers cost nothing
fuse       which units share a kernel; split cuts loops at a concat or a pad; roots are products and the like
index      places in memory as expressions of loop variables, simplified by what is known of their ranges
kernel     what a schedule is made of: buffers, loops, statements, kernels
memory     one arena: buffers placed by lifetime
cost       FLOPs and bytes of a kernel
"""
