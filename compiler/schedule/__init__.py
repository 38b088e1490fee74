"""Scheduling: a graph becomes kernels; decides fusion, the order of loops, and memory layout.

schedule   the whole way; `print(schedule(graph))` shows it (text)
expand     composite and row-wise ops written out (group_norm along the channels); scores takes attention apart
inlining   which values are inlined into their users, and which a loop nest computes as a whole
layout     row-major, or channels last around convolutions
lower      values as loads and computations at an index: views (views), pads and gathers cost nothing
fuse       fusion groups: which values share a loop nest; split cuts its loops at a concat or a pad
anchors    products, convolutions, attentions, sorts, Fourier transforms …, which nests are built around
index      offsets in memory as expressions of loop variables, simplified by the ranges of these
kernel     what a schedule is made of: buffers, loops, statements, kernels
memory     one arena: buffers placed by lifetime
cost       FLOPs and bytes of a kernel
"""
