"""Opens the store of a root: the one that it remembers, never another by mistake."""

from __future__ import annotations

from collections.abc import Callable

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.layout import RootPaths
from kernels_hub.server.objects.address import S3Address
from kernels_hub.server.objects.files import FileObjects
from kernels_hub.server.objects.s3 import S3Objects
from kernels_hub.server.objects.store import ObjectStore

FILES = "files"
"""The name of the default store on the command line."""


def open_store(
    layout: RootPaths, objects: str | None, *, empty: Callable[[], bool] = lambda: False
) -> ObjectStore:
    """The store of a root. Connects to nothing, except to make a store that is new this root's.

    objects: the address that `--objects` gave; None for the root's own folders.
    empty: whether the root has no large file yet, and may begin to keep them at `objects`.
    Raises KernelsHubError where the root keeps its large files somewhere else.
    """
    kept = layout.objects()
    if objects is None:
        if kept is not None:
            raise KernelsHubError(
                f"{layout.root} keeps its large files in an object store; say which: --objects '{kept}' "
                "(or KERNELS_HUB_OBJECTS in the environment)"
            )
        return FileObjects(layout)
    address = S3Address.parse(objects)
    if kept is None:
        _bind(layout, address, empty)
    elif S3Address.parse(kept).place != address.place:
        raise KernelsHubError(
            f"{layout.root} keeps its large files in {S3Address.parse(kept).place}, not in {address.place}; check "
            "--objects, or move them with `kernels-hub hub migrate --to`"
        )
    return S3Objects(address, layout.identity())


def _bind(layout: RootPaths, address: S3Address, empty: Callable[[], bool]) -> None:
    refusal = KernelsHubError(
        f"{layout.root} keeps its large files in its own folders, not in {address.place}; leave --objects away, or "
        "move them there with `kernels-hub hub migrate --to`"
    )
    if not empty():
        raise refusal
    S3Objects(address, layout.identity()).claim()
    with layout.store_moves():
        if not empty():  # a server without --objects took one in meanwhile
            raise refusal
        layout.keep_objects(str(address))
