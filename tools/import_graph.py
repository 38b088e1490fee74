"""Which module imports which, read from the sources: nothing is imported.

Modules are named as they are installed: `compiler/ir/graph.py` is `kernels_hub.compiler.ir.graph`.
The files of a layer repository are packages of their own, made of several folders; here they are
named by their paths, `bundled.rotary.cpu.kernels`.

What counts as an import, wherever it stands (in a function and under TYPE_CHECKING, too):

    import a.b; from a import b; from . import b         statements
    importlib.import_module("a.b"), __import__("a.b")    calls with the name
    {"x": "kernels_hub.a.b"}, ("kernels_hub.a.b:f",)     names of this project's modules, in a file that calls
                                                         import_module with what is no literal, and is no
                                                         `__init__.py`: there such a table is the public interface
    import_module(f"kernels_hub.a.{name}")               with every string of that file in place of `name`

and what a module's stub (`.pyi`) imports.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

INSTALLED = {
    "layers": "kernels_hub.layers",
    "mappings": "kernels_hub.mappings",
    "compiler": "kernels_hub.compiler",
}
FOLDERS = ("kernels_hub", *INSTALLED, "tests", "benchmarks", "examples", "tools")
_NAMED = re.compile(r"(kernels_hub(?:\.\w+)+)(?::\w+)?")


@dataclass(frozen=True)
class Import:
    """One import of one module. `from a import b` is an import of "a.b"."""

    target: str
    line: int


@dataclass(frozen=True)
class SourceModule:
    """A source file and what it imports, anywhere in it."""

    name: str
    path: Path
    imports: tuple[Import, ...]


def inside(name: str, package: str) -> bool:
    """Whether a module is the package or in it: "a.b.c" is inside "a.b", "a.bc" is not."""
    return name == package or name.startswith(f"{package}.")


def source_files(root: Path, suffixes: tuple[str, ...] = (".py",)) -> Iterator[Path]:
    """The project's own source files, sorted."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and not {"__pycache__", "build"} & set(path.relative_to(root).parts):
                yield path


def read_modules(root: Path) -> list[SourceModule]:
    """Every module of the project."""
    return [read_module(path, root) for path in source_files(root)]


def read_module(path: Path, root: Path) -> SourceModule:
    """One module, with what its stub imports. Relative imports are resolved against the file's folder."""
    folder, *rest = path.relative_to(root).with_suffix("").parts
    home = "bundled" if folder == "layers" and len(rest) > 1 else INSTALLED.get(folder, folder)
    parts = [*home.split("."), *rest]
    package = parts[:-1]
    name = ".".join(package if parts[-1] == "__init__" else parts)
    stub = path.with_suffix(".pyi")
    texts = [one.read_bytes() for one in (path, stub) if one.exists()]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    imports = list(_imports(nodes, package))
    if parts[-1] != "__init__":
        imports += _named_imports(nodes)
    return SourceModule(name, path, tuple(imports))


def rings(modules: Iterable[SourceModule]) -> list[list[str]]:
    """The strongly connected components of several modules: each of a ring comes to each other one by imports.

    Not inside layer repositories, where `.kernels` is in another folder. The modules of a ring are sorted.
    """
    modules = [module for module in modules if not inside(module.name, "bundled")]
    known = {module.name for module in modules}
    arrows = {
        module.name: {target for item in module.imports for target in _within(item.target, known)}
        for module in modules
    }
    return sorted(sorted(ring) for ring in components(arrows) if len(ring) > 1)


def _within(target: str, known: set[str]) -> Iterator[str]:
    """The module that an import names: "a.b.f" is "a.b" where f is a function."""
    if target in known:
        yield target
    elif (parent := target.rpartition(".")[0]) in known:
        yield parent


def components(arrows: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Tarjan's strongly connected components. Source: SIAM J. Comput. 1 (2), 1972."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> Iterator[list[str]]:
        index[name] = lowest[name] = len(index)
        stack.append(name)
        for target in sorted(arrows[name]):
            if target not in index:
                yield from visit(target)
                lowest[name] = min(lowest[name], lowest[target])
            elif target in stack:
                lowest[name] = min(lowest[name], index[target])
        if lowest[name] == index[name]:
            start = stack.index(name)
            yield stack[start:]
            del stack[start:]

    for name in sorted(arrows):
        if name not in index:
            yield from visit(name)


def _imports(nodes: Iterable[ast.AST], package: list[str]) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from (Import(f"{origin}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and (name := _literal_import(node)) is not None:
            relative = name.lstrip(".")
            base = package[: len(package) - (len(name) - len(relative)) + 1] if relative != name else []
            yield Import(".".join([*base, relative]), node.lineno)


def _named_imports(nodes: Iterable[ast.AST]) -> Iterator[Import]:
    """Names of this project's modules in a file that imports what is no literal."""
    calls = [node for node in nodes if isinstance(node, ast.Call) and _is_import_call(node)]
    given = [node.args[0] for node in calls if node.args]
    computed = [one for one in given if not isinstance(one, ast.Constant)]
    if not computed:
        return
    starts = ["", *(start for one in computed if (start := _start(one)))]
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for start in starts:
                if match := _NAMED.fullmatch(start + node.value):
                    yield Import(match[1], node.lineno)


def _start(name: ast.expr) -> str:
    """What an f-string begins with."""
    first = name.values[0] if isinstance(name, ast.JoinedStr) and name.values else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def _is_import_call(node: ast.Call) -> bool:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    return name in ("import_module", "__import__", "importorskip")


def _literal_import(node: ast.Call) -> str | None:
    """The name that a call imports, where it is a literal."""
    first = node.args[0] if node.args and _is_import_call(node) else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def count_any(path: Path) -> int:
    """How often `Any` stands in the signatures of a file's functions."""
    functions = (
        node
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return sum(_any_in(hint) for function in functions for hint in _hints(function))


def _hints(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
    given = function.args
    several = [one for one in (given.vararg, given.kwarg) if one is not None]
    for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, *several):
        if argument.annotation is not None:
            yield argument.annotation
    if function.returns is not None:
        yield function.returns


def _any_in(hint: ast.expr) -> int:
    count = 0
    for node in ast.walk(hint):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "Any" in node.value:
            count += _any_in(ast.parse(node.value, mode="eval").body)
        count += (isinstance(node, ast.Name) and node.id == "Any") or (
            isinstance(node, ast.Attribute) and node.attr == "Any"
        )
    return count
