"""Which engines there are: bundled ones, those of installed distributions, and those of folders and files.

1. bundled      the table `BUNDLED`; one whose packages are missing is a failure with that reason
2. entry points group "kernels_hub.engines", of every installed distribution
3. paths        `KERNELS_HUB_PLUGIN_PATH` and `set_plugin_paths`: a Python file, a shared library (`plugins.native`), a
                package, or a folder of these

An entry point names, and a module defines (as `ENGINE` or `engines`), an engine, a sequence of engines, or a function
that returns one of these. Discovery imports no plugin: each is tried in a child process, once for its content
(`plugins.trials`), and imported where one of its engines is used. Discovery never fails: what a plugin raises, what it
gives that is no engine, plugins that crash, hang or lie, and names that are taken stand in `failures()`. Order decides:
across plugins the first keeps a name; a plugin that gives one name twice is refused whole, as nobody can say which was
meant.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kernels_hub.compiler.engines import bundled
from kernels_hub.compiler.engines.engine import Engine, engine_id
from kernels_hub.compiler.engines.guard import one_line
from kernels_hub.compiler.engines.plugins.offered import engines_of
from kernels_hub.compiler.engines.plugins.sources import GROUP, Failure, Source, entry_points, in_paths
from kernels_hub.compiler.errors import EngineError
from kernels_hub.fork_safe import renewed_lock

if TYPE_CHECKING:
    from kernels_hub.compiler.engines.plugins.isolated import IsolatedEngine
    from kernels_hub.compiler.engines.plugins.trials import Offer

__all__ = [
    "BUNDLED", "GROUP", "PATH_VARIABLE", "Failure", "Registered", "engine", "engines", "failures", "name_of",
    "registered", "reload", "retry", "set_plugin_paths",
]  # fmt: skip

BUNDLED: tuple[tuple[str, str | Engine], ...] = (
    ("triton", bundled.TRITON),
    ("cpp", bundled.CPP),
    ("bytecode", bundled.BYTECODE),
    ("metal", bundled.METAL),
    ("library", "kernels_hub.compiler.engines.library"),
    ("reference", "kernels_hub.compiler.engines.reference"),
)
"""Name -> the engine, or the module whose `ENGINE` it is, loaded when engines are first asked for."""

PATH_VARIABLE = "KERNELS_HUB_PLUGIN_PATH"


@dataclass(frozen=True)
class Registered:
    """An engine and where it comes from. offer: of a plugin, what its trial found; None of a bundled one."""

    engine: Engine
    source: str
    offer: Offer | None = None

    @property
    def name(self) -> str:
        """The engine's."""
        return self.engine.name

    @property
    def id(self) -> int:
        """See `engine.engine_id`."""
        return engine_id(self.engine.name)


@dataclass(frozen=True)
class _Discovered:
    engines: tuple[Registered, ...]
    failures: tuple[Failure, ...]
    isolated: Mapping[str, IsolatedEngine] = field(default_factory=dict)
    """Name -> the engine of a plugin, with all of its calls in a child process."""


_LOCK = renewed_lock(sys.modules[__name__], "_LOCK", threading.RLock)
_found: _Discovered | None = None
_points: tuple[Source | Failure, ...] | None = None
"""Plugins of installed distributions."""
_paths: tuple[Path, ...] = ()
_only_paths = False


def engines(*, isolated: bool = False) -> tuple[Engine, ...]:
    """Every engine: bundled ones first, then entry points, then paths. isolated: plugins in child processes."""
    registered = _discovered()
    return tuple(
        registered.isolated.get(row.name, row.engine) if isolated else row.engine
        for row in registered.engines
    )


def registered() -> tuple[Registered, ...]:
    """As `engines`, with where each comes from."""
    return _discovered().engines


def failures(*, discover: bool = True) -> tuple[Failure, ...]:
    """What did not load, with the reasons. discover: False gives none where plugins were not asked for yet."""
    registered = _discovered() if discover else _found
    return () if registered is None else registered.failures


def engine(name: str, *, isolated: bool = False) -> Engine:
    """The engine of that name. Raises EngineError, which says what there is, and what failed to load.

    A bundled one is loaded alone: no plugin can take its name, so none is asked to find it. isolated: a plugin's runs
    in a child process at every call, and is never imported into this one.
    """
    module = dict(BUNDLED).get(name)
    if module is not None and _found is None:
        with suppress(Exception):  # discovery says why it does not load
            (alone,) = engines_of(_bundled(module))
            return alone
    registered = _discovered()
    if isolated and name in registered.isolated:
        return registered.isolated[name]
    for row in registered.engines:
        if row.name == name:
            return row.engine
    failed = "".join(f"\n  {failure.source}: {failure.reason}" for failure in registered.failures)
    there = ", ".join(row.name for row in registered.engines)
    raise EngineError(
        f"no engine is called {name!r}; there are {there}" + (f"; not loaded:{failed}" if failed else "")
    )


def name_of(given: str | int) -> str:
    """The name of an engine that is given by its name or its id. Raises EngineError for an id that there is not."""
    if isinstance(given, str):
        return given
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"an engine is given by its name or its id, not by {given!r}")
    for name, _ in BUNDLED:
        if engine_id(name) == given:
            return name
    rows = registered()
    for row in rows:
        if row.id == given:
            return row.name
    there = ", ".join(f"{row.id} ({row.name})" for row in rows)
    raise EngineError(f"no engine has the id {given}; there are {there}")


def set_plugin_paths(
    paths: Iterable[str | os.PathLike[str]], mode: Literal["additive", "absolute"] = "additive"
) -> None:
    """Look for plugins there, from the next use of the registry on.

    additive: besides entry points and the paths of the environment. absolute: bundled engines and these paths only.
    Each call replaces what the last one set.

    >>> set_plugin_paths(["/opt/engines"])
    >>> set_plugin_paths([])  # as before
    """
    if mode not in {"additive", "absolute"}:
        raise ValueError(f"mode is 'additive' or 'absolute', not {mode!r}")
    if isinstance(paths, (str, os.PathLike)):
        raise TypeError(
            f"paths are a sequence of paths, not the one path {os.fspath(paths)!r}: put it into a list"
        )
    global _paths, _only_paths
    new_paths = tuple(Path(path) for path in paths)
    with _LOCK:
        _paths, _only_paths = new_paths, mode == "absolute"
        reload()


def has_plugins() -> bool:
    """Whether there are sources of engines besides the bundled ones, working or not. None of them is imported."""
    return any(True for _ in _plugins())


def reload() -> None:
    """Forget what was discovered; the next use looks again. Modules of plugins are loaded anew."""
    global _found, _points  # noqa: PLW0603  (loaded once a process)
    with _LOCK:
        _found = _points = None


def retry() -> None:
    """Discover again, and try plugins anew that failed before."""
    global _found, _points  # noqa: PLW0603  (loaded once a process)
    with _LOCK:
        _points = None
        _found = _discover(retry=True)


def _discovered() -> _Discovered:
    global _found  # noqa: PLW0603  (loaded once a process)
    registered = _found
    if registered is None:
        with _LOCK:
            if _found is None:
                _found = _discover()
            registered = _found
    return registered


def _discover(*, retry: bool = False) -> _Discovered:
    found: dict[str, Registered] = {}
    failed: list[Failure] = []
    for name, module in BUNDLED:
        source = f"bundled {name}"
        try:
            for one in engines_of(_bundled(module)):
                found[one.name] = Registered(one, source)
        except Exception as error:  # noqa: BLE001  (packages that are missing or broken)
            failed.append(Failure(source, one_line(error)))
    isolated = _enter_plugins(list(_plugins()), found, failed, retry=retry)
    return _Discovered(tuple(found.values()), tuple(failed), isolated)


def _enter_plugins(
    listed: Sequence[Source | Failure], found: dict[str, Registered], failed: list[Failure], *, retry: bool
) -> dict[str, IsolatedEngine]:
    """Enter the engines of plugins after a trial, or why not; gives those that run in child processes alone."""
    failed += [failure for failure in listed if isinstance(failure, Failure)]
    sources = [offered for offered in listed if isinstance(offered, Source)]
    if not sources:
        return {}
    from kernels_hub.compiler.engines.plugins.isolated import IsolatedEngine
    from kernels_hub.compiler.engines.plugins.processes import PluginProcess
    from kernels_hub.compiler.engines.plugins.trials import Trials, try_all
    from kernels_hub.compiler.engines.plugins.tried import Loaded, TriedEngine

    isolated: dict[str, IsolatedEngine] = {}
    trials = [Trials(source) for source in sources]
    for trial, verdict in zip(trials, try_all(trials, retry=retry), strict=True):
        source, plugin, worker = trial.source.label, Loaded(trial), PluginProcess(trial.source)
        if verdict.reason:
            failed.append(Failure(source, verdict.reason))
        for offer in verdict.engines:
            if offer.name in found:
                taken = f"the name {offer.name!r} is taken by {found[offer.name].source}; that one stays"
                failed.append(Failure(source, taken))
            elif offer.reason:
                failed.append(Failure(source, f"engine {offer.name}: {offer.reason}"))
            else:
                found[offer.name] = Registered(TriedEngine(offer.name, plugin), source, offer)
                isolated[offer.name] = IsolatedEngine(offer.name, worker)
    return isolated


def _plugins() -> Iterable[Source | Failure]:
    global _points  # noqa: PLW0603  (looked up once a process)
    if not _only_paths:
        if _points is None:
            _points = tuple(entry_points())
        yield from _points
        variable = os.environ.get(PATH_VARIABLE, "")
        yield from in_paths([Path(path) for path in variable.split(os.pathsep) if path])
    yield from in_paths(_paths)


def _bundled(given: str | Engine) -> object:
    engine: object = importlib.import_module(given).ENGINE if isinstance(given, str) else given
    return engine
