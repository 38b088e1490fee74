"""Forward substitution: a variable that the next statement alone reads gives way to what it was assigned.

    gate = self.act_fn(self.gate_proj(x))
    up = self.up_proj(x)                 ->   return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
    return self.down_proj(gate * up)

Two functions that name their intermediate results differently are the same statements then. What is evaluated, and in
which order, stays: between the assignment and the use nothing but names, and attributes that are called, is read.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Sequence


def substituted(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements of a function's body with as few variables as that takes. Those given stay as they are."""
    found = list(statements)
    place = 0
    while place + 1 < len(found):
        joined = _joined(found[place], found[place + 1], found[place + 2 :])
        if joined is None:
            place += 1
        else:
            found[place : place + 2] = [joined]
            place = max(place - 1, 0)
    return found


def _joined(first: ast.stmt, second: ast.stmt, rest: Iterable[ast.stmt]) -> ast.stmt | None:
    """Both in one, where the second alone reads what the first assigns."""
    name, value = _variable(first), getattr(first, "value", None)
    found = _evaluated(second)
    if name is None or value is None or found is None or _binds_inside(value) or _binds_inside(found):
        return None
    uses = [node for node in ast.walk(found) if isinstance(node, ast.Name) and node.id == name]
    if len(uses) != 1 or not _is_evaluated_first(found, uses[0]):
        return None
    if name not in _stored(second) and any(name in _names(one) for one in rest):
        return None
    joined: ast.stmt = _Substitution(name, value).visit(copy.deepcopy(second))
    return ast.copy_location(joined, first)


def _variable(statement: ast.stmt) -> str | None:
    """The one name that a statement assigns, if it does nothing else."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target = statement.target
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _stored(statement: ast.stmt) -> set[str]:
    """Names that a statement leaves with other values."""
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    return set().union(*(_names(target) for target in targets if isinstance(target, (ast.Name, ast.Tuple))))


def _evaluated(statement: ast.stmt) -> ast.expr | None:
    """What a statement evaluates before all else that it does."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr)):
        return statement.value
    return None


def _binds_inside(value: ast.expr) -> bool:
    """Whether an expression assigns names, or leaves the function in the middle."""
    inside = (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)
    return any(isinstance(node, inside) for node in ast.walk(value))


def _is_evaluated_first(node: ast.AST, use: ast.Name) -> bool:
    """Whether a use is evaluated for sure, and before everything else in a node that could tell when that is."""
    if node is use:
        return True
    if isinstance(node, ast.Call):
        parts: list[ast.expr] = [node.func, *node.args, *(keyword.value for keyword in node.keywords)]
    elif isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp):
        parts = [node.operand]
    elif isinstance(node, (ast.Attribute, ast.Starred)):
        parts = [node.value]
    elif isinstance(node, ast.Subscript):
        parts = [node.value, node.slice]
    elif isinstance(node, (ast.Tuple, ast.List)):
        parts = node.elts
    else:
        return False
    for part in parts:
        if any(inner is use for inner in ast.walk(part)):
            return _is_evaluated_first(part, use)
        is_called = isinstance(node, ast.Call) and node.func is part
        if not (isinstance(part, (ast.Name, ast.Constant)) or (is_called and _is_path(part))):
            return False
    return False


def _is_path(node: ast.expr) -> bool:
    """`self.norm.forward`: attributes of a name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


class _Substitution(ast.NodeTransformer):
    """Puts an expression in the place of a name that is read."""

    def __init__(self, name: str, value: ast.expr) -> None:
        self._name, self._value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._value if node.id == self._name and isinstance(node.ctx, ast.Load) else node
