"""The records of a kernels.lock: which commits a project uses, and the sha256 of every file of every variant.

The file is JSON, sorted, and a function of its content: locking twice gives equal bytes. Lock files
of HF `kernels`, which pin commits only, are read too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernels_hub.errors import LockError
from kernels_hub.hub.tree import BUILD, File, Tree
from kernels_hub.repository.versions import VersionRequest

LOCK_FILE = "kernels.lock"
PROJECT_FILE = "pyproject.toml"
_FORMAT = 1


@dataclass(frozen=True)
class Dependency:
    """A kernel that a project, or another kernel, asks for."""

    repo_id: str
    wanted: VersionRequest
    repo_type: str | None = None

    def __str__(self) -> str:
        return f"{self.repo_id}{self.wanted}"


@dataclass(frozen=True)
class LockedKernel:
    """One kernel at one commit."""

    repo_id: str
    repo_type: str
    wanted: VersionRequest
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


def _wanted_row(wanted: VersionRequest) -> dict[str, Any]:
    known = {"version": wanted.version, "revision": wanted.revision}
    return {key: value for key, value in known.items() if value is not None}
