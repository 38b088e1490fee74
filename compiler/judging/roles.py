"""Roles of a graph's inputs: numbers, ids of a lookup, a mask, or a mask that is added before a softmax."""

from __future__ import annotations

import enum

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Trait

_DEPTH = 6


class Role(enum.Enum):
    """Of an input."""

    NUMBER = "number"
    INDEX = "index"
    MASK = "mask"
    ADDED = "added mask"


def role_of(value: Value) -> Role:
    """The role of an input: by what is done with it."""
    if value.dtype.kind == "bool":
        return Role.MASK
    if value.dtype.is_integer:
        if _limited(value):
            return Role.INDEX
        return (
            Role.MASK
            if "mask" in str(value.attrs.get("name", "")) or _is_condition(value, _DEPTH)
            else Role.NUMBER
        )
    return Role.ADDED if value.dtype.is_float and _is_added(value, _DEPTH) else Role.NUMBER


def _limited(value: Value) -> bool:
    sizes = {
        name: max(expr.only_symbol.min, 1) for name, expr in value.graph.symbols.items() if expr.only_symbol
    }
    return value.index_limit(sizes) is not None or _indexes(value, _DEPTH)


def _indexes(value: Value, depth: int) -> bool:
    for node in value.users if depth else ():
        name = node.op.name
        if name.startswith(("gather", "scatter")) and len(node.operands) > 1 and node.operands[1] is value:
            return True
        if (Trait.VIEW in node.op.traits or name in {"cast", "concat", "select"}) and _indexes(
            node.results[0], depth - 1
        ):
            return True
    return False


def _is_condition(value: Value, depth: int) -> bool:
    """Cast to bool, directly or through views and casts: everything but 0 is alike."""
    for node in value.users if depth else ():
        if node.op.name == "cast" and node.results[0].dtype.kind == "bool":
            return True
        moved = Trait.VIEW in node.op.traits or (node.op.name == "cast" and node.results[0].dtype.is_integer)
        if moved and _is_condition(node.results[0], depth - 1):
            return True
    return False


def _is_added(value: Value, depth: int) -> bool:
    """Added, through views alone, to what goes into a softmax."""
    for node in value.users if depth else ():
        if (Trait.VIEW in node.op.traits or node.op.name == "cast") and _is_added(node.results[0], depth - 1):
            return True
        if node.op.name == "add" and _is_softened(node.results[0], depth - 1):
            other = node.operands[1] if node.operands[0] is value else node.operands[0]
            if not _is_leaf(other):
                return True
    return False


def _is_leaf(value: Value) -> bool:
    while Trait.VIEW in value.op.traits:
        value = value.operands[0]
    return Trait.LEAF in value.op.traits


def _is_softened(value: Value, depth: int) -> bool:
    for node in value.users if depth else ():
        if node.op.name in {"softmax", "log_softmax"}:
            return True
        moved = Trait.VIEW in node.op.traits or node.op.name in {"cast", "add"}
        if moved and _is_softened(node.results[0], depth - 1):
            return True
    return False
