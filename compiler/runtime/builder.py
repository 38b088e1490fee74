"""Finds a program that this machine can run: native code that came along, C++ that is built here, or bytecode."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path

from ...cxx_compiler import find_compiler
from ...files import read_shipped
from .bytecode import SUFFIX, BytecodeProgram, load_bytecode
from .errors import BuildError, Misfit
from .knobs import knobs_for
from .native import Loaded, Native
from .parts import Table
from .prebuilt import prebuilt
from .toolchain import Isa, build, machine_isas

_LOGGER = logging.getLogger("kernels_hub.runtime.builder")


class Builder:
    """Loads a program once a process, and remembers why it could not."""

    def __init__(self, table: Table, folder: Path) -> None:
        self.table, self.folder = table, folder
        self._lock = threading.Lock()
        self._native: Loaded | None = None
        self._failed: str | None = None

    @property
    def path(self) -> Path | None:
        """The library that is used, or the file of bytecode."""
        return None if self._native is None else self._native.path

    @property
    def is_bytecode(self) -> bool:
        """Whether an interpreter runs the program."""
        return isinstance(self._native, BytecodeProgram)

    def native(self) -> Loaded:
        """The program. Raises Misfit where there is none for this machine and none can be built."""
        if self._native is None:
            with self._lock:
                if self._native is None and self._failed is None:
                    self._load()
        if self._native is None:
            raise Misfit("build", str(self._failed))
        return self._native

    def _load(self) -> None:
        """The first of the three that there is. What should have served and did not is said."""
        reasons: list[str] = []
        try:
            if (library := prebuilt(self.folder, self.table.source)) is not None:
                self._native = Native(*library)
                return
        except BuildError as error:
            reasons.append(f"the native code that came along cannot be used: {error}")
        unusable = bool(reasons)
        source = self.folder / self.table.source
        try:
            path = build(
                read_shipped(source).decode(), self.table.layer, _level(), runtime=self.table.sources
            )
            self._native = Native(path)
        except (OSError, RuntimeError) as error:
            reasons.append(str(error).strip() or type(error).__name__)
            unusable = unusable or find_compiler() is not None
            self._load_bytecode(source.with_suffix(SUFFIX), reasons)
        if self._native is None:
            self._failed = "; ".join(reasons)
            return
        what = "its bytecode is interpreted" if self.is_bytecode else "it was built here"
        if reasons:
            level = logging.WARNING if unusable else logging.INFO
            _LOGGER.log(level, "%s: %s; %s", self.table.layer, "; ".join(reasons), what)

    def _load_bytecode(self, path: Path, reasons: list[str]) -> None:
        if path.is_file():
            try:
                self._native = load_bytecode(path)
            except (OSError, RuntimeError) as error:
                reasons.append(str(error))


def _level() -> Isa:
    """The best instruction set level of this machine, with the flags that the table of knobs gives it."""
    level = machine_isas()[0]
    flags = knobs_for(level.name).get("flags", level.flags)
    return replace(level, flags=tuple(map(str, flags)))
