"""`kernels-hub hub migrate`: moves a Hub's rows to another database, large files to another store, or git data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kernels_hub.cli.hub_root import Root, given_database, kept_objects, opened_root, server_parts
from kernels_hub.cli.output import AsJson, echo, print_columns, print_fields, print_json
from kernels_hub.errors import KernelsHubError

_FILES = "files"


def migrate(
    root: Root,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Of rows: postgresql://user@host:port/name, an empty database, or `sqlite`. Of large files: "
            "s3://bucket/prefix?endpoint=…, or `files`, below the root.",
        ),
    ] = None,
    git: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Of git data: `store`, the database and the object store that the root has, or `folder`, below it.",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="ADDRESS",
            help="How the store of large files, or of git data, is reached; as the root remembers it by default.",
        ),
    ] = None,
    forget: Annotated[
        bool,
        typer.Option(
            "--give-up",
            help="Forget a move of rows or git data that was begun, and do not run it again.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Move accounts, repositories and logs to another database, large files to another store, or git data.

    Rows and git data are moved while servers run and clients write: at the end requests wait for about a second, and
    servers then go on with the new place, which each of them must be able to reach. Large files are copied while
    servers run, which are restarted afterwards with the new --objects: until then they load what was there before, and
    refuse uploads of large files. What was there is left as it is. What was interrupted is run again.
    """
    if forget:
        _give_up(root, to, git, source)
        return
    if (to is None) == (git is None):
        raise KernelsHubError(
            "say one thing to move: rows or large files with --to ADDRESS, or git data with --git PLACE"
        )
    if to is None:
        _migrate_git(root, str(git), source, as_json=as_json)
    elif to == _FILES or to.startswith("s3://"):
        _migrate_objects(root, to, source, as_json=as_json)
    elif source is not None:
        raise KernelsHubError("--from is of large files; rows are where the root says, or `hub --database`")
    else:
        _migrate_rows(root, to, as_json=as_json)


def _migrate_rows(root: Path, to: str, *, as_json: bool) -> None:
    with server_parts():
        from kernels_hub.server.database.address import without_password
        from kernels_hub.server.migration import migrate as move
    done = move(
        root,
        to,
        database=given_database.get(),
        announce=lambda line: None if as_json else echo(line, flush=True),
    )
    if as_json:
        print_json(asdict(done))
        return
    print_columns((item.table, f"{item.rows} rows", item.digest[:16]) for item in done.tables)
    print_fields(
        {
            "changed meanwhile": f"{done.changes} rows, {done.in_the_last} while requests waited",
            "requests waited": f"{done.waited:.2f} s",
        }
    )
    where = "hub.sqlite" if to == "sqlite" else without_password(to)
    echo(f"the rows of {root} are in {where} from now on, for its servers, too")


def _give_up(root: Path, to: str | None, git: str | None, source: str | None) -> None:
    if to is not None or git is not None:
        raise KernelsHubError(
            "--give-up forgets what was begun, to wherever; it takes neither --to nor --git"
        )
    with server_parts():
        from kernels_hub.server.git.migration import give_up as give_up_git
        from kernels_hub.server.layout import RootPaths
        from kernels_hub.server.migration import give_up
        from kernels_hub.server.refusal import Refusal
    if RootPaths.open(root).git_begun.is_file():
        try:
            give_up_git(root, database=given_database.get(), objects=source)
        except Refusal as refusal:
            raise KernelsHubError(refusal.message) from refusal
        echo(f"no git data of {root} is on its way any more; it is where it was")
        return
    give_up(root, database=given_database.get())
    echo(f"no rows of {root} are on their way any more; they are where they were")


def _migrate_git(root: Path, to: str, source: str | None, *, as_json: bool) -> None:
    with server_parts():
        from kernels_hub.server.git.migration import migrate as move
        from kernels_hub.server.refusal import Refusal
    if to not in ("store", "folder"):
        raise KernelsHubError(f"--git takes store or folder, not {to!r}")
    try:
        done = move(
            root,
            "store" if to == "store" else "folder",
            database=given_database.get(),
            objects=source,
            announce=lambda line: None if as_json else echo(line, flush=True),
        )
    except Refusal as refusal:
        raise KernelsHubError(refusal.message) from refusal
    if as_json:
        print_json(asdict(done))
        return
    print_fields(
        {
            "from": done.source,
            "to": done.target,
            "repositories": done.repositories,
            "moved before": done.known,
            "packs": f"{done.packs}, {done.bytes} bytes",
            "changed meanwhile": f"{done.changed} repositories, {done.in_the_last} while requests waited",
            "requests waited": f"{done.waited:.2f} s",
        }
    )
    if to == "store":
        echo(
            "servers of this root go on from there; others need no folder in common with them: give each a --root of "
            "its own, and the same --database and --objects. repositories/*/git is left as it was; `kernels-hub hub "
            "gc` of this root removes it from tomorrow on"
        )
    else:
        echo(
            f"serve {root} alone from now on; the packs in the store are left as they were, `kernels-hub hub gc` "
            "removes them from tomorrow on"
        )


def _migrate_objects(root: Path, to: str, source: str | None, *, as_json: bool) -> None:
    with opened_root(root, source or kept_objects(root)) as opened:
        from kernels_hub.server.objects.migration import migrate as move

        done = move(opened, to, announce=lambda line: None if as_json else echo(line, flush=True))
    if as_json:
        print_json(asdict(done))
        return
    print_fields(
        {
            "from": done.source,
            "to": done.target,
            "copied": f"{done.copied} objects, {done.bytes} bytes",
            "copied before": done.known,
            "while uploads waited": done.in_the_last,
        }
    )
    now = "without --objects" if to == _FILES else f"with --objects '{to}'"
    echo(f"restart the servers of {root} {now}; the old store is left as it was, remove it when you are sure")
