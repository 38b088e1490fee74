"""`kernels-hub publish PATH --repo org/name --version 1.2.0`: a release, on a Hub."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels_hub.cli.build import Manylinux, parse_manylinux
from kernels_hub.cli.output import AsJson, echo, print_columns, print_json

if TYPE_CHECKING:
    from kernels_hub.hub.publish import Published
    from kernels_hub.hub.publish_plan import Step


class RepoType(StrEnum):
    """What a repository on a Hub may be."""

    kernel = "kernel"
    model = "model"


def publish(
    path: Annotated[Path, typer.Argument(help="A layer repository: kernel.toml, or build/ with variants.")],
    repo: Annotated[str, typer.Option(help="Where to: org/name.")],
    version: Annotated[str | None, typer.Option(help="The release. Default: kernel.toml's version.")] = None,
    repo_type: Annotated[RepoType, typer.Option(help="kernel or model.")] = RepoType.kernel,
    sign: Annotated[str | None, typer.Option(metavar="KEY", help="Sign with this key: name or path.")] = None,
    private: Annotated[bool, typer.Option("--private", help="Create the repository as private.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be sent.")] = False,
    allow_breaking: Annotated[
        bool, typer.Option("--allow-breaking", help="Without a higher major version.")
    ] = False,
    replace_unfinished: Annotated[
        bool, typer.Option("--replace-unfinished", help="Over a release that was begun and never tagged.")
    ] = False,
    manylinux: Manylinux = "2_28",
    as_json: AsJson = False,
) -> None:
    """Publish a release, by one commit and a tag.

    Checks and builds the repository, signs it if asked to (its own build/ too, so that `verify` holds there),
    moves the branch of its major and writes the card. A publish that died is completed by running it again.
    """
    from kernels_hub.hub import publish as publishing
    from kernels_hub.hub.release import leave_signatures, prepare_release
    from kernels_hub.trust.keys import load_signing_key

    key = None if sign is None else load_signing_key(sign)
    with prepare_release(
        path, repo, version, repo_type=repo_type.value, key=key, manylinux=parse_manylinux(manylinux)
    ) as release:
        found = publishing.publish(
            release,
            private=private,
            dry_run=dry_run,
            allow_breaking=allow_breaking,
            replace_unfinished=replace_unfinished,
            report=lambda step: echo(step, err=True),
        )
        if key is not None and not dry_run:
            _, others = leave_signatures(path, release, key)
            for folder in others:
                echo(
                    f"{folder} is of another build than {release.version} and stays as it is, not signed; for what "
                    f"was published: kernels-hub build {path} --version {release.version}, and publish it again",
                    err=True,
                )
        if as_json:
            print_json(_document(found, dry_run))
        elif dry_run:
            _show_plan(found)
        else:
            _show(found)


def _show(published: Published) -> None:
    release = published.release
    if published.was_there:
        echo(f"{release.repo_id} {release.version} is published already, with this content: nothing to do")
    else:
        echo(f"published {release.repo_id} {release.version}")
    echo(f"  {published.url}  {release.tag} {published.commit}")


def _show_plan(published: Published) -> None:
    release = published.release
    if published.was_there:
        echo(f"{release.repo_id} {release.version} is published already, with this content: nothing to do")
    for number, step in enumerate(published.steps, start=1):
        echo(f"{number}. {step}")
        details = _step(step)
        if details.get("parent"):
            echo(f"   parent {details['parent']}")
        rows = [(each["path"], str(each["size"]), each["sha256"]) for each in details.get("add", ())]
        rows += [(path, "deleted", "") for path in details.get("delete", ())]
        if rows:
            print_columns(rows, indent="   ")
    echo("nothing was sent: this is a dry run")


def _document(published: Published, dry_run: bool) -> dict[str, Any]:
    comparison = published.comparison
    return {
        "repository": published.release.repo_id,
        "repo_type": published.release.repo_type,
        "version": str(published.release.version),
        "tag": published.release.tag,
        "url": published.url,
        "commit": published.commit,
        "dry_run": dry_run,
        "already_published": published.was_there,
        "previous": None if comparison is None else comparison.old.version,
        "bump": None if comparison is None else comparison.bump,
        "steps": [_step(step) for step in published.steps],
        "files": [
            {"path": file.path, "size": file.size, "sha256": file.sha256}
            for file in published.release.files.values()
        ],
    }


def _step(step: Step) -> dict[str, Any]:
    from kernels_hub.hub.publish_plan import Commit

    name = type(step).__name__
    kind = "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
    if not isinstance(step, Commit):
        return {"step": kind, **vars(step)}
    return {
        "step": kind,
        "branch": step.branch,
        "parent": step.parent,
        "message": step.title,
        "add": [{"path": file.path, "size": file.size, "sha256": file.sha256} for file in step.add],
        "delete": list(step.delete),
    }
