"""`kernels-hub versions REPO`: the releases of a repository on a Hub, newest first."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from kernels_hub.cli.output import AsJson, echo, print_columns, print_json
from kernels_hub.cli.publish import RepoType


def versions(
    repo: Annotated[str, typer.Argument(help="org/name.")],
    repo_type: Annotated[RepoType | None, typer.Option(help="Default: found out.")] = None,
    as_json: AsJson = False,
) -> None:
    """The releases and branches of a repository on a Hub."""
    from kernels_hub.hub.releases import list_releases

    found = list_releases(repo, repo_type=None if repo_type is None else repo_type.value)
    if as_json:
        print_json(asdict(found))
        return
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
                )
                for row in found.releases
            ],
            indent="",
        )
    echo("branches")
    print_columns([(name, commit[:12]) for name, commit in found.branches.items()] or [("none", "")])
    if found.tags:
        echo(f"other tags: {', '.join(found.tags)}")
