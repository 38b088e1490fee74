"""`kernels-hub versions REPO`: the releases of a repository on a Hub, newest first, and its release log."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels_hub.cli.output import AsJson, echo, print_columns, print_json
from kernels_hub.cli.publish import RepoType
from kernels_hub.errors import KernelsHubError

if TYPE_CHECKING:
    from kernels_hub.hub.release_log import ReleaseLog
    from kernels_hub.hub.releases import Releases


def versions(
    repo: Annotated[str, typer.Argument(help="org/name.")],
    repo_type: Annotated[RepoType | None, typer.Option(help="Default: found out.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Show the release log too; exit code 1 where there is none.")
    ] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="With --verify: forget the log as it was, and take it as it is.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The releases and branches of a repository on a Hub.

    Its release log is checked where the Hub keeps one.
    """
    from kernels_hub.hub.releases import list_releases

    kind = None if repo_type is None else repo_type.value
    if accept:
        if not verify:
            raise KernelsHubError("--accept goes with --verify: what is taken from now on is shown")
        _forget(repo, kind)
    releases = list_releases(repo, repo_type=kind)
    if as_json:
        print_json(_document(releases, verify))
    else:
        _print_releases(repo, releases)
        if verify:
            _print_log(releases.log)
    if verify and releases.log is None:
        raise typer.Exit(1)


def _forget(repo: str, kind: str | None) -> None:
    from kernels_hub.hub.cache import RepositoryCache, hub_cache_folder
    from kernels_hub.hub.connection import Connection
    from kernels_hub.hub.release_log import forget_log
    from kernels_hub.hub.releases import REPO_TYPES

    for each in REPO_TYPES if kind is None else (kind,):
        forget_log(Connection(), RepositoryCache(hub_cache_folder(), repo, each))


def _document(found: Releases, verify: bool) -> dict[str, Any]:
    document = asdict(replace(found, log=None))
    del document["log"]
    if verify:
        log = found.log
        entries = [
            {**json.loads(entry.canonical()), "hash": entry.hash} for entry in (log.entries if log else ())
        ]
        document["log"] = None if log is None else {"head": log.head, "known": log.known, "entries": entries}
    return document


def _print_releases(repo: str, found: Releases) -> None:
    if not found.releases:
        echo(f"{repo} has no releases")
    else:
        print_columns(
            [
                (
                    row.version,
                    (row.date or "")[:10],
                    row.commit[:12],
                    ", ".join(row.branches),
                    "" if row.yanked is None else f"yanked: {row.yanked}",
                    "" if row.forced is None else f"changed by force: {row.forced}",
                )
                for row in found.releases
            ],
            indent="",
        )
    echo("branches")
    branches = [(name, commit[:12]) for name, commit in found.branches.items()]
    print_columns(branches or [("none", "")])
    if found.tags:
        echo(f"other tags: {', '.join(found.tags)}")


def _print_log(log: ReleaseLog | None) -> None:
    if log is None:
        echo("this Hub keeps no release log: what it says of its releases cannot be verified")
        return
    echo("release log")
    for entry in log.entries:
        echo(f"  {entry}")
    if log.later:
        echo(
            f"a mirror answered, which is {len(log.later)} entries behind what this machine knows of the Hub"
        )
    new = len(log.entries) - log.known
    echo(
        f"verified: {len(log.entries)} entries, {new} of them new since this machine last looked; head {log.head}"
    )
