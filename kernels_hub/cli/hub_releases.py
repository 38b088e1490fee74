"""`kernels-hub hub log` and `hub release …`: the logs of a Hub, and what its administrator forces on a release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kernels_hub.cli.hub_root import Named, Objects, OfType, Root, find_repository, opened_root
from kernels_hub.cli.output import AsJson, echo, print_columns, print_json
from kernels_hub.errors import KernelsHubError

if TYPE_CHECKING:
    from kernels_hub.server.audit import AuditRecord
    from kernels_hub.server.hub import Hub
    from kernels_hub.server.releases import Force

release = typer.Typer(
    help="Change a release all the same: clients are told, and the log keeps it for ever.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Tag = Annotated[str, typer.Argument(help="The release's tag, as v1.2.0.")]
Forced = Annotated[bool, typer.Option("--force", help="Do it although releases are immutable.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; everybody who looks at the release reads it.")]


def administrator() -> str:
    """Who runs this command, as logs name them."""
    from kernels_hub.server.audit import current_actor

    actor = current_actor()
    return f"{actor.name} ({actor.source})"


def _force(tag: str, what: str, force: bool, reason: str) -> Force:
    from kernels_hub.repository.versions import parse_tag
    from kernels_hub.server.releases import Force

    if parse_tag(tag) is None:
        raise KernelsHubError(
            f"{tag!r} is no release's tag, as v1.2.0 is; other tags are moved without force"
        )
    if not force or not reason.strip():
        raise KernelsHubError(
            f"{tag} is a release, which is never {what}: somebody may have pinned it. Publish a new version, or yank "
            "this one; if it has to be, give --force and a --reason, which everybody reads"
        )
    return Force(reason.strip())


@release.command("move")
def move_release(
    name: Named,
    tag: Tag,
    revision: Annotated[str, typer.Argument(metavar="COMMIT", help="Or a branch or tag.")],
    root: Root,
    kind: OfType = "kernel",
    force: Forced = False,
    reason: Reason = "",
    objects: Objects = None,
) -> None:
    """Put a release's tag at another commit. Clients that know the release are warned."""
    forced = _force(tag, "moved", force, reason)
    with opened_root(root, objects) as opened:
        repository = find_repository(opened, name, kind)
        opened.changes.force_tag(repository, tag, revision, administrator(), forced)
        commit = opened.store.resolve(repository, f"refs/tags/{tag}")
    echo(f"{tag} of {repository.full_name} is at {commit}; the release log has it as a forced-move")


@release.command("delete")
def delete_release(
    name: Named,
    tag: Tag,
    root: Root,
    kind: OfType = "kernel",
    force: Forced = False,
    reason: Reason = "",
    objects: Objects = None,
) -> None:
    """Delete a release's tag. The version never comes back with other content."""
    forced = _force(tag, "deleted", force, reason)
    with opened_root(root, objects) as opened:
        repository = find_repository(opened, name, kind)
        opened.changes.delete_tag(repository, tag, administrator(), force=forced)
    echo(f"deleted {tag} of {repository.full_name}; the release log has it as a delete")


def restore_repository(
    name: Named,
    root: Root,
    branch: Annotated[
        list[str] | None, typer.Option("--branch", metavar="NAME=COMMIT", help="Where a branch was.")
    ] = None,
    kind: OfType = "kernel",
    objects: Objects = None,
) -> None:
    """Write lost branches and tags anew: releases as the log has them, branches as --branch says."""
    branches = {}
    for text in branch or []:
        key, _, commit = text.partition("=")
        if not key or not commit:
            raise KernelsHubError(f"--branch takes NAME=COMMIT, as main=0123…, not {text!r}")
        branches[key] = commit
    with opened_root(root, objects) as opened:
        from kernels_hub.server.release_check import restore_refs

        repository = find_repository(opened, name, kind)
        refs = restore_refs(opened, repository, branches)
    print_columns((full, ref.commit) for full, ref in sorted(refs.items()))


def show_log(
    root: Root,
    name: Annotated[str | None, typer.Argument(metavar="ORG/NAME", help="Default: all of them.")] = None,
    audit: Annotated[bool, typer.Option("--audit", help="The log of administration instead.")] = False,
    last: Annotated[int | None, typer.Option(min=1, help="Only so many, the newest.")] = None,
    as_json: AsJson = False,
    objects: Objects = None,
) -> None:
    """The log of releases and yanks, or of administration, checked; exit code 1 where a chain is broken."""
    with opened_root(root, objects) as opened:
        if audit:
            records = opened.audit.records(last=last)
            problems = opened.audit.problems()
            if as_json:
                print_json({"records": [_record(record) for record in records], "problems": problems})
            else:
                _print_records(records)
        else:
            log = opened.releases.log
            chains = [chain for chain in log.chains() if name is None or _is(chain, name)]
            entries = [entry for chain in chains for entry in log.entries(chain)]
            entries = sorted(entries, key=lambda entry: (entry.time, entry.repository, entry.index))
            entries = entries[-last:] if last else entries
            problems = [f"{chain}: {problem}" for chain in chains for problem in log.problems(chain)]
            problems += _mirror_problems(opened, name)
            if as_json:
                import json

                rows = [{**json.loads(entry.canonical()), "hash": entry.hash} for entry in entries]
                print_json({"entries": rows, "problems": problems})
            elif entries:
                print_columns(
                    (
                        (
                            entry.time,
                            entry.repository,
                            f"#{entry.index}",
                            entry.kind,
                            entry.tag,
                            entry.commit[:12],
                            entry.actor,
                            entry.note,
                        )
                        for entry in entries
                    ),
                    indent="",
                )
            else:
                echo("no releases yet")
    for problem in () if as_json else problems:
        echo(f"PROBLEM: {problem}")
    if problems:
        raise typer.Exit(1)


def _mirror_problems(opened: Hub, name: str | None) -> list[str]:
    """Where a mirror is not as its origin."""
    from kernels_hub.server.release_log import chain_of

    found = []
    for row in opened.mirror.rows():
        repository = opened.repositories.by_id(row.repository)
        if row.problem and repository is not None and name in (None, repository.full_name):
            found.append(f"{chain_of(repository)}: {row.problem}")
    return found


def _is(chain: str, name: str) -> bool:
    return chain.partition("/")[2].lower() == name.lower()


def _record(record: AuditRecord) -> dict[str, object]:
    from dataclasses import asdict

    return {**asdict(record), "hash": record.hash}


def _print_records(records: list[AuditRecord]) -> None:
    if not records:
        echo("nothing yet")
        return
    print_columns(
        (
            (
                record.time,
                record.actor,
                record.source,
                record.action,
                record.subject,
                ", ".join(f"{key} {value}" for key, value in record.detail.items()),
            )
            for record in records
        ),
        indent="",
    )
