"""The root of a Hub as the commands of `kernels-hub hub` open it, and the arguments that they share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels_hub.errors import KernelsHubError

if TYPE_CHECKING:
    from kernels_hub.server.hub import Hub
    from kernels_hub.server.repositories import Repository

Database = Annotated[
    str | None,
    typer.Option(
        envvar="KERNELS_HUB_DATABASE",
        show_envvar=True,
        help="postgresql://user@host:port/name: where the rows of a new root go; a root remembers it. The password "
        "is in PGPASSWORD or ~/.pgpass.",
    ),
]
given_database: ContextVar[str | None] = ContextVar("given_database", default=None)
"""What `kernels-hub hub --database` was given, or the environment says."""
Root = Annotated[Path, typer.Option("--root", help="The Hub's folder.")]
Objects = Annotated[
    str | None,
    typer.Option(
        "--objects",
        metavar="ADDRESS",
        envvar="KERNELS_HUB_OBJECTS",
        help="Where the root keeps large files, if not below it: s3://bucket/prefix?endpoint=….",
    ),
]
Named = Annotated[str, typer.Argument(metavar="ORG/NAME")]
OfType = Annotated[str, typer.Option("--type", help="kernel or model.")]


def kept_objects(root: Path) -> str | None:
    """The object store that a root remembers; None where large files are below it."""
    from kernels_hub.server.layout import RootPaths

    return RootPaths.open(root).objects()


@contextmanager
def server_parts() -> Iterator[None]:
    """Around imports of the server: what it needs and is not there becomes a KernelsHubError."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise KernelsHubError(
            f"serving a Hub needs {error.name}; pip install 'kernels-hub[serve]' brings it"
        ) from error


@contextmanager
def opened_root(root: Path, objects: str | None = None, *, create: bool = False) -> Iterator[Hub]:
    """A Hub's root, beside the servers that run on it. What the server would refuse becomes a KernelsHubError."""
    with server_parts():
        from kernels_hub.server.database import DatabaseError
        from kernels_hub.server.hub import Hub
        from kernels_hub.server.refusal import Refusal
    with Hub(root, create=create, database=given_database.get(), objects=objects) as opened:
        try:
            yield opened
        except Refusal as refusal:
            raise KernelsHubError(refusal.message) from refusal
        except DatabaseError as error:
            raise KernelsHubError(f"{opened.database.name} failed: {error}") from error


def find_repository(opened: Hub, name: str, kind: str) -> Repository:
    """The repository of a name and type, or KernelsHubError."""
    namespace, _, short = name.partition("/")
    found = opened.repositories.find(kind, namespace, short)
    if found is None:
        raise KernelsHubError(
            f"there is no {kind} repository {name!r}; `kernels-hub hub repo list` shows them, --type says the type"
        )
    return found
