"""Products and convolutions as reductions: the sum over the channels (and the window) becomes inner loops.

For what the runtime has no kernel for: float64, integers, and narrow floats that are rounded after every op.
"""

from __future__ import annotations

from dataclasses import replace

from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.ops import OPS
from kernels_hub.compiler.ir.types import DType
from kernels_hub.compiler.schedule.index import Loop
from kernels_hub.compiler.schedule.kernel import (
    Compute,
    Convolution,
    Guard,
    Load,
    Nest,
    Product,
    Reduce,
    Statement,
    View,
)


def as_loops(nest: Nest) -> Nest:
    """A product or convolution as a reduction over inner loops."""
    anchor = nest.anchor
    if isinstance(anchor, Product):
        inner, made = _product(anchor, nest.outer)
    elif isinstance(anchor, Convolution):
        inner, made = _convolution(anchor, nest.outer)
    else:
        raise EngineError(f"{type(anchor).__name__} has no loop form")
    return replace(nest, inner=inner, body=(*made, *nest.body), anchor=None)


def _product(anchor: Product, outer: tuple[Loop, ...]) -> tuple[tuple[Loop, ...], tuple[Statement, ...]]:
    *batch, m, n = outer
    k = Loop("$k", anchor.a.shape[-1])
    lead = [one.index for one in batch]
    places = _place(anchor.a, (*lead, m.index, k.index)), _place(anchor.b, (*lead, k.index, n.index))
    return (k,), _multiplied(anchor.name, anchor.a, anchor.b, places, (), anchor.dtype, anchor.origin)


def _convolution(
    anchor: Convolution, outer: tuple[Loop, ...]
) -> tuple[tuple[Loop, ...], tuple[Statement, ...]]:
    batch, *spatial, channels = outer
    kernel = anchor.w.shape[2:]
    per_group = anchor.w.shape[1]
    window = [Loop(f"$w{axis}", extent) for axis, extent in enumerate(kernel)]
    c = Loop("$c", per_group)
    guards = []
    at: list[Dim] = []
    for axis, (out, one) in enumerate(zip(spatial, window, strict=True)):
        low, high = anchor.padding[axis]
        place = out.index * anchor.strides[axis] + one.index * anchor.dilations[axis] - low
        if not all(isinstance(pad, int) and pad == 0 for pad in (low, high)):
            guards.append(Guard(place, 0, anchor.x.shape[2 + axis]))
        at.append(place)
    group = 0 if anchor.groups == 1 else channels.index // (anchor.w.shape[0] // anchor.groups)
    places = (
        _place(anchor.x, (batch.index, group * per_group + c.index, *at)),
        _place(anchor.w, (channels.index, c.index, *(one.index for one in window))),
    )
    made = _multiplied(anchor.name, anchor.x, anchor.w, places, tuple(guards), anchor.dtype, anchor.origin)
    return (c, *window), made


def _multiplied(
    name: str,
    a: View,
    b: View,
    places: tuple[Dim, Dim],
    guards: tuple[Guard, ...],
    dtype: DType,
    origin: str,
) -> tuple[Statement, ...]:
    """name = sum of a[…] * b[…] over the inner loops, in the anchor's dtype."""
    made: list[Statement] = []
    factors = []
    for word, view, place in (("a", a, places[0]), ("b", b, places[1])):
        element = f"{name}_{word}"
        made.append(Load(element, view.buffer.dtype, view.buffer, place, guards if word == "a" else ()))
        if view.buffer.dtype.compute is not dtype.compute:
            made.append(
                Compute(
                    f"{element}_wide", dtype, OPS["cast"], (element,), {"dtype": dtype, "saturate": False}
                )
            )
            element = f"{element}_wide"
        factors.append(element)
    made.append(Compute(f"{name}_product", dtype, OPS["mul"], tuple(factors)))
    made.append(Reduce(name, dtype, "sum", f"{name}_product", origin))
    return tuple(made)


def _place(view: View, index: tuple[Dim, ...]) -> Dim:
    total: Dim = view.offset
    for dim, stride in zip(index, view.strides, strict=True):
        total = total + dim * stride
    return total
