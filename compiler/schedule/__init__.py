"""From a graph to kernels: what is computed together, where it lies in memory, in which order.

index      flat positions in buffers as expressions of loop variables, simplified by what is known of their ranges
kernel     what a schedule is made of: buffers, loops, statements, kernels
lower      values as loads and computations at an index: how views, pads and gathers cost nothing
fuse       which values share a kernel
memory     one arena: buffers placed by lifetime
"""
