"""Operations of the bytecode: the pointwise ops of the op table, each for a kind of register, in a fixed order.

interpreter/bytecode_operations.h is this table as C++, made by `header` from C++'s spellings, so that an op is one row
here as well. A test compares the file with what `header` gives.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from kernels_hub.compiler.codegen.cpp.spellings import SPELLINGS
from kernels_hub.compiler.codegen.scalar import DIVISIONS
from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.ir.op import Op, TensorType, Trait
from kernels_hub.compiler.ir.ops import OPS
from kernels_hub.compiler.ir.types import BOOL, FLOAT32, INT64, DType

NOT_COMPUTED = frozenset(
    {"cast", "bitcast", "complex", "real", "imag", "select", "stop_gradient", "with_derivative"}
)
"""Pointwise ops that are instructions of their own, nothing at all, or have no form in bytecode."""

_OF_KIND: dict[str, DType] = {"float": FLOAT32, "int": INT64, "bool": BOOL}


@dataclass(frozen=True)
class Operation:
    """An op for registers of a kind ("float": of either width, "int", "bool"). gives_bool: whatever it is given."""

    name: str
    kind: str
    arity: int
    gives_bool: bool
    expression: str


@functools.cache
def operations() -> tuple[Operation, ...]:
    """All of them; their places are their codes."""
    found = []
    for name, row in sorted(OPS.items()):
        if Trait.POINTWISE in row.traits and name not in NOT_COMPUTED:
            found += [one for kind in _OF_KIND if (one := _operation(row, kind)) is not None]
    return tuple(found)


@functools.cache
def codes() -> dict[tuple[str, str], int]:
    """(name of the op, kind of its operands) -> its place among the operations."""
    return {(one.name, one.kind): code for code, one in enumerate(operations())}


def header() -> str:
    """The text of bytecode_operations.h."""
    lines = [
        "// Operations of the bytecode: KH_OPERATION(name, kind of its operands, arity, result, expression).",
        "// Made from the op table by codegen/bytecode/operations.py; a test compares the two.",
    ]
    for one in operations():
        result = "bool" if one.gives_bool else "same"
        lines.append(f"KH_OPERATION({one.name}, {_KIND[one.kind]}, {one.arity}, {result}, {one.expression})")
    return "\n".join(lines) + "\n"


_KIND = {"float": "real", "int": "integer", "bool": "truth"}


def _operation(row: Op, kind: str) -> Operation | None:
    template = SPELLINGS.of(row, kind)
    (least, arity), dtype = row.bounds, _OF_KIND[kind]
    if template is None or least != arity:
        return None
    try:
        (result,) = row.infer([TensorType(dtype, ())] * arity, row.normalise({}))
    except TypeRuleError:
        return None
    if result.dtype not in {dtype, BOOL}:
        return None
    expression = template.format("a", "b", dtype="D")
    if row.name in DIVISIONS and kind == "int":
        by_minus_one = "-a" if row.name in {"div", "floordiv"} else "A(0)"
        expression = f"(b == 0 ? A(0) : b == -1 ? {by_minus_one} : {expression})"
    return Operation(row.name, kind, arity, result.dtype is BOOL, expression)
