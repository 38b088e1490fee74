"""Downloads counted: by repository, variant and day.

What counts is a whole answer, or its first bytes, with the file that every download of a variant has, its
`__init__.py`; of other repositories, with `config.json`. Questions about a file (HEAD) and files that a client has
already do not count.

A download waits for no disk: counts are added up in memory and written every few seconds, and when the server stops.
A process that is killed loses those of the last seconds.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernels_hub.server.database import Database, DatabaseError
from kernels_hub.server.database.schema import Schema

RECENT_DAYS = 30
SCHEMA = Schema("""
CREATE TABLE IF NOT EXISTS downloads (
    repository TEXT NOT NULL REFERENCES repositories ON DELETE CASCADE,
    day INTEGER NOT NULL,
    variant TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (repository, day, variant)
) WITHOUT ROWID;
""")
_SECONDS = 2.0
_DAY = 24 * 3600
_ENTRY_POINT = re.compile(r"build/([^/]+)/(?:([^/]+)/)?__init__\.py")
_log = logging.getLogger("kernels_hub.server")


@dataclass(frozen=True)
class Downloads:
    """How often a repository was downloaded."""

    total: int = 0
    recent: int = 0
    """In the last 30 days."""
    by_variant: Mapping[str, int] = field(default_factory=dict)
    """Variant -> how often, in all."""


class DownloadCounts:
    """Counts downloads. Safe from several threads; several processes add to the same rows."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._guard = threading.Lock()
        self._waiting: Counter[tuple[str, int, str]] = Counter()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, repository: str, path: str, paths: Mapping[str, object]) -> None:
        """A file was sent: `path` of a commit that holds `paths`, of the repository with this id."""
        if (variant := _counted(path, paths)) is not None:
            with self._guard:
                self._waiting[repository, int(time.time()) // _DAY, variant] += 1

    def of(self, repository: str) -> Downloads:
        """The downloads of the repository with this id, as far as they are written."""
        since = int(time.time()) // _DAY - RECENT_DAYS
        rows = self._database.rows(
            "SELECT variant, SUM(count) AS total, SUM(CASE WHEN day > ? THEN count ELSE 0 END) AS recent "
            "FROM downloads WHERE repository = ? GROUP BY variant ORDER BY variant",
            since,
            repository,
        )
        by_variant = {str(row["variant"]): int(row["total"]) for row in rows if row["variant"]}
        return Downloads(
            sum(int(row["total"]) for row in rows), sum(int(row["recent"]) for row in rows), by_variant
        )

    def flush(self) -> None:
        """Write what waits. What cannot be written now waits on."""
        with self._guard:
            counts = self._waiting
            self._waiting = Counter()
        if not counts:
            return
        try:
            with self._database.transaction():
                for (repository, day, variant), count in counts.items():
                    self._write(repository, day, variant, count)
        except BaseException:
            with self._guard:
                self._waiting.update(counts)
            raise

    def _write(self, repository: str, day: int, variant: str, count: int) -> None:
        # A repository that was deleted meanwhile has no rank, and its downloads are counted nowhere.
        if self._database.change(
            "UPDATE ranks SET downloads = downloads + ? WHERE repository = ?", count, repository
        ):
            self._database.change(
                "INSERT INTO downloads (repository, day, variant, count) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (repository, day, variant) DO UPDATE SET count = downloads.count + excluded.count",
                *(repository, day, variant, count),
            )

    def start(self) -> None:
        """Write in the background, every few seconds."""
        self._thread = threading.Thread(target=self._write_often, daemon=True)
        self._thread.start()

    def _write_often(self) -> None:
        while not self._ending.wait(_SECONDS):
            self._try_to_flush()

    def _try_to_flush(self) -> None:
        try:
            self.flush()
        except DatabaseError:
            _log.exception("downloads could not be counted; they are counted later")

    def stop(self) -> None:
        """End the background work, and write what waits."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        self._try_to_flush()


def _counted(path: str, paths: Mapping[str, object]) -> str | None:
    """The variant that a file's download counts for ("" for none); None for a file that does not count."""
    if path == "config.json":
        return ""
    match = _ENTRY_POINT.fullmatch(path)
    if match is None or (match[2] is not None and f"build/{match[1]}/__init__.py" in paths):
        return None
    return match[1]
