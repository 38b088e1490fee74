"""What a forward decides by sizes of 0 and 1.

torch.export takes every dynamic size for 2 or more while it traces, whatever the caller allows: `x.shape[0] == 1` is
False then, without a guard, and `x.squeeze(0)` keeps the dim. What was asked so is collected here, and `Sizes` has
calls be as it was answered.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sympy
    import torch
    from torch.fx.experimental.sym_node import SymNode

_ANSWERING = ("fx/experimental/", "__init__.py")
"""Of PyTorch, the code between a question and its answer."""
_LAYERS = ("nn/", "functional.py")
"""Of PyTorch, what asks as models do. The rest asks what broadcasts and how memory lies, as right for a size of 1."""

_COMPARED = {"eq": "Eq", "ne": "Ne", "lt": "Lt", "le": "Le", "gt": "Gt", "ge": "Ge"}
"""Comparison of torch's sizes -> sympy's."""


@contextmanager
def decided() -> Iterator[list[sympy.Basic]]:
    """The relations of sizes, as sympy has them, that hold by what forwards were answered while it is open."""
    import sympy
    from torch.fx.experimental.sym_node import SymNode

    found: dict[sympy.Basic, None] = {}
    relations: list[sympy.Basic] = []
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
        yield relations
    finally:
        for name, original in originals.items():
            setattr(SymNode, name, original)
        relations += found


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
