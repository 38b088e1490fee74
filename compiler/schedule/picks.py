"""Picks one element of each row before it is computed, where all of the row would be computed for it.

    gather_elements(f(x, broadcast(statistic)), places) -> f(gather_elements(x, places), broadcast(statistic))

A cross-entropy is so: of the log-softmax of each row, one number is used. Exact: what is picked is computed as before.
"""

from __future__ import annotations

from kernels_hub.compiler.ir.graph import Node, Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.proofs import proves_equal

MOST_NODES = 16


def picks_one(node: Node, x: Value) -> bool:
    """Whether a `gather_elements` takes one element of each row of x, which pointwise ops make."""
    if Trait.POINTWISE not in x.op.traits:
        return False
    axis, shape = node.attrs["axis"], node.results[0].shape
    rows = all(proves_equal(a, b) for at, (a, b) in enumerate(zip(shape, x.shape, strict=True)) if at != axis)
    found = _computed(x)
    return rows and shape[axis] == 1 and len(found) <= MOST_NODES and any(_varies(one, axis) for one in found)


def picked(x: Value, places: Value, axis: int) -> Value:
    """The elements of x at these places along an axis."""
    if Trait.POINTWISE in x.op.traits:
        return x.graph.apply(x.op, *(picked(operand, places, axis) for operand in x.operands), **x.attrs)
    if _varies(x, axis):
        return x.gather_elements(places, axis)
    return x.operands[0].broadcast(places.shape, x.attrs["axes"])


def _varies(x: Value, axis: int) -> bool:
    return x.op_name != "broadcast" or axis in x.attrs["axes"]


def _computed(x: Value) -> list[Value]:
    """What pointwise ops make x of, as often as it is read."""
    if Trait.POINTWISE not in x.op.traits:
        return [x]
    found: list[Value] = []
    for operand in x.operands:
        found += _computed(operand)
        if len(found) > MOST_NODES:
            break
    return found
