"""Checks that a module is what a program was compiled for: its classes, and the attributes that forwards read."""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
import types
import weakref
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import nn

from .errors import Misfit
from .parts import Module

_PLAIN = (bool, int, float, str, bytes, type(None))


class Held(NamedTuple):
    """What a table of a module holds under a name: a module inside of it, a weight, what a forward reads."""

    holder: dict[str, Any]
    name: str
    value: Any
    """The very object; None where it holds nothing there."""


def check_module(module: nn.Module, modules: Sequence[Module]) -> tuple[list[nn.Module], list[Held]]:
    """The modules inside of one that is as the compiled one was, and what these hold that their forwards depend on.

    Raises Misfit with the first difference.
    """
    parts: list[nn.Module] = []
    facts: list[Held] = []
    for one in modules:
        holder, name, part = _find(module, one)
        where = f"its {one.path} " if one.path else "it "
        _check_class(part, one, where)
        for path, expected in one.facts.items():
            actual = fact_at(part, path)
            if type(actual) is not type(expected) or actual != expected:
                raise Misfit(
                    f"fact {one.path}.{path}",
                    f"{where}has {path} = {actual!r}, it was compiled with {expected!r}",
                )
            facts += _read(part, path)
        if one.path:
            parts.append(part)
            facts += (Held(holder, name, part), Held(part.__dict__, "forward", part.__dict__.get("forward")))
            if part._forward_hooks or part._forward_pre_hooks:
                raise Misfit("hooks", f"its {name} has hooks, which the program would not run")
            if type(part.__dict__.get("forward")).__name__ not in {"NoneType", "KernelForward"}:
                raise Misfit("hooks", f"its {name} has a forward of its own, which the program would not run")
    return parts, facts


def _read(part: Any, path: str) -> Iterator[Held]:
    for name in path.split("."):
        table = getattr(part, "__dict__", {})
        if isinstance(table, dict) and name in table:  # a class has another kind of table
            yield Held(table, name, table[name])
        part = getattr(part, name, None)


def fact_at(module: Any, path: str) -> Any:
    """What `fact` says of "eps", or of "config.hidden_act"."""
    for name in path.split("."):
        module = getattr(module, name, None)
    return fact(module)


def fact(value: Any) -> Any:
    """A value as tables hold it: plain ones as they are, everything else by what tells it from others."""
    if isinstance(value, _PLAIN) and type(value) in _PLAIN:
        return value
    if isinstance(value, (tuple, list)):
        return tuple(fact(element) for element in value)
    if isinstance(value, (set, frozenset)):
        return ("set", *sorted(repr(fact(element)) for element in value))
    if isinstance(value, dict):
        # What it holds itself: a class may import the rest when it is asked for items.
        return {str(name): fact(element) for name, element in dict.items(value)}
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        return f"{plain.dtype}{list(plain.shape)} {hashlib.sha256(data).hexdigest()[:16]}"
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value)
    if isinstance(value, Enum):
        return f"{kind_of(type(value))}.{value.name}"
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
        return kind_of(value)
    return f"a {kind_of(type(value))}"


def kind_of(one: Any) -> str:
    """The full name of a class or function."""
    return f"{one.__module__}.{one.__qualname__}"


def forward_digest(kind: type) -> str:
    """A digest of the source of a class's forward, but for comments and spaces; "" of PyTorch's own classes, and where
    there is no source."""
    if kind not in _DIGESTS:
        _DIGESTS[kind] = "" if kind.__module__.startswith("torch.nn.") else _digest(kind)
    return _DIGESTS[kind]


_DIGESTS: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def _digest(kind: Any) -> str:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind.forward)))
    except (OSError, TypeError, SyntaxError, AttributeError):
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(_Plain().visit(tree)).encode()).hexdigest()[:16]


class _Plain(ast.NodeTransformer):
    """Without f-strings, which are messages, and which every release of Python spells in its own way."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        return ast.copy_location(ast.Constant("f-string"), node)


def _find(module: nn.Module, one: Module) -> tuple[dict[str, nn.Module | None], str, nn.Module]:
    holder: dict[str, nn.Module | None] = {}
    name, part = "", module
    for name in one.path.split(".") if one.path else ():
        holder = part._modules
        inside = holder.get(name)
        if inside is None:
            raise Misfit("modules", f"it has no module {one.path!r}, which was a {one.kind}")
        part = inside
    return holder, name, part


def _check_class(part: nn.Module, module: Module, where: str) -> None:
    kind = type(part)
    if module.path and kind_of(kind) != module.kind:
        raise Misfit(
            f"class {module.path}", f"{where}is a {kind_of(kind)}, it was compiled with a {module.kind}"
        )
    if module.forward and forward_digest(kind) != module.forward:
        raise Misfit(
            f"forward {module.path}", f"{where}({kind_of(kind)}) has another forward than what was compiled"
        )
