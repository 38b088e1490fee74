"""Trials of plugins in a child process, and the verdicts, which are kept by content.

A plugin is tried as it is first met: imported, asked whether it takes a simple graph, and made to run one. A graph that
an engine of a plugin has not seen is tried before the engine gets it in this process. What crashed, hung or lied is
not asked again for a day, what was well not before its content, or what is installed here, is another.
"""

from __future__ import annotations

import functools
import hashlib
import site
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch

from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.engines.plugins.packing import device_row, packed, probes
from kernels_hub.compiler.engines.plugins.processes import Died, PluginProcess
from kernels_hub.compiler.engines.plugins.sources import Source
from kernels_hub.compiler.engines.plugins.wire import Json
from kernels_hub.compiler.errors import CompilerError, EngineError
from kernels_hub.escaping import json_text
from kernels_hub.files import cache_folder, write_atomically
from kernels_hub.parsing import Struct, Text, parse_json
from kernels_hub.version import __version__

T = TypeVar("T")

KEEP_FAILURE_S = 86_400
_TRIALS_AT_ONCE = 4


class KnobRow(Struct, frozen=True):
    """A knob of an engine."""

    name: Text
    values: tuple[bool | int | float | str, ...]
    doc: Text = ""


class Offer(Struct, frozen=True):
    """An engine of a plugin. reason: why it cannot be used; "" where it can. declined: why it takes no simple graph."""

    name: Text
    devices: tuple[Text, ...] = ()
    notes: tuple[Text, ...] = ()
    knobs: tuple[KnobRow, ...] = ()
    reason: Text = ""
    declined: Text = ""


class Verdict(Struct, frozen=True):
    """What became of a plugin. reason: why nothing of it can be used."""

    engines: tuple[Offer, ...] = ()
    reason: Text = ""
    time: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether anything of it cannot be used."""
        return bool(self.reason) or any(engine.reason for engine in self.engines)


class _Graph(Struct, frozen=True):
    """What became of a graph."""

    reason: Text = ""
    time: float = 0.0


@dataclass
class Trials:
    """Of one plugin, in one child process at a time, which is started for what is not known yet."""

    source: Source
    worker: PluginProcess = field(init=False)
    _known: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start nothing."""
        self.worker = PluginProcess(self.source)

    def verdict(self, *, retry: bool = False) -> Verdict:
        """What becomes of the plugin. retry: also where a failure is known."""
        path = _place(self.source.content, "plugin")
        known = _read(path, Verdict)
        if known is not None and not (known.failed and (retry or time.time() - known.time > KEEP_FAILURE_S)):
            return known
        found = self._try_plugin()
        _write(path, found)
        return found

    def passes(self, what: str, request: Json, payload: bytes, key: str) -> str:
        """Why a request may not be made in this process; "" where it may.

        what: "check", or "try" for compiling or loading and running. key: a digest of all that the answer depends on.
        """
        name = hashlib.sha256(f"{what} {key}".encode()).hexdigest()[:32]
        if name in self._known:
            return self._known[name]
        path = _place(self.source.content, name)
        known = _read(path, _Graph)
        if known is None or (known.reason and time.time() - known.time > KEEP_FAILURE_S):
            known = _Graph(self._try(what, request, payload), time.time())
            _write(path, known)
        self._known[name] = known.reason
        return known.reason

    def _try(self, what: str, request: Json, payload: bytes) -> str:
        try:
            answer, _ = self.worker.ask({"do": what, **request}, [payload])
        except Died as error:
            return str(error)
        except CompilerError:
            return ""  # it raises, which it may do in this process too
        lie = answer.get("lie")
        return str(lie)[:2000] if lie else ""

    def _try_plugin(self) -> Verdict:
        try:
            names = self.worker.load() or self._names_again()
        except CompilerError as error:
            return Verdict(reason=str(error)[:2000], time=time.time())
        offers = [self._try_engine(name) for name in names]
        self.worker.end()
        return Verdict(tuple(offers), time=time.time())

    def _names_again(self) -> list[str]:
        self.worker.end()
        return self.worker.load()

    def _try_engine(self, name: str) -> Offer:
        try:
            answer, _ = self.worker.ask({"do": "probe", "engine": name})
            json = parse_json(
                json_text({**answer, "name": name, "declined": answer.get("reason", ""), "reason": ""}).encode(),
                Offer, where="its answer", error=EngineError,
            )  # fmt: skip
            if "cpu" in json.devices:
                self._try_simple(name)
        except CompilerError as error:
            return Offer(name, reason=str(error)[:2000])
        return json

    def _try_simple(self, name: str) -> None:
        """Run x + x. Raises EngineError where the engine dies or lies."""
        request: Json = {"do": "try", "engine": name, "device": device_row(Device("cpu"))}
        try:
            answer, _ = self.worker.ask(request, [packed(probes()[0])])
        except Died:
            raise
        except CompilerError:  # it raises where it runs, too
            return
        if lie := answer.get("lie"):
            raise EngineError(str(lie)[:2000])


def try_all(trials: Sequence[Trials], *, retry: bool = False) -> list[Verdict]:
    """The verdicts of several plugins; those that hang wait at the same time."""
    if len(trials) <= 1:
        return [trial.verdict(retry=retry) for trial in trials]
    with ThreadPoolExecutor(_TRIALS_AT_ONCE) as pool:
        return list(pool.map(lambda one: one.verdict(retry=retry), trials))


def _place(content: str, name: str) -> Path:
    return cache_folder("plugins") / f"{content[:32]}-{_here()[:16]}" / f"{name}.json"


@functools.cache
def _here() -> str:
    """What is installed, of which it may depend whether a plugin loads."""
    folders = (
        [*site.getsitepackages(), site.getusersitepackages()] if hasattr(site, "getsitepackages") else []
    )
    known = [__version__, torch.__version__, sys.version, sys.prefix]
    for folder in folders:
        with suppress(OSError):
            known.append(f"{folder}:{Path(folder).stat().st_mtime_ns}")
    return hashlib.sha256("\0".join(known).encode()).hexdigest()


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return parse_json(path.read_bytes(), kind, where=str(path), error=EngineError)
    except (OSError, EngineError):
        return None


def _write(path: Path, verdict: Struct) -> None:
    import msgspec

    with suppress(OSError):  # a cache that cannot be written to: the trial is made again
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, msgspec.json.encode(verdict))
