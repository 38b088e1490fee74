"""kernels.lock: which commits a project uses, and the sha256 of every file of every variant.

The file is JSON, sorted, and a function of its content: locking twice gives equal bytes. Lock files
of HF `kernels`, which pin commits only, are read too.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernels_hub.errors import LockError, VersionError
from kernels_hub.hub.tree import BUILD, File, Tree
from kernels_hub.repository.caller import Caller
from kernels_hub.repository.versions import Wanted

LOCK_FILE = "kernels.lock"
PROJECT_FILE = "pyproject.toml"
_FORMAT = 1
_REPOSITORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)


@dataclass(frozen=True)
class Dependency:
    """A kernel that a project, or another kernel, asks for."""

    repo_id: str
    wanted: Wanted
    repo_type: str | None = None

    def __str__(self) -> str:
        return f"{self.repo_id}{self.wanted}"


@dataclass(frozen=True)
class LockedKernel:
    """One kernel at one commit."""

    repo_id: str
    repo_type: str
    wanted: Wanted
    ref: str
    """The tag, branch or commit that was chosen."""
    commit: str
    direct: bool
    """Whether the project itself asks for it; otherwise another kernel does."""
    variants: Mapping[str, Mapping[str, str]] = field(hash=False)
    """Variant -> path inside -> sha256. Empty where another library's lock pins the commit only."""
    depends: tuple[Dependency, ...] = ()

    def tree(self) -> Tree:
        """The files that it pins."""
        return Tree.of(
            self.commit,
            (
                File(f"{BUILD}/{variant}/{inside}", sha256=sha256)
                for variant, files in self.variants.items()
                for inside, sha256 in files.items()
            ),
        )

    def __str__(self) -> str:
        return f"{self.repo_id}{self.wanted} at {self.ref} ({self.commit[:12]})"


@dataclass(frozen=True)
class Lock:
    """The content of a kernels.lock."""

    kernels: tuple[LockedKernel, ...]
    where: str = LOCK_FILE

    def direct(self, repo_id: str) -> LockedKernel:
        """What the project pins of a repository. Raises LockError where it pins nothing."""
        for kernel in self.kernels:
            if kernel.repo_id == repo_id and kernel.direct:
                return kernel
        known = ", ".join(sorted({kernel.repo_id for kernel in self.kernels if kernel.direct})) or "nothing"
        raise LockError(
            f"{self.where} does not lock {repo_id}; it locks {known}. Add it to [tool.kernels-hub.dependencies] of "
            f"{PROJECT_FILE} and run: kernels-hub lock"
        )

    def find(self, dependency: Dependency) -> LockedKernel | None:
        """What is pinned for exactly this request."""
        for kernel in self.kernels:
            if (kernel.repo_id, kernel.wanted) == (dependency.repo_id, dependency.wanted):
                return kernel
        return None

    def to_json(self) -> str:
        """The file's text."""
        rows = [_row(kernel) for kernel in sorted(self.kernels, key=_order)]
        return json.dumps({"format": _FORMAT, "kernels": rows}, indent=1, ensure_ascii=False) + "\n"

    def to_peer_json(self) -> str:
        """The same commits as HF `kernels` reads them; it knows no digests and no specifiers."""
        rows = []
        for kernel in sorted(self.kernels, key=_order):
            wanted = kernel.wanted
            by: dict[str, Any] = (
                {"version": wanted.version} if isinstance(wanted.version, int) else {"revision": kernel.ref}
            )
            rows.append({"dependency": {"repo-id": kernel.repo_id, **by}, "lock": {"commit": kernel.commit}})
        return json.dumps(rows, indent=2) + "\n"


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
    found: dict[str, Dependency] = {}
    for section in ("kernels-hub", "kernels"):
        tool = tools.get(section, {}) if isinstance(tools, dict) else {}
        table = tool.get("dependencies", {}) if isinstance(tool, dict) else {}
        where = f"{project}, [tool.{section}.dependencies]"
        if not isinstance(table, dict):
            raise LockError(f"{where}: expected a table of repositories")
        for repo_id, value in table.items():
            dependency = _dependency(repo_id, value, where)
            if found.setdefault(repo_id, dependency) != dependency:
                raise LockError(
                    f"{where}: {repo_id} is asked for twice, as {found[repo_id]} and {dependency}"
                )
    return [found[repo_id] for repo_id in sorted(found)]


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


# -- reading and writing ----------------------------------------------------------------------------


def _order(kernel: LockedKernel) -> tuple[str, str]:
    return kernel.repo_id, str(kernel.wanted)


def _row(kernel: LockedKernel) -> dict[str, Any]:
    return {
        "repository": kernel.repo_id,
        "type": kernel.repo_type,
        **_wanted_row(kernel.wanted),
        "ref": kernel.ref,
        "commit": kernel.commit,
        "direct": kernel.direct,
        "depends": [
            {"repository": dependency.repo_id, **_wanted_row(dependency.wanted)}
            for dependency in kernel.depends
        ],
        "variants": {name: dict(sorted(files.items())) for name, files in sorted(kernel.variants.items())},
    }


def _wanted_row(wanted: Wanted) -> dict[str, Any]:
    known = {"version": wanted.version, "revision": wanted.revision}
    return {key: value for key, value in known.items() if value is not None}


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
        wanted = Wanted.of(repo_id, table.get("version"), table.get("revision"))
    except VersionError as error:
        raise LockError(f"{where}: {error}") from error
    return Dependency(repo_id, wanted, repo_type)


def up_to_the_project(folder: Path) -> Iterator[Path]:
    """A folder and those above it, to the one that holds the project; none of site-packages and above."""
    for place in (folder, *folder.parents):
        if place.name in {"site-packages", "dist-packages"}:
            return
        yield place
        if (place / PROJECT_FILE).is_file() or (place / ".git").exists():
            return


def _of_distribution(package: str) -> Lock | None:
    from importlib import metadata

    names: Iterable[str] = metadata.packages_distributions().get(package, ())
    for name in dict.fromkeys(names):
        if (text := metadata.distribution(name).read_text(LOCK_FILE)) is not None:
            return parse_lock(text, f"{LOCK_FILE} of the installed distribution {name}")
    return None
