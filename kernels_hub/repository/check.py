"""Check a layer repository before it is built or published, from its files alone.

    contract   every layer that is listed exists and is a stateless nn.Module with nothing but a
               forward and flags; none is left out of the list; functions that are listed exist
    imports    the standard library, torch, the package itself, and the dependencies that it declares
    native     compiled files need only what the variant's name promises (see shared_objects.py)

Nothing is imported, so what is checked need not be trusted, and may be for a device that is not here.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kernels_hub.errors import BuildError, MetadataError
from kernels_hub.repository.layer_flags import LAYER_FLAGS
from kernels_hub.repository.load import KernelFiles
from kernels_hub.repository.metadata import Metadata
from kernels_hub.repository.python_depends import PYTHON_DEPENDENCIES
from kernels_hub.repository.shared_objects import MANYLINUX, check_shared_object, is_native
from kernels_hub.repository.source import SourceRepository
from kernels_hub.repository.static_package import (
    Definition,
    ParsedModule,
    StaticPackage,
    Unknown,
    read_package,
)
from kernels_hub.repository.variants import Variant

_MODULE = "torch.nn.Module"
_MODULES = frozenset({_MODULE, "torch.nn.modules.Module", "torch.nn.modules.module.Module"})
_CLIENTS = frozenset({"kernels", "kernels_hub"})
"""Packages of the clients themselves, of which a kernel may use `get_kernel_dep` and no more."""


@dataclass(frozen=True, order=True)
class Problem:
    """One thing to be put right."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}" if self.line else f"{self.file}: {self.message}"


def check_repository(
    repository: SourceRepository,
    backends: Iterable[str] | None = None,
    *,
    manylinux: tuple[int, int] = MANYLINUX,
) -> None:
    """Raise BuildError listing every problem of a repository in source form, by file and line.

    backends: names of those to check; None for all of them.
    manylinux: the glibc that native code may need, for repositories that declare a newer one.
    """
    names = repository.backends if backends is None else [repository.backend(name).name for name in backends]
    sources = [repository.backends[name] for name in dict.fromkeys(names)]
    variants = [variant for source in sources for variant in (source, *source.arch_variants)]
    check_kernels([repository.files_of(variant) for variant in variants], manylinux=manylinux)


def check_kernels(kernels: Iterable[KernelFiles], *, manylinux: tuple[int, int] = MANYLINUX) -> None:
    """Raise BuildError listing every problem of some variants, in source form or built."""
    kernels = list(kernels)
    found: dict[Problem, list[str]] = {}
    for kernel in kernels:
        for problem in variant_problems(kernel, manylinux=manylinux):
            found.setdefault(problem, []).append(kernel.variant)
    if not found:
        return
    lines = [
        f"{problem}" + ("" if len(names) == len(kernels) else f" (in {', '.join(names)})")
        for problem, names in sorted(found.items())
    ]
    count = f"{len(lines)} problem" + ("s" if len(lines) > 1 else "")
    raise BuildError(f"kernel {kernels[0].name!r} has {count}, nothing was written:\n  " + "\n  ".join(lines))


def variant_problems(kernel: KernelFiles, *, manylinux: tuple[int, int] = MANYLINUX) -> Iterator[Problem]:
    """Everything that is wrong with one variant."""
    metadata = kernel.metadata or Metadata(kernel.name)
    package = read_package(kernel.files)
    for path, line, message in package.broken:
        yield Problem(str(path), line, message)
    if not package.broken:
        yield from _contract_problems(kernel, metadata, package)
    for module in package.modules.values():
        yield from _import_problems(module, package, metadata)
    yield from _native_problems(kernel, manylinux)


# -- the layer contract -------------------------------------------------------------------------------


def _contract_problems(kernel: KernelFiles, metadata: Metadata, package: StaticPackage) -> Iterator[Problem]:
    package_file = str(kernel.files.get("__init__.py", kernel.folders[0] / "__init__.py"))
    for name in metadata.functions:
        meaning = package.resolve("", name)
        if meaning is None:
            yield Problem(
                package_file, 0, f"does not define the function {name!r} that is listed; define or import it"
            )
    layers = package.modules.get("layers")
    if layers is None:
        if metadata.layers:
            known = ", ".join(sorted(module.inside for module in package.modules.values()))
            yield Problem(
                package_file, 0, f"layers are listed, but the package has no layers.py; it has {known}"
            )
        return
    if not any(_imports_layers(module) for module in package.modules.values()):
        yield Problem(
            package_file, 0, "does not import its layers, so no client finds them; add: from . import layers"
        )
    for name in metadata.layers:
        yield from _layer_problems(name, layers, package)
    for name, binding in layers.bindings.items():
        if name.startswith("_") or name in metadata.layers:
            continue
        if isinstance(binding, Definition) and _is_module_class(binding, package):
            yield Problem(
                str(layers.path),
                binding.node.lineno,
                f"class {name} is a public layer that is not listed; list it under [kernel] layers, "
                f"or name it _{name}",
            )


def _imports_layers(module: ParsedModule) -> bool:
    """Whether a module imports the package's layers, which makes them an attribute of the package."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            target = module.relative(node.level, node.module)
            if target == "layers" or (target == "" and any(alias.name == "layers" for alias in node.names)):
                return True
    return False


def _layer_problems(name: str, layers: ParsedModule, package: StaticPackage) -> Iterator[Problem]:
    found = package.resolve("layers", name)
    if found is None:
        yield Problem(str(layers.path), 0, f"does not define the layer {name!r} that is listed")
        return
    if isinstance(found, Unknown):
        return
    if not isinstance(found, Definition) or not isinstance(found.node, ast.ClassDef):
        line = found.node.lineno if isinstance(found, Definition) else 0
        at = package.modules[found.module].path if isinstance(found, Definition) else layers.path
        yield Problem(
            str(at),
            line,
            f"layer {name} is not a class; a layer is a subclass of torch.nn.Module with a forward "
            "(functions are listed under [kernel] functions)",
        )
        return
    own, external, certain = package.lineage(found)
    where = str(package.modules[found.module].path)
    if certain and not any(base.name in _MODULES for base in external):
        yield Problem(where, found.node.lineno, f"layer {name} does not subclass torch.nn.Module")
    for base in external:
        if base.name not in _MODULES and base.name not in ("typing.Generic", "abc.ABC", "object"):
            yield Problem(
                where,
                found.node.lineno,
                f"layer {name} inherits from {base.name}, whose members are not there when its forward "
                "runs on another module; inherit from torch.nn.Module alone",
            )
    forwards = False
    for cls in own:
        assert isinstance(cls.node, ast.ClassDef)
        path = str(package.modules[cls.module].path)
        owner = name if cls is own[0] else f"{name} (through {cls.node.name})"
        for member, node in _members(cls.node):
            if member == "forward":
                forwards = True
                yield from _forward_problems(owner, node, path)
            elif member not in LAYER_FLAGS:
                yield Problem(path, node.lineno, _surplus(owner, member))
    if certain and not forwards:
        yield Problem(where, found.node.lineno, f"layer {name} defines no forward")


def _surplus(owner: str, member: str) -> str:
    if member == "__init__":
        return (
            f"layer {owner} defines __init__: a layer is stateless, its forward reads the attributes of the "
            "module that it replaces; remove the constructor"
        )
    return (
        f"layer {owner} defines {member}: besides forward a layer may define only the flags "
        f"{', '.join(sorted(LAYER_FLAGS))}; move it to a function of the module"
    )


def _forward_problems(owner: str, node: ast.stmt, path: str) -> Iterator[Problem]:
    if isinstance(node, ast.AsyncFunctionDef):
        yield Problem(path, node.lineno, f"layer {owner}: forward must not be async")
    if not isinstance(node, ast.FunctionDef):
        return
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Name) and decorator.id in ("staticmethod", "classmethod", "property"):
            yield Problem(path, node.lineno, f"layer {owner}: forward must be a plain method")
    positional = [*node.args.posonlyargs, *node.args.args]
    if not positional or positional[0].arg != "self":
        yield Problem(path, node.lineno, f"layer {owner}: the first argument of forward must be self")
    for inner in ast.walk(node):
        match inner:
            case ast.Attribute(value=ast.Name(id="self"), attr=attribute, ctx=ast.Store() | ast.Del()):
                yield Problem(
                    path,
                    inner.lineno,
                    f"layer {owner}: forward changes self.{attribute}, which is of the module that it "
                    "replaces; a layer keeps no state",
                )
            case _:
                continue


def _members(cls: ast.ClassDef) -> Iterator[tuple[str, ast.stmt]]:
    """What a class body defines; annotations alone, docstrings and `pass` define nothing."""
    for node in cls.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node
            case ast.Assign(targets=targets):
                for target in targets:
                    yield ast.unparse(target), node
            case ast.AnnAssign(target=target, value=ast.expr()):
                yield ast.unparse(target), node
            case ast.AnnAssign() | ast.Pass() | ast.Expr(value=ast.Constant()):
                continue
            case _:
                yield f"code ({ast.unparse(node).splitlines()[0]})", node


def _is_module_class(definition: Definition, package: StaticPackage) -> bool:
    if not isinstance(definition.node, ast.ClassDef):
        return False
    _, external, _ = package.lineage(definition)
    return any(base.name in _MODULES for base in external)


# -- imports ------------------------------------------------------------------------------------------


def _import_problems(module: ParsedModule, package: StaticPackage, metadata: Metadata) -> Iterator[Problem]:
    declared = _declared_modules(metadata.python_depends)
    dependencies = {dependency.repo_id for dependency in metadata.kernel_depends}
    for node in _required_nodes(module.tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    if message := _absolute_problem(alias.name, (), declared, metadata):
                        yield Problem(str(module.path), node.lineno, message)
            case ast.ImportFrom(level=0, module=str(target), names=names):
                bound = tuple(alias.name for alias in names)
                if message := _absolute_problem(target, bound, declared, metadata):
                    yield Problem(str(module.path), node.lineno, message)
            case ast.ImportFrom():
                for message in _relative_problems(node, module, package):
                    yield Problem(str(module.path), node.lineno, message)
            case ast.Call(func=func, args=[ast.Constant(value=str(argument)), *_]):
                called = ast.unparse(func)
                if called in ("importlib.import_module", "import_module", "__import__"):
                    if not argument.startswith(".") and (
                        message := _absolute_problem(argument, (), declared, metadata)
                    ):
                        yield Problem(str(module.path), node.lineno, message)
                elif called.rpartition(".")[2] == "get_kernel_dep" and argument not in dependencies:
                    yield Problem(
                        str(module.path),
                        node.lineno,
                        f"uses the kernel {argument!r}, which is not declared; "
                        "add it to [kernel] kernel-depends with its version",
                    )
            case _:
                continue


def _declared_modules(python_depends: Iterable[str]) -> frozenset[str]:
    rows = {name: PYTHON_DEPENDENCIES.get(name) for name in python_depends}
    named = {row.module for row in rows.values() if row is not None and row.module is not None}
    return frozenset(named | {name.replace("-", "_") for name, row in rows.items() if row is None})


def _absolute_problem(
    name: str, bound: tuple[str, ...], declared: frozenset[str], metadata: Metadata
) -> str | None:
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top == "torch":
        return None
    if top == metadata.python_name:
        return (
            f"imports {name} by its own name, but clients load it under another one; "
            "use a relative import, as in: from . import …"
        )
    if top in _CLIENTS:
        if bound == ("get_kernel_dep",):
            return None
        return f"imports {name}: of the client a kernel may import get_kernel_dep and nothing else"
    if top in declared:
        return None
    known = next((row.name for row in PYTHON_DEPENDENCIES.values() if row.module == top), top)
    return (
        f"imports {name}, which is not declared; add {known!r} to the backend's python-depends, "
        "or import it inside try … except ImportError"
    )


def _relative_problems(node: ast.ImportFrom, module: ParsedModule, package: StaticPackage) -> Iterator[str]:
    target = module.relative(node.level, node.module)
    dots = "." * node.level
    if target is None:
        yield f"imports {dots}{node.module or ''}, which lies outside of the package"
        return
    if not package.has_module(target) and target:
        yield f"imports {dots}{node.module or ''}, which no source folder of this backend holds"
        return
    for alias in node.names:
        if alias.name == "*" or package.has_module(f"{target}.{alias.name}" if target else alias.name):
            continue
        if target in package.modules and package.resolve(target, alias.name) is None:
            yield f"imports {alias.name} from {dots}{node.module or ''}, which does not define it"


def _required_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING` and in a `try` that survives an ImportError."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from (inner for other in node.orelse for inner in (other, *_required_nodes(other)))
        elif isinstance(node, ast.Try) and any(map(_survives, node.handlers)):
            for other in (*node.handlers, *node.orelse, *node.finalbody):
                yield from _required_nodes(other)
        else:
            yield node
            yield from _required_nodes(node)


def _survives(handler: ast.ExceptHandler) -> bool:
    caught = "" if handler.type is None else ast.unparse(handler.type)
    names = ("ImportError", "ModuleNotFoundError", "Exception")
    reraises = any(isinstance(node, ast.Raise) for statement in handler.body for node in ast.walk(statement))
    return (not caught or any(name in caught for name in names)) and not reraises


# -- native files -------------------------------------------------------------------------------------


def _native_problems(kernel: KernelFiles, manylinux: tuple[int, int]) -> Iterator[Problem]:
    native = {inside: path for inside, path in kernel.files.items() if is_native(inside, path)}
    if not native:
        return
    try:
        variant = Variant.parse(kernel.variant)
    except MetadataError:
        return  # a package without a variant's name promises nothing
    if variant.noarch:
        for path in native.values():
            yield Problem(
                str(path),
                0,
                f"is compiled code, and {variant} promises to run on any CPU, OS and torch; ship its source, "
                "or put it into a variant for one, such as torch213-cpu-x86_64-linux",
            )
        return
    for inside, path in native.items():
        for message in check_shared_object(inside, path, variant, frozenset(native), manylinux):
            yield Problem(str(path), 0, message)
