"""A Python package read from its sources: which name means what, without importing anything.

    nn.Module in layers.py      -> External("torch.nn.Module")
    Gate in layers.py           -> Definition(module "layers", its ast.ClassDef)
    silu in __init__.py         -> Definition(module "functional", its ast.FunctionDef): imports are followed

What only running the code would tell (star imports from elsewhere, `globals()`, a module's
`__getattr__`) is told apart from what is certainly not there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Definition:
    """A class, a function, or (as the expression assigned) any other value."""

    module: str
    node: ast.ClassDef | Function | ast.expr


@dataclass(frozen=True)
class External:
    """Something of another package, by its dotted name."""

    name: str


@dataclass(frozen=True)
class Submodule:
    """A module of the package itself, by its dotted name in it; "" is the package."""

    name: str


@dataclass(frozen=True)
class Unknown:
    """A name that the sources may define, in a way that only running them would tell."""


_ALWAYS_THERE = frozenset(
    {"__doc__", "__file__", "__loader__", "__name__", "__package__", "__path__", "__spec__", "__dict__"}
)
"""Attributes that every module has."""

Meaning = Definition | External | Submodule | Unknown | None
"""None: certainly not there."""


@dataclass(frozen=True)
class _FromPackage:
    """`from .module import name`."""

    module: str
    name: str


@dataclass
class ParsedModule:
    """One parsed file."""

    name: str
    """Dotted, inside the package: "" for its __init__.py."""
    inside: str
    path: Path
    tree: ast.Module
    is_package: bool
    bindings: dict[str, Definition | External | Submodule | _FromPackage] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    """Modules of the package that it star-imports."""
    dynamic: bool = False
    """It may define names that its top level does not show."""

    def relative(self, level: int, target: str | None) -> str | None:
        """The module of the package that `from <dots><target> import …` names; None beyond the package."""
        parts = self.name.split(".") if self.name else []
        drop = level - 1 if self.is_package else level
        if drop > len(parts):
            return None
        kept = parts[: len(parts) - drop]
        return ".".join([*kept, *(target.split(".") if target else [])])


@dataclass(frozen=True)
class StaticPackage:
    """A package's modules by dotted name, and the files that do not parse."""

    modules: Mapping[str, ParsedModule]
    broken: tuple[tuple[Path, int, str], ...]
    """File, line, message."""
    others: frozenset[str]
    """Dotted names under which files that are not Python source can be imported: extension modules."""

    def resolve(self, module: str, name: str) -> Meaning:
        """What `name`, possibly dotted, means at the top level of a module."""
        first, *rest = name.split(".")
        meaning = self._find(module, first, frozenset())
        for part in rest:
            if isinstance(meaning, External):
                meaning = External(f"{meaning.name}.{part}")
            elif isinstance(meaning, Submodule):
                meaning = self._find(meaning.name, part, frozenset())
            else:
                return Unknown()
        return meaning

    def resolve_expression(self, module: str, node: ast.expr) -> Meaning:
        """What a name, or a chain of attributes of one, means; Unknown for any other expression."""
        text = _dotted(node)
        return Unknown() if text is None else self.resolve(module, text)

    def has_module(self, name: str) -> bool:
        """Whether the package holds a module, sub-package (with or without __init__.py) or extension."""
        prefix = f"{name}."
        return (
            name in self.modules
            or name in self.others
            or any(known.startswith(prefix) for known in (*self.modules, *self.others))
        )

    def lineage(self, found: Definition) -> tuple[list[Definition], list[External], bool]:
        """A class and its bases in the package, nearest first; its bases elsewhere; whether that is all."""
        own: list[Definition] = []
        external: list[External] = []
        certain = True
        queue = [found]
        while queue:
            current = queue.pop(0)
            if any(current.node is known.node for known in own):
                continue
            own.append(current)
            assert isinstance(current.node, ast.ClassDef)
            for base in current.node.bases:
                meaning = self.resolve_expression(current.module, base)
                if isinstance(meaning, Definition) and isinstance(meaning.node, ast.ClassDef):
                    queue.append(meaning)
                elif isinstance(meaning, External):
                    external.append(meaning)
                else:
                    certain = False
        return own, external, certain

    def _find(self, module: str, name: str, seen: frozenset[tuple[str, str]]) -> Meaning:
        if (module, name) in seen:
            return Unknown()
        seen |= {(module, name)}
        here = self.modules.get(module)
        if here is None:
            return Unknown()
        binding = here.bindings.get(name)
        if isinstance(binding, _FromPackage):
            submodule = f"{binding.module}.{binding.name}" if binding.module else binding.name
            found = self._find(binding.module, binding.name, seen) if self._parsed(binding.module) else None
            if found is None and self.has_module(submodule):
                return Submodule(submodule)
            if found is None and not self._parsed(binding.module) and self.has_module(binding.module):
                return Unknown()  # an extension module, or a file that does not parse
            return found
        if isinstance(binding, Definition) and isinstance(binding.node, ast.Name | ast.Attribute):
            # An alias; of a builtin, or of what only running it would tell, it is a value like any other.
            meaning = self.resolve_expression(module, binding.node)
            return binding if meaning is None or isinstance(meaning, Unknown) else meaning
        if binding is not None:
            return binding
        if name in _ALWAYS_THERE:
            return Unknown()
        for star in here.stars:
            if (found := self._find(star, name, seen)) is not None:
                return found
        return Unknown() if here.dynamic else None

    def _parsed(self, module: str) -> bool:
        return module in self.modules


def read_package(files: Mapping[str, Path]) -> StaticPackage:
    """Parse the Python files of a package, given by their path inside it."""
    modules: dict[str, ParsedModule] = {}
    broken: list[tuple[Path, int, str]] = []
    others: set[str] = set()
    for inside, path in files.items():
        name, is_package = _module_name(inside)
        if not inside.endswith(".py"):
            if inside.endswith((".so", ".pyd", ".dylib")):
                others.add(inside.partition(".")[0].replace("/", "."))
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError as error:
            broken.append((path, error.lineno or 1, f"does not parse: {error.msg}"))
            others.add(name)
            continue
        except ValueError as error:
            broken.append((path, 1, f"does not parse: {error}"))
            others.add(name)
            continue
        module = ParsedModule(name, inside, path, tree, is_package)
        _bind(module, tree.body)
        modules[name] = module
    return StaticPackage(modules, tuple(broken), frozenset(others))


def _module_name(inside: str) -> tuple[str, bool]:
    parts = inside.removesuffix(".py").split("/")
    if parts[-1] == "__init__":
        return ".".join(parts[:-1]), True
    return ".".join(parts), False


def _bind(module: ParsedModule, body: Iterable[ast.stmt]) -> None:
    for node in _top_level(body):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                module.bindings[node.name] = Definition(module.name, node)
                module.dynamic |= node.name == "__getattr__"
            case ast.Import():
                for alias in node.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    module.bindings[bound] = External(alias.name if alias.asname else bound)
            case ast.ImportFrom():
                _bind_from(module, node)
            case ast.Assign():
                for target in node.targets:
                    _bind_target(module, target, node.value)
            case ast.AnnAssign(value=ast.expr() as value) | ast.AugAssign(value=value):
                _bind_target(module, node.target, value)
            case ast.For() | ast.AsyncFor():
                _bind_target(module, node.target, node.iter)
            case ast.With() | ast.AsyncWith():
                _bind_items(module, node.items)
            case ast.Expr():
                module.dynamic |= _may_bind(node)
            case ast.Match():
                module.dynamic = True
            case _:
                continue


def _bind_items(module: ParsedModule, items: Iterable[ast.withitem]) -> None:
    for item in items:
        if item.optional_vars is not None:
            _bind_target(module, item.optional_vars, item.context_expr)


def _may_bind(node: ast.Expr) -> bool:
    """Whether an expression for its effect may be `globals().update(…)` or the like."""
    names = ("globals", "setattr", "exec", "vars")
    return any(isinstance(inner, ast.Name) and inner.id in names for inner in ast.walk(node))


def _bind_from(module: ParsedModule, node: ast.ImportFrom) -> None:
    target = module.relative(node.level, node.module) if node.level else None
    for alias in node.names:
        if alias.name == "*":
            if target is None:
                module.dynamic = True
            else:
                module.stars.append(target)
        elif node.level == 0:
            module.bindings[alias.asname or alias.name] = External(f"{node.module}.{alias.name}")
        elif target is not None:
            module.bindings[alias.asname or alias.name] = _FromPackage(target, alias.name)


def _bind_target(module: ParsedModule, target: ast.expr, value: ast.expr) -> None:
    match target:
        case ast.Name(id=name):
            module.bindings[name] = Definition(module.name, value)
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            paired = len(values) == len(targets)
            for index, each in enumerate(targets):
                # Of an unpacked call or name, the parts are values like any other: Constant stands in.
                part = values[index] if paired else ast.copy_location(ast.Constant(...), value)
                _bind_target(module, each, part)
        case ast.Starred(value=inner):
            _bind_target(module, inner, ast.copy_location(ast.Constant(...), value))
        case ast.Subscript():
            module.dynamic = True  # globals()[name] = …
        case _:
            return


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported, those in if, try, with and loops included."""
    for node in body:
        yield node
        match node:
            case ast.If() | ast.For() | ast.AsyncFor() | ast.While():
                yield from _top_level((*node.body, *node.orelse))
            case ast.With() | ast.AsyncWith():
                yield from _top_level(node.body)
            case ast.Try() | ast.TryStar():
                handlers = [inner for handler in node.handlers for inner in handler.body]
                yield from _top_level((*node.body, *handlers, *node.orelse, *node.finalbody))
            case _:
                continue


def _dotted(node: ast.expr) -> str | None:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            prefix = _dotted(value)
            return None if prefix is None else f"{prefix}.{attribute}"
        case _:
            return None
