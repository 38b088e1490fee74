"""`kernels-hub diff A B`: what changed between two releases, and which version that needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels_hub.cli.output import AsJson, echo, print_json
from kernels_hub.cli.publish import RepoType

if TYPE_CHECKING:
    from kernels_hub.hub.compare import Comparison
    from kernels_hub.repository.interface import Interface


def diff(
    old: Annotated[str, typer.Argument(metavar="A", help="The older: org/name@1.2.0, or a folder.")],
    new: Annotated[
        str, typer.Argument(metavar="B", help="The newer: org/name@1.3.0, a folder, or a version of A.")
    ],
    repo_type: Annotated[RepoType | None, typer.Option(help="Default: found out.")] = None,
    as_json: AsJson = False,
) -> None:
    """What changed between two releases, and the version it needs.

    Layers, signatures, flags, variants, dependencies and files.
    """
    from kernels_hub.hub.compare import compare

    repository = old.rpartition("@")[0]
    kind = None if repo_type is None else repo_type.value
    found = compare(_interface(old, "", kind, "A"), _interface(new, repository, kind, "B"))
    if as_json:
        print_json(_document(old, new, found))
    else:
        _show(old, new, found)


def _interface(text: str, repository: str, repo_type: str | None, where: str) -> Interface:
    from kernels_hub.hub.connection import Connection
    from kernels_hub.hub.releases import release_commit, remote_interface
    from kernels_hub.repository.interface import read_interface

    if Path(text).exists():
        return read_interface(Path(text))
    named, at, version = text.rpartition("@")
    if not at:
        named = repository
    if not named or "/" not in named or not version:
        raise typer.BadParameter(
            f"{text!r} is neither a folder nor org/name@version"
            + (", nor a version of A, which is a folder" if where == "B" else ""),
            param_hint=where,
        )
    connection = Connection()
    kind, commit = release_commit(connection, named, version, repo_type)
    return remote_interface(connection, named, kind, commit)


def _show(old: str, new: str, comparison: Comparison) -> None:
    marks = {"added": "+", "removed": "-", "changed": "~"}
    echo(f"{old} ({comparison.old.version}) -> {new} ({comparison.new.version})")
    for change in comparison.changes:
        echo(f"  {change.bump:<5}  {change}")
    for file in comparison.files:
        echo(f"  {marks[file.change]} {file.path}")
    if comparison.bump == "none":
        echo("no difference")
    elif comparison.old.version is None or "." not in comparison.old.version:
        echo(f"a {comparison.bump} change")
    else:
        echo(f"a {comparison.bump} change: at least {comparison.next_version(comparison.old.version)}")


def _document(old: str, new: str, comparison: Comparison) -> dict[str, object]:
    dotted = comparison.old.version is not None and "." in comparison.old.version
    return {
        "old": {"name": old, "version": comparison.old.version},
        "new": {"name": new, "version": comparison.new.version},
        "bump": comparison.bump,
        "next_version": comparison.next_version(str(comparison.old.version)) if dotted else None,
        "changes": [
            {"bump": change.bump, "what": change.what, "variants": list(change.variants)}
            for change in comparison.changes
        ],
        "files": [{"path": file.path, "change": file.change} for file in comparison.files],
    }
