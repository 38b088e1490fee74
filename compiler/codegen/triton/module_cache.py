"""Cache of generated Triton modules: kept in the cache folder under a digest of their text, and imported from there.

Triton reads the source of kernels from the file, and keeps what it compiled under its own digests.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import sys
import threading
from pathlib import Path
from types import ModuleType

from kernels_hub.escaping import Identifier
from kernels_hub.files import PrivateFolder, cache_folder, write_atomically

_LOGGER = logging.getLogger(__name__)
_LOCK = threading.Lock()
_OWN = PrivateFolder("triton")


def load_module(source: str, name: str) -> ModuleType:
    """The module of a source, imported once a process."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:24]
    full = f"kernels_hub_triton_{Identifier(name)[:40]}_{digest}"
    with _LOCK:
        found = sys.modules.get(full)
        if found is not None:
            return found
        path = _written(source, full)
        spec = importlib.util.spec_from_file_location(full, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[full]
            raise
        return module


def _written(source: str, name: str) -> Path:
    folder = cache_folder("triton")
    try:
        return _write(source, folder, name)
    except OSError as error:
        if not _OWN.made():
            _LOGGER.warning(
                "the cache of Triton sources %s cannot be used (%s); this process has its own", folder, error
            )
        return _write(source, _OWN.get(), name)


def _write(source: str, folder: Path, name: str) -> Path:
    """The file, written where it does not hold that source yet."""
    path = folder / f"{name}.py"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == source:
            return path
    write_atomically(path, source)
    return path
