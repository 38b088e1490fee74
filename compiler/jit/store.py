"""Layers that were compiled on demand, on disk: each a built repository under the digest of what it was made of.

    <cache>/layers/<digest of the graph>/     README.md, build/<variant>/ with a digest of every file
    <cache>/layers/calls/<digest of a call>   the name of such a folder
    <cache>/layers/refused/<digest of a kind of call> why there is none, as JSON
    <cache>/layers/valued/<digest of a call>  names of arguments whose values count as well, as JSON

A key is both digests: of a call, with the sizes that it had; and of its kind, whatever those are.

A folder appears whole, by a rename; one whose files are not what its digests say is thrown away and made again.
Where the cache cannot be written to, a folder of this process serves, and a warning says so once.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from kernels_hub.compiler.runtime import toolchain
from kernels_hub.errors import KernelsHubError
from kernels_hub.files import PrivateFolder, cache_folder, move_into_place, scratch_folder, write_atomically
from kernels_hub.repository.local import local_variant
from kernels_hub.repository.system import System

_LOGGER = logging.getLogger(__name__)
_NAME = re.compile(r"[0-9a-f]{64}")
_STALE_S = 24 * 3600
_OWN = PrivateFolder("layers")


def store_folder() -> Path:
    """Where compiled layers are kept, see `kernels_hub.files`."""
    return cache_folder("layers")


def of_call(key: str) -> Path | None:
    """The whole folder that a call of this digest was found to need, if there is one."""
    for root in (store_folder(), *_OWN.made()):
        try:
            name = (root / "calls" / _call(key)).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if _NAME.fullmatch(name) and (found := of_graph(name)) is not None:
            return found
    return None


def of_graph(name: str) -> Path | None:
    """The whole folder of a graph's digest, if there is one. A damaged one is removed."""
    for root in (store_folder(), *_OWN.made()):
        folder = root / name
        if not folder.is_dir():
            continue
        try:
            local_variant(folder, System.detect("cpu"))
        except (KernelsHubError, OSError) as error:
            _LOGGER.warning("%s is damaged and is made again: %s", folder, error)
            shutil.rmtree(folder, ignore_errors=True)
            continue
        return folder
    return None


def note_call(key: str, folder: Path) -> None:
    """Remember which folder a call needs."""
    _note(folder.parent / "calls" / _call(key), folder.name)


def refusal_of(key: str) -> tuple[str, str, float | None, bool] | None:
    """Reason, details, seconds and whether it is of sizes, as `note_refusal` kept them; None of an unreadable one."""
    for root in (store_folder(), *_OWN.made()):
        try:
            found = json.loads((root / "refused" / _kind(key)).read_text(encoding="utf-8"))
            names = ("reason", "details", "seconds", "of_sizes")
            reason, details, seconds, of_sizes = (found[name] for name in names)
        except (OSError, ValueError, TypeError, KeyError):
            continue
        if (
            isinstance(reason, str)
            and isinstance(details, str)
            and isinstance(seconds, float | None)
            and isinstance(of_sizes, bool)
        ):
            return reason, details, seconds, of_sizes
    return None


def note_refusal(key: str, refusal: Mapping[str, object]) -> None:
    """Remember why a call cannot be compiled: reason and details, as text, seconds, and whether it is of sizes."""
    _note(store_folder() / "refused" / _kind(key), json.dumps(dict(refusal)))


def valued(key: str) -> tuple[str, ...]:
    """The arguments whose values a call's program is of, as `note_valued` kept them."""
    for root in (store_folder(), *_OWN.made()):
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((root / "valued" / _call(key)).read_text(encoding="utf-8"))
            if isinstance(found, list) and all(isinstance(name, str) for name in found):
                return tuple(found)
    return ()


def note_valued(key: str, folder: Path, names: Iterable[str]) -> None:
    """Remember the arguments whose values a call's program is of. folder: where one of them is kept."""
    _note(folder.parent / "valued" / _call(key), json.dumps(sorted(names)))


def _call(key: str) -> str:
    return key.partition("-")[0]


def _kind(key: str) -> str:
    return key.rpartition("-")[2]


def keep_private_folders() -> None:
    """Where the cache cannot be written to, make the folders of this process that serve: a forked one fills them."""
    if not _is_writable(store_folder()):
        with contextlib.suppress(OSError):
            _OWN.get()
            toolchain.keep_private_folder()


def _note(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):  # it is found out again, then
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)


def made(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of a graph's digest; `make` fills an empty one where there is none yet, one process at a time.

    Raises what `make` raises, and leaves nothing of it.
    """
    root = store_folder()
    if not _is_writable(root) and not _is_writable(root := _OWN.get()):
        raise OSError("no folder to keep compiled layers in can be written to; set KERNELS_HUB_CACHE")
    with _one_process(root, name):
        return of_graph(name) or _made(root, name, make)


def _is_writable(root: Path) -> bool:
    try:
        (root / ".locks").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            return True
    except OSError as error:
        _say_once(str(root), str(error))
        return False


def _made(root: Path, name: str, make: Callable[[Path], None]) -> Path:
    _sweep(root)
    with scratch_folder(root, ".making-") as private:
        fresh = private / "layer"
        fresh.mkdir()
        make(fresh)
        return move_into_place(fresh, root / name)


def _sweep(root: Path) -> None:
    """Remove what processes left that were killed."""
    for left in root.glob(".making-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_S:
                shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def _one_process(root: Path, name: str) -> Iterator[None]:
    from filelock import FileLock

    with FileLock(root / ".locks" / f"{name}.lock"):
        yield


@functools.cache
def _say_once(folder: str, reason: str) -> None:
    _LOGGER.warning(
        "compiled layers cannot be kept in %s (%s): every process compiles them again; set KERNELS_HUB_CACHE",
        folder,
        reason,
    )
