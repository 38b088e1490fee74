"""Describes a repository on disk: its metadata, layers with their signatures, and variants.

Read from the files alone: nothing is imported, so a repository that is not trusted, or whose
backend is not here, can be looked at.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernels_hub.repository.load import KernelFiles
from kernels_hub.repository.local import local_variants, read_variant
from kernels_hub.repository.metadata import METADATA_FILE, Metadata
from kernels_hub.repository.provenance import compiled_provenance, parse_provenance, read_compiled_from
from kernels_hub.repository.source import read_source_repository
from kernels_hub.repository.system import System
from kernels_hub.repository.variants import Variant


@dataclass(frozen=True)
class CallableDescription:
    """A layer or a function, as its source says."""

    name: str
    signature: str
    """Arguments of the function, or of the layer's forward without `self`; "…" where no source has it."""
    summary: str = ""
    """First line of its docstring."""
    flags: dict[str, bool | str] = field(default_factory=dict)
    """A layer's class attributes such as has_backward; one that is computed is given as its source."""


@dataclass(frozen=True)
class VariantDescription:
    """One variant, as its metadata says."""

    name: str
    backend: str | None
    id: str | None
    archs: tuple[str, ...]
    python_depends: tuple[str, ...]
    digest: str | None
    """Algorithm of the digests in metadata.json, which the files were found to match; None without any."""
    files: int
    nbytes: int
    provenance: dict[str, Any] | None = None
    """What metadata.json says of where it comes from, or provenance.json of a repository in source form."""


@dataclass(frozen=True)
class Description:
    """A repository on disk."""

    path: str
    form: str
    """"source" (kernel.toml) or "built"."""
    name: str
    version: str | None
    """The release, "0.1.0", else the major version of its branch, "1"."""
    license: str | None
    summary: str | None
    upstream: str | None
    layers: tuple[CallableDescription, ...]
    functions: tuple[CallableDescription, ...]
    variants: tuple[VariantDescription, ...]


def describe(path: Path) -> Description:
    """Describe a repository, its `build/`, or one variant.

    Raises RepositoryNotFoundError when it is none of these, and MetadataError for a metadata.json,
    kernel.toml or provenance.json that is wrong, or digests that do not match.
    """
    form, kernels = _read(path)
    first = kernels[0]
    metadata = first.metadata or Metadata(first.name)
    major = None if metadata.version is None else str(metadata.version)
    layers, functions = _callables(first, metadata)
    return Description(
        path=str(path),
        form=form,
        name=metadata.name,
        version=metadata.release or major,
        license=metadata.license,
        summary=metadata.summary,
        upstream=metadata.upstream,
        layers=layers,
        functions=functions,
        variants=tuple(_variant(kernel) for kernel in kernels),
    )


def _read(path: Path) -> tuple[str, list[KernelFiles]]:
    """The repository's form, and all its variants by name."""
    # Only the names matter: a system that nothing is known of is as good as any.
    nowhere = System("cpu", None, "", "", None, None, None, free_threaded=False)
    variants = [decision.variant for decision in local_variants(path, nowhere)]
    names = sorted(str(variant) for variant in variants if isinstance(variant, Variant))
    if not names or names == [path.absolute().name]:
        return "built", [read_variant(path)]
    for folder in (path / "build", path):
        if (folder / names[0]).is_dir():
            return "built", [read_variant(folder / name) for name in names]
    repository = read_source_repository(path)
    compiled = read_compiled_from(path)
    provenance = None if compiled is None else compiled_provenance(compiled)
    kernels = [repository.variant(backend) for backend in repository.backends]
    return "source", [
        replace(kernel, metadata=replace(kernel.metadata or Metadata(kernel.name), provenance=provenance))
        for kernel in kernels
    ]


def _variant(kernel: KernelFiles) -> VariantDescription:
    metadata = kernel.metadata or Metadata(kernel.name)
    parse_provenance(metadata.provenance, kernel.folders[0] / METADATA_FILE)
    return VariantDescription(
        name=kernel.variant,
        backend=metadata.backend,
        id=metadata.id,
        archs=metadata.archs,
        python_depends=metadata.python_depends,
        digest=None if metadata.digest is None else metadata.digest.algorithm,
        files=len(kernel.files),
        nbytes=sum(file.stat().st_size for file in kernel.files.values()),
        provenance=None if metadata.provenance is None else dict(metadata.provenance),
    )


# -- what the sources define ------------------------------------------------------------------------

_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _callables(
    kernel: KernelFiles, metadata: Metadata
) -> tuple[tuple[CallableDescription, ...], tuple[CallableDescription, ...]]:
    definitions = _definitions(kernel.files)
    in_layers = _definitions({"layers.py": kernel.files["layers.py"]} if "layers.py" in kernel.files else {})
    names = metadata.layers or tuple(
        name
        for name, found in in_layers.items()
        if isinstance(found, ast.ClassDef) and not name.startswith("_") and _forward(found, definitions)
    )
    layers = tuple(_layer(name, definitions) for name in names)
    return layers, tuple(_function(name, definitions) for name in metadata.functions)


def _definitions(files: Mapping[str, Path]) -> dict[str, _Definition]:
    """Top-level classes and functions by name; layers.py and then __init__.py have the last word."""
    definitions: dict[str, _Definition] = {}
    for inside in sorted(files, key=lambda name: (name == "layers.py", name == "__init__.py", name)):
        if not inside.endswith(".py"):
            continue
        try:
            tree = ast.parse(files[inside].read_bytes())
        except (SyntaxError, ValueError):
            continue  # its importer will say so; what the other files define is still worth showing
        definitions.update({node.name: node for node in tree.body if isinstance(node, _Definition)})
    return definitions


def _layer(name: str, definitions: Mapping[str, _Definition]) -> CallableDescription:
    definition = definitions.get(name)
    if not isinstance(definition, ast.ClassDef):
        return _function(name, definitions)
    forward = _forward(definition, definitions)
    flags: dict[str, bool | str] = {}
    for target, value in _class_values(definition, definitions):
        match value:
            case ast.Constant(value=bool(flag)):
                flags[target] = flag
            case _:
                flags[target] = ast.unparse(value)
    signature = "…" if forward is None else _signature(forward, skip_self=True)
    return CallableDescription(name, signature, _summary(definition), flags)


def _function(name: str, definitions: Mapping[str, _Definition]) -> CallableDescription:
    definition = definitions.get(name)
    if definition is None or isinstance(definition, ast.ClassDef):
        return CallableDescription(name, "…")
    return CallableDescription(name, _signature(definition, skip_self=False), _summary(definition))


def _lineage(cls: ast.ClassDef, definitions: Mapping[str, _Definition]) -> Iterable[ast.ClassDef]:
    """The class and its bases in the same package, nearest first."""
    seen: dict[str, ast.ClassDef] = {}
    queue = [cls]
    while queue:
        current = queue.pop(0)
        if current.name in seen:
            continue
        seen[current.name] = current
        bases = (definitions.get(base.id) for base in current.bases if isinstance(base, ast.Name))
        queue.extend(base for base in bases if isinstance(base, ast.ClassDef))
    return seen.values()


def _forward(cls: ast.ClassDef, definitions: Mapping[str, _Definition]) -> ast.FunctionDef | None:
    for base in _lineage(cls, definitions):
        for node in base.body:
            if isinstance(node, ast.FunctionDef) and node.name == "forward":
                return node
    return None


def _class_values(
    cls: ast.ClassDef, definitions: Mapping[str, _Definition]
) -> Iterable[tuple[str, ast.expr]]:
    for base in reversed(list(_lineage(cls, definitions))):
        for node in base.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                yield node.targets[0].id, node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                yield node.target.id, node.value


def _signature(function: ast.FunctionDef | ast.AsyncFunctionDef, *, skip_self: bool) -> str:
    text = ast.unparse(function.args)
    return text.partition(",")[2].strip() if skip_self else text


def _summary(node: _Definition) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]
