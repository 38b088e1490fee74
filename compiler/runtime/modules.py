"""Checks that a module is what a program was compiled for: its classes, and the attributes that forwards read."""

from __future__ import annotations

import ast
import gc
import hashlib
import inspect
import textwrap
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from .errors import Misfit
from .facts import (
    OF_FUNCTIONS,
    CellHolds,
    Contents,
    FunctionHolds,
    Held,
    at,
    code_text,
    contents,
    fact,
    is_computed,
    is_filled,
    kind_of,
    places,
    same_fact,
    step,
)
from .parts import Module


def check_module(module: nn.Module, modules: Sequence[Module]) -> tuple[list[nn.Module], Contents]:
    """The modules inside of one that is as the compiled one was, and what these hold that their forwards depend on.

    Raises Misfit with the first difference.
    """
    parts: list[nn.Module] = []
    found = Contents([], [], [])
    facts = found.held
    functions: list[types.FunctionType] = []
    inside = places(module)
    for one in modules:
        holder, name, part = _find(module, one)
        where = f"its {one.path} " if one.path else "it "
        _check_class(part, one, where)
        for path, expected in one.facts.items():
            if path.startswith("@"):  # of what is around calls: see `surroundings`
                continue
            actual = fact(at(part, path), inside)
            if not same_fact(actual, expected):
                raise Misfit(
                    f"fact {one.path}.{path}",
                    f"{where}has {path} = {actual!r}, it was compiled with {expected!r}",
                )
            held, value = _holders(part, path)
            found.join(held)
            found.join(contents(value, inside))
        for path in one.functions:
            held, function = _holders(part, path)
            found.join(held)
            if isinstance(function, types.FunctionType):
                functions.append(function)
            met = one.met.setdefault((type(part), path), _as_it_is(function))
            if not _does_the_same(function, met):
                name = path.removesuffix(".__func__").rpartition(".")[2]
                raise Misfit(
                    f"function {one.path}.{path}",
                    f"{where}runs another {name} than it was compiled with: it was replaced since",
                )
        if one.path:
            parts.append(part)
            facts += (Held(holder, name, part), Held(part.__dict__, "forward", part.__dict__.get("forward")))
            if part._forward_hooks or part._forward_pre_hooks:
                raise Misfit("hooks", f"its {name} has hooks, which the program would not run")
            own = part.__dict__.get("forward")
            if type(own).__name__ not in {"NoneType", "KernelForward"} and not _is_among(
                one.facts, part, own
            ):
                raise Misfit("hooks", f"its {name} has a forward of its own, which the program would not run")
    found.same.extend(map(FunctionHolds, {id(one): one for one in functions}.values()))
    return parts, found


def _is_among(facts: Mapping[str, Any], part: nn.Module, own: object) -> bool:
    """Whether a forward that an instance has is a method of its class (`self.forward = self.forward_features`), and the
    program was compiled with it: the facts, which hold, say so."""
    return (
        "forward" in facts
        and isinstance(own, types.MethodType)
        and own.__self__ is part
        and getattr(type(part), own.__name__, None) is own.__func__
    )


def _as_it_is(function: object) -> object:
    """A function as it is now: another one, which nobody changes."""
    if not isinstance(function, types.FunctionType):
        return function
    made = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    return made


def _does_the_same(function: object, other: object) -> bool:
    """Whether it is the same function, or one that was defined again as it was, as by a cell of a notebook."""
    if function is other:
        return True
    if not isinstance(function, types.FunctionType) or not isinstance(other, types.FunctionType):
        return False
    if function.__closure__ is other.__closure__ and all(
        part(function) is part(other) for part in OF_FUNCTIONS
    ):
        return True
    return code_text(function.__code__) == code_text(other.__code__) and same_fact(
        fact(function), fact(other)
    )


def _holders(part: object, path: str) -> tuple[Contents, object]:
    """What holds what is under a path, from one step to the next, and that."""
    held: list[Held] = []
    same: list[Callable[[], bool]] = []
    for name in path.split("."):
        table = _table(part)
        value = step(part, name)
        if name.startswith("?"):
            held += (Held(place, name[1:], None) for place in _places(part) if name[1:] not in place)
        elif isinstance(table, dict) and name in table:
            held.append(Held(table, name, table[name]))
        elif isinstance(part, nn.Module) and (
            holder := next((one for one in _places(part) if name in one), None)
        ):
            held.append(Held(holder, name, holder[name]))
        elif isinstance(table, dict) and isinstance(part, (dict, types.ModuleType)):
            held.append(Held(table, name, None))
        elif type(part) is types.CellType:
            question: Callable[[], bool] = CellHolds(part, value)
            same.append(question if is_filled(part) else partial(_is_unfilled, part))
        elif is_computed(part, name) and fact(value) is value:
            same.append(partial(_has_still, part, name, value))
        part = value
    return Contents(held, same, []), part


def _has_still(part: object, name: str, value: object) -> bool:
    """Whether an attribute that is computed is what it was."""
    return same_fact(step(part, name), value)


def _places(part: object) -> list[dict[str, Any]]:
    """The dicts in which an attribute of an object may come to be; of a module its registries, too."""
    found = [getattr(part, "__dict__", {})]
    if isinstance(part, nn.Module):
        found += (part._parameters, part._buffers, part._modules)
    return [one for one in found if isinstance(one, dict)]


def _table(part: object) -> object:
    """The dict in which a value is looked for what it has: a class's own where it has no other."""
    if type(part) is dict:
        return part
    table = getattr(part, "__dict__", {})
    return gc.get_referents(table)[0] if isinstance(table, types.MappingProxyType) else table


def _is_unfilled(cell: types.CellType) -> bool:
    return not is_filled(cell)


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
