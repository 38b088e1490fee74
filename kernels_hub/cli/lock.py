"""`kernels-hub lock`: pin the kernels of a project by commit and content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels_hub.cli.output import AsJson, echo, print_json

if TYPE_CHECKING:
    from kernels_hub.hub.locked_kernels import Lock


def lock(
    project: Annotated[Path, typer.Argument(help="The project's folder, with pyproject.toml.")] = Path(),
    upgrade: Annotated[
        list[str] | None,
        typer.Option("--upgrade", "-U", metavar="ORG/NAME", help="Resolve this kernel anew; repeatable."),
    ] = None,
    upgrade_all: Annotated[bool, typer.Option("--upgrade-all", help="Resolve every kernel anew.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail if the lock is out of date, or a tag moved.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Default: kernels.lock in the project.")
    ] = None,
    for_peer: Annotated[
        bool,
        typer.Option("--hf-format", help="Write the format of HF kernels, which pins commits only."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Pin a project's kernels by commit and content.

    Reads [tool.kernels-hub.dependencies] of pyproject.toml and writes kernels.lock: the commit, and the
    sha256 of every file of every variant, of each kernel and of all that it depends on. Without
    --upgrade, what is locked already and still asked for stays as it is.
    """
    from kernels_hub.errors import LockError
    from kernels_hub.hub.lock import read_dependencies, read_lock
    from kernels_hub.hub.locked_kernels import LOCK_FILE, PROJECT_FILE
    from kernels_hub.hub.locking import changes, check_lock, check_tags, make_lock, write_lock

    dependencies = read_dependencies(project / PROJECT_FILE)
    if not dependencies and not check:
        raise LockError(
            f"{project / PROJECT_FILE} asks for no kernels: add, for example, "
            '[tool.kernels-hub.dependencies] with "org/name" = ">=1.2,<2"'
        )
    path = output or project / LOCK_FILE
    former = _former(project / LOCK_FILE, needed=not upgrade_all)
    if check:
        pinned = former or read_lock(project / LOCK_FILE)
        check_lock(pinned, dependencies)
        not_asked = check_tags(pinned)
        if not_asked is not None:
            echo(f"tags were compared with what was last known of them: {not_asked}", err=True)
        if as_json:
            print_json({"lock": str(path), "up_to_date": True, "tags_asked": not_asked is None})
        else:
            echo(f"{project / LOCK_FILE} is up to date")
        return
    known = {dependency.repo_id for dependency in dependencies}
    known |= {kernel.repo_id for kernel in former.kernels} if former else set()
    if unknown := sorted(set(upgrade or ()) - known):
        raise LockError(
            f"--upgrade {unknown[0]}: {project / PROJECT_FILE} does not ask for it; it asks for "
            f"{', '.join(sorted(known))}"
        )
    made = make_lock(dependencies, former, None if upgrade_all else frozenset(upgrade or ()))
    found = changes(former, made)
    write_lock(made, path, for_peer)
    if as_json:
        print_json(
            {
                "lock": str(path),
                "kernels": len(made.kernels),
                "changes": [
                    {"repository": change.repo_id, "before": change.before, "after": change.after}
                    for change in found
                ],
            }
        )
        return
    for change in found:
        echo(f"  {change}")
    number = len(made.kernels)
    locked = f"{number} kernel{'' if number == 1 else 's'} locked"
    echo(f"{path}: {locked}" + ("" if found else ", nothing changed"))


def _former(path: Path, *, needed: bool) -> Lock | None:
    """The lock that is there; where everything is resolved anew, one that cannot be read is none."""
    from kernels_hub.errors import LockError
    from kernels_hub.hub.lock import read_lock

    try:
        return read_lock(path) if path.is_file() else None
    except LockError:
        if needed:
            raise
        return None
