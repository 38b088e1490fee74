"""`kernels-hub yank REPO VERSION`: keep a release from being chosen by a specifier."""

from __future__ import annotations

from typing import Annotated

import typer

from kernels_hub.cli.output import AsJson, echo, print_json
from kernels_hub.cli.publish import RepoType


def yank(
    repo: Annotated[str, typer.Argument(help="org/name.")],
    version: Annotated[str, typer.Argument(help="The release, such as 1.2.0.")],
    reason: Annotated[str, typer.Option(help="Why; users are shown it.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Let it be chosen again.")] = False,
    repo_type: Annotated[RepoType | None, typer.Option(help="Default: found out.")] = None,
    as_json: AsJson = False,
) -> None:
    """Keep a release from being chosen by a specifier.

    Exact pins and locks still get it.
    """
    from packaging.version import Version

    from kernels_hub.hub import releases

    if not undo and not reason:
        raise typer.BadParameter("say why, for example --reason 'wrong gradients'", param_hint="--reason")
    kind = None if repo_type is None else repo_type.value
    changed = releases.yank(repo, version, reason, undo=undo, repo_type=kind)
    found = releases.list_releases(repo, repo_type=kind)
    release = str(Version(version.removeprefix("v")))
    branches = next(row.branches for row in found.releases if row.version == release)
    if as_json:
        print_json(
            {
                "repository": repo,
                "version": version,
                "yanked": not undo,
                "changed": changed,
                "branches": list(branches),
            }
        )
        return
    state = "can be chosen again" if undo else "is yanked: exact pins and locks still get it"
    echo(f"{repo} {version} {state}" + ("" if changed else " (it was before)"))
    if branches and not undo:
        echo(
            f"note: {', '.join(branches)} is still at it, for users who ask for a branch or an integer version; "
            "publish a higher release to move it"
        )
