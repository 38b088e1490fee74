"""Handlers of ATen ops, one file an op family; `HANDLERS` has them by the overload's name.

    pointwise.py  arithmetic, comparisons, casts     activation.py  activations, softmax
    views.py      reshape, slice, concatenate, pad   create.py      full, arange, sizes, assertions
    reduce.py     reductions, sort, top-k            linear.py      products, convolution, attention
    normalize.py  layer, group, batch, RMS norm      indexing.py    gather, scatter, indices, pad by reflection
    pool.py       pooling, resizing, sampling         complex.py     complex numbers as pairs, Fourier transforms
    call.py       what a handler gets               embedding_bag.py  sums, means, maxima of bags
    gradients.py  backward ops                      recurrent.py    nn.LSTM, nn.GRU, nn.RNN
    masks.py      writes where a mask holds         order.py        medians, modes, binary search, sets
    distances.py  cdist                             lists.py        ops on lists of tensors
    special.py    rare pointwise functions          solve.py        linear equations, determinants, factors

Nothing here imports torch.
"""

from __future__ import annotations

from kernels_hub.compiler.importers.aten_ops import (
    activation,
    complex,  # noqa: A004  (the family's name)
    create,
    distances,
    embedding_bag,
    gradients,
    indexing,
    linear,
    lists,
    masks,
    normalize,
    order,
    pointwise,
    pool,
    recurrent,
    reduce,
    solve,
    special,
    views,
)
from kernels_hub.compiler.importers.aten_ops.call import (
    HANDLERS,
    AtenCall,
    UnsupportedArgumentsError,
    handler_of,
)

FAMILIES = (
    activation,
    complex,
    create,
    distances,
    embedding_bag,
    gradients,
    indexing,
    linear,
    lists,
    masks,
    normalize,
    order,
    pointwise,
    pool,
    recurrent,
    reduce,
    solve,
    special,
    views,
)

__all__ = ["FAMILIES", "HANDLERS", "AtenCall", "UnsupportedArgumentsError", "handler_of"]
