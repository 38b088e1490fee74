"""`kernels-hub hub …`: accounts, tokens and upkeep of a Hub's root, whether a server runs on it or not."""

from __future__ import annotations

import datetime
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kernels_hub.cli.hub_migrate import migrate
from kernels_hub.cli.hub_releases import administrator, release, restore_repository, show_log
from kernels_hub.cli.hub_root import (
    Database,
    Named,
    Objects,
    OfType,
    Root,
    find_repository,
    given_database,
    kept_objects,
    opened_root,
)
from kernels_hub.cli.output import AsJson, echo, print_columns, print_fields, print_json
from kernels_hub.errors import KernelsHubError

_OPTIONS: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": None}

hub = typer.Typer(**_OPTIONS)
user = typer.Typer(help="Users.", **_OPTIONS)
org = typer.Typer(help="Organisations, their members, the trusted-publisher flag.", **_OPTIONS)
token = typer.Typer(help="Access tokens.", **_OPTIONS)
repo = typer.Typer(help="Repositories: who sees them, who may download.", **_OPTIONS)
hub.add_typer(repo, name="repo")
hub.add_typer(user, name="user")
hub.add_typer(org, name="org")
hub.add_typer(token, name="token")
hub.add_typer(release, name="release")
hub.command("log")(show_log)
hub.command("migrate")(migrate)
repo.command("restore")(restore_repository)


@hub.callback()
def _options(database: Database = None) -> None:
    """Administer a Hub of one's own: accounts, tokens, upkeep."""
    given_database.set(database)


def _day(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d")


# -- users


@user.command("add")
def add_user(
    name: str,
    root: Root,
    objects: Objects = None,
) -> None:
    """Add a user. Makes the root where there is none."""
    with opened_root(root, objects, create=True) as opened:
        echo(f"added user {opened.accounts.add_user(name).name}")


@user.command("list")
def list_users(root: Root, as_json: AsJson = False, objects: Objects = None) -> None:
    """Every user, with organisations."""
    with opened_root(root, objects) as opened:
        rows = [
            {
                "name": account.name,
                "created": _day(account.created),
                "organisations": {
                    member.organisation: member.role
                    for member in opened.accounts.organisations_of(account.name)
                },
            }
            for account in opened.accounts.all("user")
        ]
    if as_json:
        print_json(rows)
    else:
        _print_accounts(rows, "organisations")


@user.command("remove")
def remove_user(name: str, root: Root, objects: Objects = None) -> None:
    """Remove a user, with tokens and memberships."""
    with opened_root(root, objects) as opened:
        opened.accounts.remove(name, "user")
    echo(f"removed user {name}")


# -- organisations


@org.command("add")
def add_organisation(
    name: str,
    admin: Annotated[str, typer.Option(help="The user who administers it.")],
    root: Root,
    trusted: Annotated[bool, typer.Option("--trusted", help="Clients may run its kernels unasked.")] = False,
    objects: Objects = None,
) -> None:
    """Add an organisation."""
    with opened_root(root, objects) as opened:
        account = opened.accounts.add_organisation(name, admin, trusted=trusted)
    echo(f"added organisation {account.name}, admin {admin}{', trusted publisher' if trusted else ''}")


@org.command("list")
def list_organisations(root: Root, as_json: AsJson = False, objects: Objects = None) -> None:
    """Every organisation, with members."""
    with opened_root(root, objects) as opened:
        rows = [
            {
                "name": account.name,
                "created": _day(account.created),
                "trusted": account.trusted,
                "members": {member.user: member.role for member in opened.accounts.members(account.name)},
            }
            for account in opened.accounts.all("org")
        ]
    if as_json:
        print_json(rows)
    else:
        _print_accounts(rows, "members")


@org.command("remove")
def remove_organisation(name: str, root: Root, objects: Objects = None) -> None:
    """Remove an organisation that owns no repositories."""
    with opened_root(root, objects) as opened:
        opened.accounts.remove(name, "org")
    echo(f"removed organisation {name}")


@org.command("trust")
def trust_organisation(
    name: str,
    root: Root,
    on: Annotated[bool, typer.Option("--on/--off", help="Set or clear it.")] = True,
    objects: Objects = None,
) -> None:
    """Set or clear an organisation's trusted-publisher flag."""
    with opened_root(root, objects) as opened:
        opened.accounts.set_trusted(name, on)
    echo(f"{name} is {'a' if on else 'no'} trusted publisher")


@org.command("member")
def set_member(
    name: str,
    member: Annotated[str, typer.Argument(metavar="USER")],
    root: Root,
    role: Annotated[str, typer.Option(help="admin, write, read, or none to remove.")] = "write",
    objects: Objects = None,
) -> None:
    """Give a user a role in an organisation."""
    with opened_root(root, objects) as opened:
        opened.accounts.set_member(name, member, None if role == "none" else role)
    echo(f"{member} has the role {role} in {name}")


def _print_accounts(rows: list[dict[str, Any]], others: str) -> None:
    if not rows:
        echo("none yet")
        return
    print_columns(
        (
            row["name"],
            row["created"],
            "trusted" if row.get("trusted") else "",
            ", ".join(f"{name} ({role})" for name, role in row[others].items()),
        )
        for row in rows
    )


# -- tokens


@token.command("new")
def new_token(
    name: Annotated[str, typer.Argument(metavar="USER")],
    role: Annotated[str, typer.Option(help="read or write.")],
    root: Root,
    repo: Annotated[str | None, typer.Option(help="org/name: for this repository only.")] = None,
    days: Annotated[int | None, typer.Option(min=1, help="Valid for so many days; default for ever.")] = None,
    objects: Objects = None,
) -> None:
    """Make a token and print it, this once; the root holds only its hash."""
    with opened_root(root, objects) as opened:
        expires = None if days is None else opened.database.now() + days * 86400
        secret, _ = opened.accounts.new_token(name, role, repository=repo, expires=expires)
    echo(secret)


@token.command("list")
def list_tokens(
    root: Root,
    name: Annotated[str | None, typer.Argument(metavar="USER")] = None,
    as_json: AsJson = False,
    objects: Objects = None,
) -> None:
    """Every token by its id, or a user's; never the tokens themselves."""
    with opened_root(root, objects) as opened:
        tokens = opened.accounts.tokens(name)
    if as_json:
        print_json([asdict(item) for item in tokens])
    elif tokens:
        print_columns(
            (
                item.id,
                item.user,
                item.role,
                item.repository or "every repository",
                f"made {_day(item.created)}",
                "" if item.expires is None else f"until {_day(item.expires)}",
            )
            for item in tokens
        )
    else:
        echo("none yet")


@token.command("remove")
def remove_token(
    identifier: Annotated[str, typer.Argument(metavar="ID")], root: Root, objects: Objects = None
) -> None:
    """Revoke a token, by its id or by itself; it is refused from the next request on."""
    with opened_root(root, objects) as opened:
        removed = opened.accounts.remove_token(identifier)
    echo(f"revoked token {removed.id} of {removed.user}")


# -- repositories: clients cannot change these of kernel repositories


@repo.command("list")
def list_repositories(root: Root, as_json: AsJson = False, objects: Objects = None) -> None:
    """Every repository, with what it takes on disk."""
    with opened_root(root, objects) as opened:
        rows = [
            {
                "type": item.type,
                "name": item.full_name,
                "private": item.private,
                "gated": item.gated or None,
                "bytes": opened.store.bytes_of(item),
            }
            for item in opened.repositories.all()
        ]
    if as_json:
        print_json(rows)
    elif rows:
        print_columns(
            (
                str(row["type"]),
                str(row["name"]),
                "private" if row["private"] else "public",
                f"gated ({row['gated']})" if row["gated"] else "",
                f"{row['bytes']} bytes",
            )
            for row in rows
        )
    else:
        echo("none yet")


@repo.command("set")
def set_repository(
    name: Named,
    root: Root,
    kind: OfType = "kernel",
    private: Annotated[bool | None, typer.Option("--private/--public", help="Who sees it.")] = None,
    gated: Annotated[
        str | None, typer.Option(help="auto or manual: downloads need a request; no: they do not.")
    ] = None,
    objects: Objects = None,
) -> None:
    """Make a repository private or public, gated or open."""
    if gated not in (None, "auto", "manual", "no"):
        raise KernelsHubError(f"--gated takes auto, manual or no, not {gated!r}")
    with opened_root(root, objects) as opened:
        repository = find_repository(opened, name, kind)
        if private is not None:
            opened.repositories.set_private(repository, private)
        if gated is not None:
            opened.repositories.set_gated(repository, "" if gated == "no" else gated)
        now = find_repository(opened, name, kind)
    access = f"gated ({now.gated})" if now.gated else "open to whoever sees it"
    echo(f"{now.full_name} is {'private' if now.private else 'public'} and {access}")


@repo.command("grant")
def grant_access(
    name: Named,
    member: Annotated[str, typer.Argument(metavar="USER")],
    root: Root,
    kind: OfType = "kernel",
    objects: Objects = None,
) -> None:
    """Let a user download from a gated repository."""
    with opened_root(root, objects) as opened:
        repository = find_repository(opened, name, kind)
        opened.repositories.grant(repository, opened.accounts.required(member, "user").name, "accepted")
    echo(f"{member} may download from {repository.full_name}")


@repo.command("remove")
def remove_repository(name: Named, root: Root, kind: OfType = "kernel", objects: Objects = None) -> None:
    """Delete a repository with everything in it; its releases stay in the log and come back with no other content."""
    with opened_root(root, objects) as opened:
        repository = find_repository(opened, name, kind)
        opened.store.delete(repository, administrator())
    echo(f"deleted {repository.type} {repository.full_name}")


# -- upkeep


@hub.command("gc")
def gc(
    root: Root,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune", help="Also drop commits that no ref reaches (locks may pin them), and orphans/."
        ),
    ] = False,
    as_json: AsJson = False,
    objects: Objects = None,
) -> None:
    """Join packs and drop large files that no commit names."""
    with opened_root(root, objects) as opened:
        from kernels_hub.server.maintenance import collect_garbage

        done = collect_garbage(opened, prune=prune)
    if as_json:
        print_json(asdict(done))
    else:
        print_fields(
            {
                "packs": f"{done.packs_before} -> {done.packs_after}",
                "large files removed": done.large_files_removed,
                "bytes freed": done.bytes_freed,
                "leftovers removed": len(done.swept),
            }
        )


@hub.command("fsck")
def fsck(
    root: Root,
    quick: Annotated[bool, typer.Option("--quick", help="Do not read large files.")] = False,
    as_json: AsJson = False,
    objects: Objects = None,
) -> None:
    """Check rows, objects, refs and files; exit code 1 on trouble."""
    with opened_root(root, objects) as opened:
        from kernels_hub.server.maintenance import check, strays

        problems = check(opened, content=not quick)
        left = strays(opened)
        count = len(opened.repositories.all())
    if as_json:
        print_json({"repositories": count, "problems": problems, "strays": left})
    else:
        for problem in problems:
            echo(problem)
        for line in left:
            echo(f"no problem, gc removes it: {line}")
        echo(f"{count} repositories, {len(problems) or 'no'} problems")
    if problems:
        raise typer.Exit(1)


@hub.command("backup")
def backup(
    target: Annotated[Path, typer.Argument(help="A new folder.")],
    root: Root,
    large_files: Annotated[
        bool,
        typer.Option(
            "--large-files/--no-large-files",
            help="Copy large files as well, or leave them in the object store that they are in.",
        ),
    ] = True,
    objects: Objects = None,
) -> None:
    """Copy a root, also while servers run on it."""
    with opened_root(root, objects) as opened:
        from kernels_hub.server.maintenance import backup as copy

        count = copy(opened, target, large_files=large_files)
    if large_files:
        echo(f"{target} is a copy of {root}, with {count} large files; to go back to it, serve it")
    else:
        echo(
            f"{target} is a copy of {root} without large files, which it needs where they are: "
            f"{kept_objects(target)}; to go back to it, serve it with --objects"
        )
