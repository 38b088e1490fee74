"""Which module imports which, read from the sources: nothing is imported.

Modules are named as they are installed: `compiler/ir/graph.py` is `kernels_hub.compiler.ir.graph`.
The files of a layer repository are packages of their own, made of several folders; here they are
named by their paths, `bundled.rotary.cpu.kernels`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

INSTALLED = {
    "layers": "kernels_hub.layers",
    "mappings": "kernels_hub.mappings",
    "compiler": "kernels_hub.compiler",
}
FOLDERS = ("kernels_hub", *INSTALLED, "tests", "benchmarks", "examples", "tools")


@dataclass(frozen=True)
class Import:
    """One import of one module. `from a import b` is an import of "a.b"."""

    target: str
    line: int
    top: bool
    """Whether it runs when the module is imported: not in a function, not under TYPE_CHECKING."""


@dataclass(frozen=True)
class Module:
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


def read_modules(root: Path) -> list[Module]:
    """Every module of the project."""
    return [read_module(path, root) for path in source_files(root)]


def read_module(path: Path, root: Path) -> Module:
    """One module. Relative imports are resolved against the file's folder."""
    folder, *rest = path.relative_to(root).with_suffix("").parts
    home = "bundled" if folder == "layers" and len(rest) > 1 else INSTALLED.get(folder, folder)
    parts = [*home.split("."), *rest]
    package = parts[:-1]
    name = ".".join(package if parts[-1] == "__init__" else parts)
    return Module(name, path, tuple(_imports(ast.parse(path.read_bytes()), package)))


def cycles(modules: list[Module]) -> list[list[str]]:
    """Rings of modules each of which imports the next when it is itself imported; one of each.

    Not inside layer repositories, where `.kernels` is in another folder.
    """
    modules = [module for module in modules if not inside(module.name, "bundled")]
    known = {module.name for module in modules}
    arrows = {
        module.name: sorted(
            {target for item in module.imports if item.top for target in _within(item.target, known)}
        )
        for module in modules
    }
    return list(_rings(arrows))


def _within(target: str, known: set[str]) -> Iterator[str]:
    """The module that an import names: "a.b.f" is "a.b" where f is a function."""
    if target in known:
        yield target
    elif (parent := target.rpartition(".")[0]) in known:
        yield parent


def _rings(arrows: Mapping[str, list[str]]) -> Iterator[list[str]]:
    done: set[str] = set()
    trail: list[str] = []

    def visit(name: str) -> Iterator[list[str]]:
        if name in trail:
            yield [*trail[trail.index(name) :], name]
        elif name not in done:
            trail.append(name)
            for target in arrows[name]:
                if target != name:
                    yield from visit(target)
            trail.pop()
            done.add(name)

    for name in sorted(arrows):
        yield from visit(name)


def _imports(tree: ast.AST, package: list[str], top: bool = True) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from (Import(f"{origin}.{alias.name}", node.lineno, top) for alias in node.names)
        elif isinstance(node, ast.Call) and _is_import_call(node):
            yield Import(node.args[0].value, node.lineno, top)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _imports(ast.Module(node.body, []), package, False)
            yield from _imports(ast.Module(node.orelse, []), package, top)
        else:
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(node, package, top and not function)


def _is_import_call(node: ast.Call) -> bool:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    first = node.args[0] if node.args else None
    return (
        name in ("import_module", "__import__", "importorskip")
        and isinstance(first, ast.Constant)
        and isinstance(first.value, str)
        and not first.value.startswith(".")
    )
