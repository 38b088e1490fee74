"""Floating-point operations of a call: the rules that rows of the op table are written with.

A multiplication and an addition are two operations; exp, sqrt and their like are one each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.op import Attrs, Flops, Op, Operands, TensorType, Trait


def call_flops(op: Op, operands: Operands, results: Sequence[TensorType], attrs: Attrs) -> Dim:
    """Floating-point operations of a call of an op, by the rule of its row or else by its traits."""
    if op.flops is not None:
        return op.flops(operands, results, attrs)
    if Trait.POINTWISE in op.traits:
        return results[0].size
    return operands[0].size if Trait.REDUCTION in op.traits else 0


@overload
def multiply_adds(count: int) -> int: ...
@overload
def multiply_adds(count: Dim) -> Dim: ...
def multiply_adds(count: Dim) -> Dim:
    """Operations of so many multiplications, each with an addition."""
    return 2 * count


def per_operand_element(count: int) -> Flops:
    """So many operations for each element of the first operand."""
    return lambda operands, _results, _attrs: count * operands[0].size


def moves_only(_operands: Operands, _results: Sequence[TensorType], _attrs: Attrs) -> Dim:
    """None: elements are copied, converted or chosen."""
    return 0


def matmul_flops(operands: Operands, results: Sequence[TensorType], _attrs: Attrs) -> Dim:
    """A multiply-add for each element of the result and each step of the summed dim."""
    return multiply_adds(results[0].size * operands[0].shape[-1])


def conv_flops(operands: Operands, results: Sequence[TensorType], _attrs: Attrs) -> Dim:
    """A multiply-add for each element of the result and each weight that it takes."""
    return multiply_adds(results[0].size * product(operands[1].shape[1:]))


def conv_transpose_flops(operands: Operands, _results: Sequence[TensorType], _attrs: Attrs) -> Dim:
    """A multiply-add for each element of the operand and each weight that takes it."""
    return multiply_adds(operands[0].size * product(operands[1].shape[1:]))


def recurrent_flops(operands: Operands, _results: Sequence[TensorType], _attrs: Attrs) -> Dim:
    """A multiply-add for each element of what the gates get of the input and each element of the state."""
    return multiply_adds(operands[0].size * operands[1].shape[-1])


def fourier_flops(operands: Operands, results: Sequence[TensorType], attrs: Attrs) -> Dim:
    """5 n log2 n for n complex samples, and half of it for real ones, as is the custom."""
    axis, shape = attrs["axis"], (results if attrs["form"] == "real" else operands)[0].shape
    samples, is_whole = shape[axis], attrs["form"] == "full" and len(operands) == 2
    if not isinstance(samples, int):
        return 0
    return product((*shape[:axis], *shape[axis + 1 :])) * transform_flops(samples) // (1 if is_whole else 2)


def transform_flops(samples: int) -> int:
    """5 n log2 n for n complex samples, whatever their number takes."""
    return 5 * samples * (samples - 1).bit_length()


def pool_flops(_operands: Operands, results: Sequence[TensorType], attrs: Attrs) -> Dim:
    """One operation for each element of each window."""
    return results[0].size * product(attrs["kernel"])
