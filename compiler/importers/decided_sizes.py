"""What a forward decides by sizes of 0 and 1.

torch.export takes every dynamic size for 2 or more while it traces, whatever the caller allows: `x.shape[0] == 1` is
False then, without a guard, and `x.squeeze(0)` keeps the dim. What was asked so is collected here, and `Sizes` has
calls be as it was answered. So is what PyTorch asks to tell strides: whether a slice of two rows is contiguous is
another question where there are no more rows, and decides nothing here.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property, wraps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import sympy
    import torch
    from torch.fx.experimental.sym_node import SymNode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

_ANSWERING = ("fx/experimental/", "__init__.py")
"""Of PyTorch, the code between a question and its answer."""
_LAYERS = ("nn/", "functional.py")
"""Of PyTorch, what asks as models do. The rest asks what broadcasts and how memory lies, as right for a size of 1."""

_BETWEEN = ("fx/", "utils/", "__init__.py")
"""Of PyTorch, the code between a question about strides and its answer."""
_STRIDES = {
    "_prims_common/__init__.py": (
        "contiguous",
        "strides",
        "non_overlapping_and_dense",
        "memory_format",
        "_perm",
    ),
    "_subclasses/fake_tensor.py": ("_get_output_tensor_from_cache_entry", "_get_output_info_for_cache_entry"),
    "_refs/__init__.py": ("_reshape_view_helper_core_alg",),
    "_prims/__init__.py": ("_collapse_view_helper",),
}
"""File of PyTorch -> what the functions have in their names whose questions tell strides, or which views give one
reshape: whatever the answer, the values are the same.
"""
_BROADCASTS = {
    "_refs/__init__.py": ("_broadcast_shapes", "should_expand"),
    "_prims/__init__.py": ("_broadcast_in_dim_meta",),
    "_subclasses/fake_impls.py": ("infer_size", "fast_binary_impl"),
}
"""The same of what broadcasts. Where it asks whether a size is 1, the answer is right for both."""
_OPS_OF_STRIDES = ("aten.contiguous", "aten._assert_scalar")
"""Ops that ask for no value themselves: the assertion repeats what was found."""

_COMPARED = {"eq": "Eq", "ne": "Ne", "lt": "Lt", "le": "Le", "gt": "Gt", "ge": "Ge"}
"""Comparison of torch's sizes -> sympy's."""
_AT_LEAST = {"GreaterThan": 0, "LessThan": 0, "StrictGreaterThan": 1, "StrictLessThan": 1}
"""Relation of sympy's -> how much larger one side is at least."""


@dataclass
class Asked:
    """What was asked of sizes during a trace, as sympy has it.

    by_models: the relations that hold by what forwards were answered.
    """

    by_models: list[sympy.Basic] = field(default_factory=list)
    of_strides: dict[sympy.Basic, None] = field(default_factory=dict)
    of_values: dict[sympy.Basic, None] = field(default_factory=dict)

    def decides_no_value(self, relation: sympy.Basic) -> bool:
        """Whether it was asked for the strides of tensors alone. Of a trace that is over."""
        return bool(self.of_strides) and _key(relation) in self._of_strides_alone

    @cached_property
    def _of_strides_alone(self) -> set[object]:
        return set(map(_key, self.of_strides)) - set(map(_key, [*self.of_values, *self.by_models]))


@contextmanager
def decided() -> Iterator[Asked]:
    """What is asked of sizes while it is open."""
    import sympy
    from torch.fx.experimental.sym_node import SymNode

    found: dict[sympy.Basic, None] = {}
    asked = Asked()
    originals = {name: getattr(SymNode, name) for name in ("guard_bool", *_COMPARED)}
    thread = threading.get_ident()

    def note(relation: sympy.Basic, *, holds: bool) -> None:
        if relation.free_symbols:
            found.setdefault(relation if holds else sympy.Not(relation))

    def guard_bool(self: SymNode, file: str, line: int) -> bool:
        if threading.get_ident() != thread or not _asks_as_a_model():
            return bool(originals["guard_bool"](self, file, line))
        relation = self.expr  # before the answer, by which it may become true
        answer = bool(originals["guard_bool"](self, file, line))
        note(relation, holds=answer)
        return answer

    def compared(name: str) -> Callable[[SymNode, SymNode], SymNode]:
        relation = getattr(sympy, _COMPARED[name])

        def compare(self: SymNode, other: SymNode) -> SymNode:
            result: SymNode = originals[name](self, other)
            holds = result._expr is sympy.true
            is_known = holds or result._expr is sympy.false  # to sympy symbols are positive, and never 0
            if is_known and threading.get_ident() == thread and _asks_as_a_model():
                note(relation(_from_zero(self.expr), _from_zero(other.expr)), holds=holds)
            return result

        return compare

    SymNode.guard_bool = guard_bool  # type: ignore[method-assign]
    for name in _COMPARED:
        setattr(SymNode, name, compared(name))
    try:
        with _noted(asked):
            yield asked
    finally:
        for name, original in originals.items():
            setattr(SymNode, name, original)
        asked.by_models += found


@contextmanager
def _noted(asked: Asked) -> Iterator[None]:
    """Notes every question of this thread, with whether it is one of strides."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    originals = {name: getattr(ShapeEnv, name) for name in ("evaluate_expr", "guard_or_defer_runtime_assert")}
    thread = threading.get_ident()

    def noting(original: Callable[..., object]) -> Callable[..., object]:
        @wraps(original)
        def answer(self: ShapeEnv, relation: sympy.Basic, *args: object, **kwargs: object) -> object:
            is_new = threading.get_ident() == thread and relation not in asked.of_values
            if is_new and getattr(relation, "free_symbols", None):
                is_of_strides = _is_of_strides(of_one=_is_of_one(relation))
                (asked.of_strides if is_of_strides else asked.of_values).setdefault(relation)
            return original(self, relation, *args, **kwargs)

        return answer

    for name, original in originals.items():
        setattr(ShapeEnv, name, noting(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(ShapeEnv, name, original)


def _key(relation: sympy.Basic) -> object:
    """The same for relations that are one but for a factor or a not."""
    import sympy

    kind = type(relation).__name__
    if kind == "Not":
        return _key(relation.args[0])
    if kind in {"Equality", "Unequality"}:
        left, right = relation.args
        primitive = sympy.expand(left - right).as_content_primitive()[1]
        return "equal", min(primitive, sympy.expand(-primitive), key=str)
    if kind not in _AT_LEAST:
        return relation
    larger, smaller = relation.args if kind.endswith("GreaterThan") else reversed(relation.args)
    rest = sympy.expand(larger - smaller - _AT_LEAST[kind])  # of what is at least 0
    return "order", min(_at_least_zero(rest), _at_least_zero(sympy.expand(-rest - 1)), key=str)


def _at_least_zero(rest: sympy.Expr) -> sympy.Expr:
    """As small as it can be written: 12 * n - 2 is at least 0 where 6 * n - 1 is, and where n - 1 is."""
    import sympy

    constant, terms = rest.as_coeff_Add()
    content, primitive = terms.as_content_primitive()
    if not (constant.is_Integer and content.is_Integer):
        return rest
    return primitive + sympy.floor(constant / abs(content))


def _from_zero(expression: sympy.Basic) -> sympy.Basic:
    import sympy

    symbols = expression.free_symbols
    return expression.xreplace(
        {one: sympy.Symbol(str(one), integer=True, nonnegative=True) for one in symbols}
    )


def _asks_as_a_model() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        of_torch = file.removeprefix(_torch_folder()) if file.startswith(_torch_folder()) else None
        if file != __file__ and (of_torch is None or not of_torch.startswith(_ANSWERING)):
            return of_torch is None or of_torch.startswith(_LAYERS)
        frame = frame.f_back
    return False


def _is_of_one(relation: sympy.Basic) -> bool:
    """Whether it asks for a size of 1."""
    return type(relation).__name__ in {"Equality", "Unequality"} and 1 in relation.args


def _is_of_strides(*, of_one: bool) -> bool:
    """Whether what is asked now tells strides alone. of_one: whether that is for a size of 1."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        of_torch = file.removeprefix(_torch_folder()) if file.startswith(_torch_folder()) else None
        if of_torch == "_ops.py" and str(frame.f_locals.get("self")).startswith(_OPS_OF_STRIDES):
            return True
        if file != __file__ and (of_torch is None or not of_torch.startswith(_BETWEEN)):
            tables = (_STRIDES, _BROADCASTS) if of_one else (_STRIDES,)
            names = [] if of_torch is None else [name for table in tables for name in table.get(of_torch, ())]
            return any(name in code.co_name for name in names)
        frame = frame.f_back
    return False


@cache
def _torch_folder() -> str:
    import torch

    return str(Path(torch.__file__).parent) + os.sep


def squeezed(graph: torch.fx.Graph) -> list[sympy.Basic]:
    """The relations that hold where the dims that a graph squeezes and keeps are not 1."""
    import sympy

    found: dict[sympy.Basic, None] = {}
    for node in graph.nodes:
        if node.op != "call_function" or not str(node.target).startswith("aten.squeeze"):
            continue
        shape = node.args[0].meta["val"].shape
        axes = node.args[1] if len(node.args) > 1 else range(len(shape))
        for axis in [axes] if isinstance(axes, int) else axes:
            expression = getattr(getattr(shape[axis], "node", None), "expr", None) if shape else None
            if expression is not None and expression.free_symbols:
                found.setdefault(sympy.Ne(expression, 1))
    return list(found)


def cut(graph: torch.fx.Graph) -> list[sympy.Basic]:
    """The relations that hold where slices of a graph are as long as their examples."""
    import sympy

    found: dict[sympy.Basic, None] = {}
    for node in graph.nodes:
        name = str(node.target) if node.op == "call_function" else ""
        if name not in {"aten.slice.Tensor", "aten.narrow.default"}:
            continue
        given = tuple(node.args[1:])
        arguments: tuple[Any, ...] = given + (0, 0, None, 1)[len(given) :]
        axis, start, stop, step = arguments
        size, length = (_expression(one.meta["val"].shape[axis]) for one in (node.args[0], node))
        low, high = _place(start or 0, size), size if stop is None else _place(stop, size)
        relation = None
        if low is not None and name == "aten.narrow.default":
            relation = sympy.Ge(size, low + length)
        elif low is not None and high is not None and step == 1:
            relation = sympy.Eq(sympy.Max(0, high - low), length)
        if relation is not None and relation.free_symbols:
            found.setdefault(relation)
    return list(found)


def _place(place: int | torch.fx.Node, size: sympy.Expr) -> sympy.Expr | None:
    """Where a number, or a node of a size, lies in a dim; None for one that may count from the end."""
    import sympy

    if isinstance(place, int):
        return sympy.Max(0, size + place) if place < 0 else sympy.Min(place, size)
    expression = _expression(place.meta["val"])
    return sympy.Min(expression, size) if expression.is_nonnegative else None


def _expression(size: int | torch.SymInt) -> sympy.Expr:
    import sympy

    return sympy.Integer(size) if isinstance(size, int) else cast("sympy.Expr", _from_zero(size.node.expr))
