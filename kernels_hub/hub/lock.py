"""Reads kernels.lock and the dependencies that a pyproject.toml asks for; finds the lock of a caller's project."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kernels_hub.errors import LockError, VersionError
from kernels_hub.hub.caller import Caller
from kernels_hub.hub.locked_kernels import LOCK_FILE, PROJECT_FILE, Dependency, Lock
from kernels_hub.repository.versions import VersionRequest

_REPOSITORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)


def read_lock(path: Path) -> Lock:
    """Raises LockError (a ValueError), naming the file and the key, for one that is missing or malformed."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise LockError(
            f"no lock file {path}; make one beside {PROJECT_FILE} with: kernels-hub lock"
        ) from error
    except OSError as error:
        raise LockError(f"{path} cannot be read: {error}") from error
    return parse_lock(data, str(path))


def parse_lock(text: str | bytes, where: str = LOCK_FILE) -> Lock:
    """Raises LockError for text that is no lock file."""
    from kernels_hub.hub.lock_file import parse  # msgspec is imported where it is used

    return parse(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text, where)


def find_lock(caller: Caller) -> Lock:
    """The lock of the project that a module belongs to.

    Looked for beside the module's file and above it up to its project's folder, in the metadata of
    the distribution that installed it, then in the working folder and above.

    Raises LockError naming these places.
    """
    places = []
    for start in (None if caller.file is None else caller.file.absolute().parent, Path.cwd()):
        if start is None:
            continue
        for folder in up_to_the_project(start):
            if (folder / LOCK_FILE).is_file():
                return read_lock(folder / LOCK_FILE)
        places.append(str(start))
        if start != Path.cwd() and (lock := _of_distribution(caller.package)) is not None:
            return lock
    raise LockError(
        f"no {LOCK_FILE} for {caller.module}: none in {' or '.join(places)} or the folders above, and none in the "
        "metadata of an installed distribution; make one with `kernels-hub lock`, or give lockfile="
    )


def read_dependencies(project: Path) -> list[Dependency]:
    """The kernels that a pyproject.toml asks for, in order of name.

    Read from [tool.kernels-hub.dependencies] and [tool.kernels.dependencies] (HF `kernels`), as

        "org/name" = ">=1.2,<2"     # or 1 for the branch v1, or {revision = "…", type = "model"}

    Raises LockError naming file and key.
    """
    try:
        document = tomllib.loads(project.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise LockError(
            f"no {PROJECT_FILE} at {project}; name the folder of a project that has one"
        ) from error
    except (ValueError, RecursionError) as error:
        raise LockError(f"{project} is not TOML: {error}; correct it, and try again") from error
    except OSError as error:
        raise LockError(f"{project} cannot be read: {error}") from error
    tools = document.get("tool", {})
    dependencies: dict[str, Dependency] = {}
    for section in ("kernels-hub", "kernels"):
        tool = tools.get(section, {}) if isinstance(tools, dict) else {}
        table = tool.get("dependencies", {}) if isinstance(tool, dict) else {}
        where = f"{project}, [tool.{section}.dependencies]"
        if not isinstance(table, dict):
            raise LockError(f"{where}: expected a table of repositories")
        for repo_id, value in table.items():
            dependency = _dependency(repo_id, value, where)
            if dependencies.setdefault(repo_id, dependency) != dependency:
                raise LockError(
                    f"{where}: {repo_id} is asked for twice, as {dependencies[repo_id]} and {dependency}"
                )
    return [dependencies[repo_id] for repo_id in sorted(dependencies)]


def write_egg_lockfile(command: Any, basename: str, filename: str) -> None:
    """setuptools' hook: a wheel built beside a kernels.lock carries it in its metadata."""
    del basename
    try:
        wanted = read_dependencies(Path(PROJECT_FILE))
    except LockError:
        return
    if wanted:
        path = Path(LOCK_FILE)
        text = path.read_text(encoding="utf-8") if path.is_file() else None
        command.write_or_delete_file(LOCK_FILE, filename, text)


def _dependency(repo_id: str, value: object, where: str) -> Dependency:
    table = value if isinstance(value, dict) else {"version": value}
    if unknown := sorted(table.keys() - {"version", "revision", "type"}):
        raise LockError(
            f"{where}: {repo_id} has an unknown key {unknown[0]!r}; expected version, revision, type"
        )
    repo_type = table.get("type")
    if repo_type is not None and repo_type not in ["kernel", "model"]:
        raise LockError(f"{where}: {repo_id} has type {repo_type!r}; expected 'kernel' or 'model'")
    if _REPOSITORY.fullmatch(repo_id) is None or "--" in repo_id or ".." in repo_id:
        raise LockError(f"{where}: {repo_id!r} is not of the form 'org/name'")
    try:
        wanted = VersionRequest.of(repo_id, table.get("version"), table.get("revision"))
    except VersionError as error:
        raise LockError(f"{where}: {error}") from error
    return Dependency(repo_id, wanted, repo_type)


def up_to_the_project(folder: Path) -> Iterator[Path]:
    """A folder and those above it, to the one that holds the project; none of site-packages and above."""
    for parent in (folder, *folder.parents):
        if parent.name in {"site-packages", "dist-packages"}:
            return
        yield parent
        if (parent / PROJECT_FILE).is_file() or (parent / ".git").exists():
            return


def _of_distribution(package: str) -> Lock | None:
    from importlib import metadata

    names: Iterable[str] = metadata.packages_distributions().get(package, ())
    for name in dict.fromkeys(names):
        if (text := metadata.distribution(name).read_text(LOCK_FILE)) is not None:
            return parse_lock(text, f"{LOCK_FILE} of the installed distribution {name}")
    return None
