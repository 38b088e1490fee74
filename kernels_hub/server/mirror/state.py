"""Whether a root is a mirror: of which origin, how old, and what became of each repository there.

The rows lie in the root, so that whatever serves it knows, also without the process that follows the origin, and so
does a copy of the root on a disk that is carried elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.audit import plain
from kernels_hub.server.database import Database
from kernels_hub.server.database.schema import Schema
from kernels_hub.server.refusal import Refusal, header_text

if TYPE_CHECKING:
    from kernels_hub.server.layout import RootPaths
    from kernels_hub.server.repositories import Repository

SCHEMA = Schema(
    tables="""
CREATE TABLE IF NOT EXISTS mirror (
    origin TEXT PRIMARY KEY,
    path TEXT NOT NULL,
    tried REAL NOT NULL,
    caught_up REAL NOT NULL,
    problem TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS mirrored (
    repository TEXT PRIMARY KEY REFERENCES repositories ON DELETE CASCADE,
    origin_id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    gone REAL NOT NULL,
    problem TEXT NOT NULL
);
"""
)
"""`tried`, `caught_up` and `gone` are seconds since the epoch, 0 for never; `path` names the Hubs on the way, by id."""
MIRRORING = "mirror"
"""Work that one does at a time (`GitStore.alone`): to follow the origin, or to remove what no ref leads to."""
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.\-_\[\]:]+(?:/[A-Za-z0-9._~/-]*)?")


@dataclass(frozen=True)
class OriginRow:
    """The Hub that a root mirrors, as of the last round."""

    address: str
    path: tuple[str, ...]
    """The ids of the origin and of the Hubs that it mirrors itself."""
    tried: float
    caught_up: float
    """When the last round began after which everything was as at the origin; 0 before the first."""
    problem: str
    """Why the last round failed as a whole; "" where it did not."""

    def age(self) -> float | None:
        """Seconds since the mirror was as the origin, by this machine's clock alone; None before the first time."""
        return max(0.0, time.time() - self.caught_up) if self.caught_up else None


@dataclass(frozen=True)
class MirroredRow:
    """What is known of a repository's origin."""

    repository: str
    """Its id in this root."""
    origin_id: str
    state: str
    """What the origin said of it when it was brought; "" until it is whole for the first time."""
    gone: float
    """When the origin was first found without it."""
    problem: str
    """Why it is not as at the origin."""


class MirrorState:
    """The rows. A root without any is a Hub of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # -- the root

    def origin(self) -> OriginRow | None:
        """What the root mirrors; None for a Hub of its own."""
        row = self._database.row("SELECT * FROM mirror")
        if row is None:
            return None
        path = tuple(part for part in str(row["path"]).split(",") if part)
        return OriginRow(row["origin"], path, row["tried"], row["caught_up"], row["problem"])

    def refusal(self) -> Refusal | None:
        """What a change is answered with; None where the root is no mirror."""
        origin = self.origin()
        if origin is None:
            return None
        return Refusal(
            403,
            f"This Hub is a read-only mirror of {origin.address}; make the change there, and it arrives here",
            headers={"X-Mirror-Of": header_text(origin.address)},
        )

    def check_writable(self) -> None:
        """Refuse a change of what the origin decides, 403."""
        if (refusal := self.refusal()) is not None:
            raise refusal

    def check(self, address: str, *, moved: bool = False) -> None:
        """Raise KernelsHubError for a root that mirrors another address, or has repositories of its own.

        moved: the origin that is mirrored already has this address now.
        """
        if not _is_address(address):
            raise KernelsHubError(
                f"{address[:200]!r} is no address of a Hub; expected http(s)://host[:port], without credentials"
            )
        known = self.origin()
        if known is None:
            own = self._database.row("SELECT COUNT(*) AS n FROM repositories")
            if own is not None and own["n"]:
                raise KernelsHubError(
                    f"this root has {own['n']} repositories of its own, so it cannot become a mirror: what "
                    "comes from the origin could take their names. Give --root a new folder"
                )
        elif known.address != address and not moved:
            raise KernelsHubError(
                f"this root mirrors {known.address}, not {address}. Give --root another folder, or --moved if that "
                "Hub has this address now"
            )

    def begin(self, address: str) -> None:
        """Make a root the mirror of an origin that has answered, or note its address anew."""
        with self._database.transaction():
            self.check(address, moved=True)
            if self.origin() is None:
                self._database.change("INSERT INTO mirror VALUES (?, '', 0, 0, '')", address)
            else:
                self._database.change("UPDATE mirror SET origin = ? WHERE origin <> ?", address, address)

    def tried(self, problem: str, *, caught_up: float = 0.0, path: tuple[str, ...] | None = None) -> None:
        """Note how a round ended. caught_up: when it began, if everything is as at the origin."""
        self._database.change("UPDATE mirror SET tried = ?, problem = ?", time.time(), plain(problem))
        if caught_up:
            self._database.change("UPDATE mirror SET caught_up = ?", caught_up)
        if path is not None:
            self._database.change("UPDATE mirror SET path = ?", ",".join(path))

    # -- repositories

    def row(self, repository: Repository) -> MirroredRow | None:
        """What is known of a repository's origin."""
        row = self._database.row("SELECT * FROM mirrored WHERE repository = ?", repository.id)
        return None if row is None else MirroredRow(**dict(row))

    def by_origin(self, origin_id: str) -> MirroredRow | None:
        """The row of a repository, by its id at the origin."""
        row = self._database.row("SELECT * FROM mirrored WHERE origin_id = ?", origin_id)
        return None if row is None else MirroredRow(**dict(row))

    def rows(self) -> list[MirroredRow]:
        """Every repository that was brought, or is being."""
        return [MirroredRow(**dict(row)) for row in self._database.rows("SELECT * FROM mirrored")]

    def is_arriving(self, repository: Repository) -> bool:
        """Whether a repository was never whole yet: nobody is shown it."""
        row = self.row(repository)
        return row is not None and not row.state

    def note(self, repository: Repository, origin_id: str, state: str | None = None) -> None:
        """Note where a repository comes from; with `state`, that it is as the origin said."""
        with self._database.transaction():
            self._database.change(
                "INSERT INTO mirrored VALUES (?, ?, '', 0, '') ON CONFLICT (repository) "
                "DO UPDATE SET origin_id = excluded.origin_id",
                *(repository.id, origin_id),
            )
            if state is not None:
                self._database.change(
                    "UPDATE mirrored SET state = ?, gone = 0, problem = '' WHERE repository = ?",
                    *(state, repository.id),
                )

    def set_problem(self, identifier: str, problem: str) -> None:
        """Note why a repository is not as at the origin; "" once nothing is wrong."""
        self._database.change(
            "UPDATE mirrored SET problem = ? WHERE repository = ?", plain(problem), identifier
        )

    def set_gone(self, identifier: str, when: float) -> None:
        """Note that the origin has a repository no more, or with 0 that it has it again."""
        self._database.change("UPDATE mirrored SET gone = ? WHERE repository = ?", when, identifier)


def _is_address(text: str) -> bool:
    try:
        return _ADDRESS.fullmatch(text) is not None and urlsplit(text).port != 0
    except ValueError:  # a port beyond 65535
        return False


def hub_id(layout: RootPaths) -> str:
    """What tells a Hub from others, also behind another address; says nothing of its secret."""
    return hmac.new(layout.secret(), b"kernels-hub identity", hashlib.sha256).hexdigest()[:32]
