"""Which engines there are: bundled ones, those of installed distributions, and those of folders and files.

1. bundled      the table `BUNDLED`; one whose packages are missing is a failure with that reason
2. entry points group "kernels_hub.engines", of every installed distribution
3. paths        `KERNELS_HUB_PLUGIN_PATH` and `set_plugin_paths`: a Python file, a package, or a folder of both

An entry point names, and a module defines (as `ENGINE` or `engines`), an engine, a sequence of engines, or a function
that returns one of these. Discovery never fails: what a plugin raises, what it gives that is no engine, and names
that are taken stand in `failures()`. Order decides: across plugins the first keeps a name; a plugin that gives one
name twice is refused whole, as nobody can say which was meant.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from kernels_hub.compiler.engines.engine import Engine, engine_id
from kernels_hub.compiler.engines.guard import one_line
from kernels_hub.compiler.errors import EngineError

BUNDLED: tuple[tuple[str, str], ...] = (
    ("triton", "kernels_hub.compiler.engines.triton"),
    ("cpp", "kernels_hub.compiler.engines.cpp"),
    ("library", "kernels_hub.compiler.engines.library"),
    ("reference", "kernels_hub.compiler.engines.reference"),
)
"""Name -> the module whose `ENGINE` it is, loaded when engines are first asked for."""

GROUP = "kernels_hub.engines"
PATH_VARIABLE = "KERNELS_HUB_PLUGIN_PATH"

_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class Failure:
    """What is not there, and why. source: "bundled cpp", "entry point x of y 1.0", or a path."""

    source: str
    reason: str


@dataclass(frozen=True)
class Registered:
    """An engine and where it comes from."""

    engine: Engine
    source: str

    @property
    def name(self) -> str:
        """The engine's."""
        return self.engine.name

    @property
    def id(self) -> int:
        """See `engine.engine_id`."""
        return engine_id(self.engine.name)


@dataclass(frozen=True)
class _Found:
    engines: tuple[Registered, ...]
    failures: tuple[Failure, ...]


_LOCK = threading.RLock()
_found: _Found | None = None
_paths: tuple[Path, ...] = ()
_only_paths = False


def engines() -> tuple[Engine, ...]:
    """Every engine that loaded: bundled ones first, then entry points, then paths."""
    return tuple(row.engine for row in registered())


def registered() -> tuple[Registered, ...]:
    """As `engines`, with where each comes from."""
    return _discovered().engines


def failures() -> tuple[Failure, ...]:
    """What did not load, with the reasons."""
    return _discovered().failures


def engine(name: str) -> Engine:
    """The engine of that name. Raises EngineError, which says what there is, and what failed to load."""
    found = _discovered()
    for row in found.engines:
        if row.name == name:
            return row.engine
    failed = "".join(f"\n  {one.source}: {one.reason}" for one in found.failures)
    there = ", ".join(row.name for row in found.engines)
    raise EngineError(
        f"no engine is called {name!r}; there are {there}" + (f"; not loaded:{failed}" if failed else "")
    )


def set_plugin_paths(
    paths: Iterable[str | os.PathLike[str]], mode: Literal["additive", "absolute"] = "additive"
) -> None:
    """Look for plugins there, from the next use of the registry on.

    additive: besides entry points and the paths of the environment. absolute: bundled engines and these paths only.
    Each call replaces what the last one set.
    """
    if mode not in {"additive", "absolute"}:
        raise ValueError(f"mode is 'additive' or 'absolute', not {mode!r}")
    if isinstance(paths, (str, os.PathLike)):
        raise TypeError(
            f"paths are a sequence of paths, not the one path {os.fspath(paths)!r}: put it into a list"
        )
    global _paths, _only_paths
    given = tuple(Path(path) for path in paths)
    with _LOCK:
        _paths, _only_paths = given, mode == "absolute"
        reload()


def reload() -> None:
    """Forget what was discovered; the next use looks again. Modules of plugins are loaded anew."""
    global _found  # noqa: PLW0603  (loaded once a process)
    with _LOCK:
        _found = None


def _discovered() -> _Found:
    global _found  # noqa: PLW0603  (loaded once a process)
    found = _found
    if found is None:
        with _LOCK:
            if _found is None:
                _found = _discover()
            found = _found
    return found


def _discover() -> _Found:
    found: dict[str, Registered] = {}
    failed: list[Failure] = []
    for source, load in _sources():
        try:
            plugin = _engines_of(load())
        except BaseException as error:  # noqa: BLE001  (a plugin may raise anything, SystemExit included)
            failed.append(Failure(source, one_line(error)))
            continue
        for one in plugin:
            if one.name in found:
                failed.append(
                    Failure(
                        source, f"the name {one.name!r} is taken by {found[one.name].source}; that one stays"
                    )
                )
            else:
                found[one.name] = Registered(one, source)
    return _Found(tuple(found.values()), tuple(failed))


_Load = Callable[[], Any]


def _sources() -> Iterator[tuple[str, _Load]]:
    for name, module in BUNDLED:
        yield f"bundled {name}", functools.partial(_bundled, module)
    if not _only_paths:
        yield from _entry_points()
        variable = os.environ.get(PATH_VARIABLE, "")
        yield from _in_paths([Path(one) for one in variable.split(os.pathsep) if one])
    yield from _in_paths(_paths)


def _bundled(module: str) -> Any:
    return importlib.import_module(module).ENGINE


def _from_file(file: Path) -> Any:
    return _offered(_import(file))


def _entry_points() -> Iterator[tuple[str, _Load]]:
    try:
        points = sorted(importlib.metadata.entry_points(group=GROUP), key=lambda one: (one.name, one.value))
    except Exception as error:  # noqa: BLE001  (a distribution with damaged metadata)
        damaged = error
        yield f"entry points {GROUP}", functools.partial(_refuse, damaged)
        return
    for point in points:
        owner = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
        yield f"entry point {point.name}{owner}", point.load


def _in_paths(paths: Sequence[Path]) -> Iterator[tuple[str, _Load]]:
    for path in paths:
        try:
            files = list(_modules(path))
        except OSError as error:
            yield str(path), functools.partial(_refuse, error)
            continue
        for file in files:
            yield str(file), functools.partial(_from_file, file)


def _modules(path: Path) -> Iterator[Path]:
    """Modules of a path: the file, the package's __init__.py, or those in the folder, by name."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path}")
    if path.is_file():
        yield path
    elif (path / "__init__.py").is_file():
        yield path / "__init__.py"
    else:
        found = [one for one in sorted(path.iterdir()) if not one.name.startswith(("_", "."))]
        files = [one / "__init__.py" if one.is_dir() else one for one in found]
        files = [one for one in files if one.suffix == ".py" and one.is_file()]
        if not files:
            raise FileNotFoundError(f"the folder {path} has no Python modules")
        yield from files


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
    for known in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
        del sys.modules[known]
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _offered(module: ModuleType) -> Any:
    for name in ("engines", "ENGINE"):
        if hasattr(module, name):
            return getattr(module, name)
    raise TypeError("the module defines neither engines() nor ENGINE")


def _engines_of(given: Any) -> tuple[Engine, ...]:
    """Engines out of what a plugin gives. Raises TypeError or ValueError, which say what is wrong with which."""
    if isinstance(given, ModuleType):
        given = _offered(given)
    if callable(given) and (isinstance(given, type) or not _is_engine(given)):
        given = given()
    listed = (given,) if _is_engine(given) else given
    if isinstance(listed, (str, bytes)) or not isinstance(listed, Iterable):
        raise TypeError(f"it gives {_shown(given)}, no engine: {_lacking(given)}")
    engines = tuple(listed)
    if not engines:
        raise ValueError("it gives no engines")
    names = []
    for one in engines:
        if not _is_engine(one):
            raise TypeError(f"it gives {_shown(one)}, no engine: {_lacking(one)}")
        if not _NAME.fullmatch(one.name):
            raise ValueError(
                f"the name {one.name!r} is none: small letters, digits, '_', '.', '-', a letter first, 64 at most"
            )
        names.append(one.name)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"it gives the name {', '.join(map(repr, twice))} more than once; none of it is taken"
        )
    return engines


_METHODS = ("check", "compile", "load")


def _is_engine(given: Any) -> bool:
    return (
        not isinstance(given, type)
        and isinstance(getattr(given, "name", None), str)
        and all(callable(getattr(given, method, None)) for method in _METHODS)
    )


def _lacking(given: Any) -> str:
    if isinstance(given, type):
        return "a class; give an instance of it"
    lacking = [f"{method}()" for method in _METHODS if not callable(getattr(given, method, None))]
    if not isinstance(getattr(given, "name", None), str):
        lacking.insert(0, "name")
    return f"it lacks {', '.join(lacking)}"


def _shown(given: Any) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"


def _refuse(error: BaseException) -> Any:
    raise error
