"""The interface of a repository: what its users depend on, read from the sources by AST.

Layers with the signatures of their forwards and their flags, functions, variants, and dependencies.
Two of them compared say which version number the later one needs (`hub/compare.py`).
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernels_hub.errors import NoVariantError
from kernels_hub.repository.load import KernelFiles
from kernels_hub.repository.local import local_variants, read_variant
from kernels_hub.repository.metadata import METADATA_FILE, Metadata
from kernels_hub.repository.source import is_source_repository, read_source_repository
from kernels_hub.repository.static_package import Definition, Function, StaticPackage, read_package
from kernels_hub.repository.system import System
from kernels_hub.repository.variants import Variant


@dataclass(frozen=True)
class Parameter:
    """One argument. Annotations are left out: callers do not depend on them."""

    name: str
    kind: str
    """"positional-only", "positional", "keyword-only", "*" or "**"."""
    default: str | None = None
    """Its source; None without one."""

    def __str__(self) -> str:
        stars = self.kind if self.kind in ("*", "**") else ""
        return f"{stars}{self.name}" + ("" if self.default is None else f"={self.default}")


@dataclass(frozen=True)
class CallableInterface:
    """A layer (by its forward, without self) or a function."""

    name: str
    parameters: tuple[Parameter, ...] | None
    """None where the sources do not show them."""
    flags: Mapping[str, bool | str] = field(default_factory=dict, hash=False)
    """A layer's class flags; one that is computed is given as its source."""
    summary: str = ""
    """First paragraph of the docstring."""

    @property
    def signature(self) -> str:
        """As one line: "x, *, eps=1e-06"."""
        if self.parameters is None:
            return "…"
        shown: list[str] = []
        kinds = [parameter.kind for parameter in self.parameters]
        for index, parameter in enumerate(self.parameters):
            if parameter.kind == "keyword-only" and not {"keyword-only", "*"} & set(kinds[:index]):
                shown.append("*")
            shown.append(str(parameter))
            if parameter.kind == "positional-only" and "positional-only" not in kinds[index + 1 :]:
                shown.append("/")
        return ", ".join(shown)


@dataclass(frozen=True)
class VariantInterface:
    """What one variant offers and needs."""

    name: str
    backend: str | None
    archs: tuple[str, ...]
    python_depends: tuple[str, ...]
    kernel_depends: tuple[str, ...]
    """As "org/name@v1" or "org/name@revision"."""
    layers: Mapping[str, CallableInterface]
    functions: Mapping[str, CallableInterface]
    files: Mapping[str, str]
    """Path inside the variant -> sha256 in hexadecimal; without metadata.json and what is signed over it."""
    nbytes: int


@dataclass(frozen=True)
class Interface:
    """What a repository offers and needs."""

    name: str
    version: str | None
    """The release, else the major version."""
    license: str | None
    summary: str | None
    variants: Mapping[str, VariantInterface]

    @property
    def layers(self) -> dict[str, CallableInterface]:
        """Layers of any variant, by name."""
        return _merged(variant.layers for variant in self.variants.values())

    @property
    def functions(self) -> dict[str, CallableInterface]:
        """Functions of any variant, by name."""
        return _merged(variant.functions for variant in self.variants.values())


def read_interface(path: Path) -> Interface:
    """The interface of a repository on disk, in source form or built.

    Raises RepositoryNotFoundError when it is neither, NoVariantError when it is empty, and
    MetadataError for a kernel.toml, metadata.json or digests that are wrong.
    """
    return interface_of(read_kernels(path))


def read_kernels(path: Path) -> list[KernelFiles]:
    """Every variant of a repository on disk, by name; raises as `read_interface`."""
    if names := built_variants(path):
        folder = path / "build" if (path / "build" / names[0]).is_dir() else path
        return [read_variant(path if path.name == name else folder / name) for name in names]
    if is_source_repository(path):
        repository = read_source_repository(path)
        return [repository.variant(backend) for backend in sorted(repository.backends)]
    local_variants(path, _nowhere())  # says what is wrong with the folder
    return [read_variant(path)]


def built_variants(path: Path) -> list[str]:
    """Names of the built variants of a folder (a repository, its `build/`, or one variant)."""
    if is_source_repository(path) and not (path / "build").is_dir():
        return []
    decisions = local_variants(path, _nowhere())
    names = sorted(str(decision.variant) for decision in decisions if isinstance(decision.variant, Variant))
    # In source form, the variants are those that kernel.toml would make.
    return [name for name in names if _holds(path, name)]


def interface_of(kernels: Iterable[KernelFiles]) -> Interface:
    """The interface of some variants; raises NoVariantError when there are none."""
    kernels = list(kernels)
    if not kernels:
        raise NoVariantError("a repository without variants has no interface")
    first = kernels[0].metadata or Metadata(kernels[0].name)
    major = None if first.version is None else str(first.version)
    return Interface(
        name=first.name,
        version=first.release or major,
        license=first.license,
        summary=first.summary,
        variants={kernel.variant: _variant(kernel) for kernel in kernels},
    )


def _nowhere() -> System:
    """Only the names of variants matter: a system that nothing is known of is as good as any."""
    return System("cpu", None, "", "", None, None, None, free_threaded=False)


def _holds(path: Path, name: str) -> bool:
    return path.name == name or (path / "build" / name).is_dir() or (path / name).is_dir()


def _merged(each: Iterable[Mapping[str, CallableInterface]]) -> dict[str, CallableInterface]:
    interfaces: dict[str, CallableInterface] = {}
    for callables in each:
        for name, callable_ in callables.items():
            interfaces.setdefault(name, callable_)
    return interfaces


def _variant(kernel: KernelFiles) -> VariantInterface:
    metadata = kernel.metadata or Metadata(kernel.name)
    package = read_package(kernel.files)
    layers = metadata.layers or _public_layers(package)
    functions = metadata.functions or (() if metadata.layers else _public_functions(package))
    contents = {
        inside: path.read_bytes()
        for inside, path in kernel.files.items()
        if not inside.startswith(METADATA_FILE)
    }
    return VariantInterface(
        name=kernel.variant,
        backend=metadata.backend,
        archs=metadata.archs,
        python_depends=tuple(sorted(metadata.python_depends)),
        kernel_depends=tuple(
            sorted(
                f"{kernel.repo_id}@{kernel.revision or f'v{kernel.version}'}"
                for kernel in metadata.kernel_depends
            )
        ),
        layers={name: _layer(name, package) for name in layers},
        functions={name: _function(name, package) for name in functions},
        files={inside: hashlib.sha256(content).hexdigest() for inside, content in contents.items()},
        nbytes=sum(map(len, contents.values())),
    )


def _public_layers(package: StaticPackage) -> tuple[str, ...]:
    """For kernels whose metadata lists none: classes with a forward in layers.py."""
    module = package.modules.get("layers")
    return tuple(
        name
        for name in (module.bindings if module else ())
        if not name.startswith("_") and _forward(package.resolve("layers", name), package) is not None
    )


def _public_functions(package: StaticPackage) -> tuple[str, ...]:
    """For kernels whose metadata lists none: functions in the package's `__all__`, else all public ones."""
    module = package.modules.get("")
    if module is None:
        return ()
    listed = module.bindings.get("__all__")
    names: Iterable[str] = module.bindings
    if isinstance(listed, Definition) and isinstance(listed.node, ast.List | ast.Tuple):
        names = [str(item.value) for item in listed.node.elts if isinstance(item, ast.Constant)]
    found = {name: package.resolve("", name) for name in names if not name.startswith("_")}
    return tuple(
        name
        for name, meaning in found.items()
        if isinstance(meaning, Definition) and isinstance(meaning.node, Function)
    )


def _layer(name: str, package: StaticPackage) -> CallableInterface:
    found = package.resolve("layers", name)
    if not isinstance(found, Definition) or not isinstance(found.node, ast.ClassDef):
        return _function(name, package)
    forward = _forward(found, package)
    flags: dict[str, bool | str] = {}
    for cls in reversed(package.lineage(found)[0]):
        assert isinstance(cls.node, ast.ClassDef)
        for target, value in _class_values(cls.node):
            match value:
                case ast.Constant(value=bool(flag)):
                    flags[target] = flag
                case _:
                    flags[target] = ast.unparse(value)
    parameters = None if forward is None else _parameters(forward.args)[1:]
    return CallableInterface(name, parameters, flags, _summary(found.node))


def _function(name: str, package: StaticPackage) -> CallableInterface:
    for module in ("", "layers"):
        found = package.resolve(module, name)
        if isinstance(found, Definition) and isinstance(found.node, Function):
            return CallableInterface(name, _parameters(found.node.args), summary=_summary(found.node))
    return CallableInterface(name, None)


def _forward(found: object, package: StaticPackage) -> Function | None:
    if not isinstance(found, Definition) or not isinstance(found.node, ast.ClassDef):
        return None
    for cls in package.lineage(found)[0]:
        assert isinstance(cls.node, ast.ClassDef)
        for node in cls.node.body:
            if isinstance(node, Function) and node.name == "forward":
                return node
    return None


def _class_values(cls: ast.ClassDef) -> Iterable[tuple[str, ast.expr]]:
    for node in cls.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value


def _parameters(arguments: ast.arguments) -> tuple[Parameter, ...]:
    positional = [
        *((argument, "positional-only") for argument in arguments.posonlyargs),
        *((argument, "positional") for argument in arguments.args),
    ]
    without_default = len(positional) - len(arguments.defaults)
    defaults = [*([None] * without_default), *map(ast.unparse, arguments.defaults)]
    parameters = [
        Parameter(argument.arg, kind, default)
        for (argument, kind), default in zip(positional, defaults, strict=True)
    ]
    if arguments.vararg is not None:
        parameters.append(Parameter(arguments.vararg.arg, "*"))
    for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters.append(
            Parameter(argument.arg, "keyword-only", None if value is None else ast.unparse(value))
        )
    if arguments.kwarg is not None:
        parameters.append(Parameter(arguments.kwarg.arg, "**"))
    return tuple(parameters)


def _summary(node: ast.ClassDef | Function) -> str:
    return " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
