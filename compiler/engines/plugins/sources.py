"""Where plugins lie: entry points and paths. Listing them imports nothing; `Source.load` does.

A source has a name for people, and a digest of its content: of the file's bytes, of all files of a package, or, of an
entry point, of its distribution's record and of names, sizes and times of the files of its package.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from kernels_hub.compiler.engines.engine import Engine
from kernels_hub.compiler.engines.guard import one_line
from kernels_hub.compiler.engines.plugins.offered import engines_of, offered

GROUP = "kernels_hub.engines"
_GROUP_NAME = GROUP.encode()
_NATIVE = ".so"

Kind = Literal["file", "native", "entry point"]


@dataclass(frozen=True)
class Failure:
    """What is not there, and why. source: "bundled cpp", "entry point x of y 1.0", or a path."""

    source: str
    reason: str


@dataclass(frozen=True)
class Source:
    """A plugin that is not imported yet. place: its path, or the entry point's value. content: a digest."""

    label: str
    kind: Kind
    place: str
    content: str

    def load(self) -> tuple[Engine, ...]:
        """Import it in this process. Raises whatever the plugin raises; TypeError, ValueError for what is no engine."""
        return load(self.kind, self.place)


def load(kind: Kind, place: str) -> tuple[Engine, ...]:
    """See `Source.load`."""
    if kind == "entry point":
        return engines_of(importlib.metadata.EntryPoint("plugin", place, GROUP).load())
    if kind == "native":
        from kernels_hub.compiler.engines.plugins.native import native_engine

        return (native_engine(Path(place)),)
    return engines_of(offered(_import(Path(place))))


def entry_points() -> Iterator[Source | Failure]:
    """Of all installed distributions, by name."""
    if not _is_named():
        return
    try:
        points = sorted(
            importlib.metadata.entry_points(group=GROUP), key=lambda point: (point.name, point.value)
        )
    except Exception as error:  # noqa: BLE001  (a distribution with damaged metadata)
        yield Failure(f"entry points {GROUP}", one_line(error))
        return
    for point in points:
        owner = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
        label = f"entry point {point.name}{owner}"
        try:
            yield Source(label, "entry point", point.value, _content_of_point(point))
        except Exception as error:  # noqa: BLE001  (damaged metadata, or a file that cannot be read)
            yield Failure(label, one_line(error))


def _is_named() -> bool:
    """Whether any installed distribution may have entry points of the group: their files are searched for its name.

    A fifth of the time of `importlib.metadata.entry_points`, which reads who each distribution is and parses all of its
    entry points. True also where distributions may lie elsewhere than in the folders of sys.path.
    """
    finders = (finder for finder in sys.meta_path if hasattr(finder, "find_distributions"))
    if any(finder is not importlib.machinery.PathFinder for finder in finders):
        return True
    try:
        return any(not isinstance(folder, str) or _is_named_in(folder) for folder in dict.fromkeys(sys.path))
    except OSError:
        return True


def _is_named_in(folder: str) -> bool:
    """Raises OSError for what is neither a folder nor missing, such as a zip archive or a file that nobody may read."""
    try:
        children = os.listdir(folder or ".")  # noqa: PTH208  (as below)
    except FileNotFoundError:
        return False
    is_egg = folder.lower().endswith(".egg")
    for child in children:
        kind = child.lower()
        if not kind.endswith((".dist-info", ".egg-info")) and not (is_egg and kind == "egg-info"):
            continue
        try:
            with open(f"{folder or '.'}/{child}/entry_points.txt", "rb", buffering=0) as file:  # noqa: PTH123  (a Path takes longer than reading it)
                if _GROUP_NAME in file.readall():
                    return True
        except (FileNotFoundError, NotADirectoryError):
            continue
    return False


def in_paths(paths: Iterable[Path]) -> Iterator[Source | Failure]:
    """A Python file, a shared library, a package, or a folder of these, for each path."""
    for path in paths:
        try:
            for file in _modules(path):
                kind: Kind = "native" if file.suffix == _NATIVE else "file"
                yield Source(str(file), kind, str(file), _content_of_file(file))
        except OSError as error:
            yield Failure(str(path), one_line(error))


def _modules(path: Path) -> list[Path]:
    """Modules of a path: the file, the package's __init__.py, or those in the folder, by name."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path}")
    if path.is_file():
        return [path]
    if (path / "__init__.py").is_file():
        return [path / "__init__.py"]
    found = [one for one in sorted(path.iterdir()) if not one.name.startswith(("_", "."))]
    files = [one / "__init__.py" if one.is_dir() else one for one in found]
    files = [file for file in files if file.suffix in {".py", _NATIVE} and file.is_file()]
    if not files:
        raise FileNotFoundError(f"the folder {path} has no Python modules and no shared libraries")
    return files


def _content_of_file(file: Path) -> str:
    if file.name != "__init__.py":
        return hashlib.sha256(file.read_bytes()).hexdigest()
    digest = hashlib.sha256()
    for path in sorted(file.parent.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            data = path.read_bytes()
            digest.update(f"{path.relative_to(file.parent)}:{len(data)}:".encode())
            digest.update(data)
    return digest.hexdigest()


def _content_of_point(point: importlib.metadata.EntryPoint) -> str:
    known = [point.name, point.value]
    if point.dist is not None:
        known += [point.dist.name, point.dist.version, point.dist.read_text("RECORD") or ""]
    spec = importlib.util.find_spec(
        point.module.partition(".")[0]
    )  # of a top-level name: nothing is imported
    if spec is not None:
        folders = [Path(location) for location in spec.submodule_search_locations or ()]
        files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
        for file in files or ([Path(spec.origin)] if spec.origin else []):
            if "__pycache__" not in file.parts and file.exists():
                known.append(f"{file}:{file.stat().st_size}:{file.stat().st_mtime_ns}")
    return hashlib.sha256("\0".join(known).encode()).hexdigest()


def _import(file: Path) -> ModuleType:
    """A module of its own name for each file, so that two of one name do not meet."""
    package = file.name == "__init__.py"
    stem = file.parent.name if package else file.stem
    digest = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]
    name = f"kernels_hub_plugin_{digest}_{re.sub(r'[^0-9A-Za-z_]', '_', stem)}"
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[str(file.parent)] if package else None
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python module")
    for known in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
        del sys.modules[known]
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module
