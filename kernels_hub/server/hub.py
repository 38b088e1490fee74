"""One Hub: everything that handlers, the command line and the sweep work with, over one root."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Self

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.access import Access
from kernels_hub.server.accounts import Accounts
from kernels_hub.server.audit import Audit
from kernels_hub.server.changes import Changes
from kernels_hub.server.database import Database, DatabaseError
from kernels_hub.server.database.address import checked
from kernels_hub.server.database.movable import MovableDatabase
from kernels_hub.server.database.opening import open_database
from kernels_hub.server.download_counts import SCHEMA as DOWNLOADS
from kernels_hub.server.download_counts import DownloadCounts
from kernels_hub.server.durable import share
from kernels_hub.server.facets import SCHEMA as FACETS
from kernels_hub.server.git.movable import MovableGit
from kernels_hub.server.git.opening import join_hub, open_git
from kernels_hub.server.git.rows import SCHEMA as GIT
from kernels_hub.server.git.seam import GitStore
from kernels_hub.server.layout import RootPaths
from kernels_hub.server.lfs import LargeFiles
from kernels_hub.server.limits import Budget, Limits
from kernels_hub.server.mirror.state import SCHEMA as MIRROR
from kernels_hub.server.mirror.state import MirrorState
from kernels_hub.server.objects.address import S3Address
from kernels_hub.server.objects.opening import open_store
from kernels_hub.server.objects.store import ObjectStore
from kernels_hub.server.refusal import Refusal, forbidden
from kernels_hub.server.releases import Releases
from kernels_hub.server.repositories import Repositories, Repository
from kernels_hub.server.row_moves import Following
from kernels_hub.server.search import Search
from kernels_hub.server.search_tables import SCHEMA
from kernels_hub.server.sessions import SCHEMA as SESSIONS
from kernels_hub.server.sessions import Sessions
from kernels_hub.server.signing import Signer
from kernels_hub.server.store import Store

SCHEMAS = (SCHEMA, FACETS, DOWNLOADS, SESSIONS, MIRROR, GIT)
"""The tables of every part, besides those that all databases have."""


class Hub:
    """The parts, wired. Safe from several threads, and on one root from several processes.

    >>> with Hub(Path("/srv/hub"), create=True) as hub:  # doctest: +SKIP
    ...     hub.accounts.add_user("ada")
    """

    def __init__(
        self,
        root: Path,
        *,
        limits: Limits | None = None,
        create: bool = False,
        database: str | None = None,
        objects: str | None = None,
    ) -> None:
        """Open a root, or make one: `create` makes one of an empty or missing folder.

        database: the address of the PostgreSQL database of the rows; a root remembers it, but for the password. A new
            root without one has its rows in hub.sqlite.
        objects: the address of the object store that large files are in; None for the root's own folders. With
            `create`, a root without large files may get a store for them. A new root with both has its git data there,
            too, and so may have any number of others, each with a folder of its own.
        Raises KernelsHubError for a folder that is no root, and where its rows or large files are somewhere else.
        """
        # What is no address makes no root.
        if database is not None:
            checked(database)
        if objects is not None:
            S3Address.parse(objects)
        self.limits = limits or Limits()
        self.objects = objects
        self.layout = RootPaths.open(root, create=create, database=database, objects=objects)
        self._using: int | None = share(self.layout.using)
        self._following: Following | None = None
        try:
            self.layout.read_marker(database)  # again: until now the rows may have been moved
            self._open(database, objects, create=create)
        except BaseException as error:
            if (opened := getattr(self, "database", None)) is not None:
                opened.close()
            self.layout.close()
            self._let_go()
            if isinstance(error, DatabaseError):
                raise KernelsHubError(f"the database of {root} cannot be used: {error}") from error
            raise

    def _open(self, database: str | None, objects: str | None, *, create: bool) -> None:
        self.database = MovableDatabase(
            open_database(
                self.layout, database, join=lambda there, owner: join_hub(self.layout, there, owner, objects)
            )
        )
        self.audit = Audit(self.database)
        self.accounts = Accounts(self.database, self.audit)
        self.repositories = Repositories(self.database, self.audit)
        for schema in SCHEMAS:
            self.database.add(schema)
        self.sessions = Sessions(self.database, self.accounts, self.limits.session_seconds)
        self.mirror = MirrorState(self.database)
        self.access = Access(self.accounts, self.repositories, self.mirror)
        store = self._open_store(objects, create)
        self._store = store
        self.git = MovableGit(self._open_git(self.database.inner), self.database.staying())
        self.large_files = LargeFiles(self.layout, self.database, store, self.git)
        self.releases = Releases(self.database, self.large_files, self.audit, self.mirror)
        self.store = Store(self.git, self.repositories, self.large_files, self.releases)
        self.search = Search(self.database, self.accounts, self.repositories, self.store)
        self.downloads = DownloadCounts(self.database)
        self.changes = Changes(self.store, self.limits, self.releases)
        self.commits = Budget(self.limits.max_commits_bytes)
        self.signer = Signer(self.layout.secret(), self.limits.upload_seconds, self.database.now)

    def _open_git(self, rows: Database) -> GitStore:
        """The git data where it is now. rows: as they were opened now, which `database` may not have yet."""
        cache_bytes = self.limits.git_cache_bytes
        return open_git(self.layout, rows, self._store, cache_bytes=cache_bytes, followed=self.database)

    def _open_store(self, objects: str | None, create: bool) -> ObjectStore:
        def empty() -> bool:
            return create and self.database.row("SELECT 1 FROM objects LIMIT 1") is None

        try:
            return open_store(self.layout, objects, empty=empty)
        except BaseException:
            self.database.close()
            self.layout.close()
            raise

    def check_space(self, repository: Repository, size: int, *, elsewhere: bool = False) -> None:
        """Refuse an upload of `size` bytes that the disk or the repository's quota has no room for.

        elsewhere: none of it comes to this disk.
        """
        needed = (0 if elsewhere else size) + self.limits.min_free_bytes
        if shutil.disk_usage(self.layout.root).free < needed:
            raise Refusal(507, "The server's disk is full; nothing was changed, tell its administrator")
        quota = self.limits.max_repository_bytes
        if quota and (used := self.store.bytes_of(repository)) + size > quota:
            raise forbidden(
                f"{repository.full_name} may hold {quota} bytes and holds {used}: {size} more do not fit"
            )

    def follow_moves(self, *, git: bool = True) -> None:
        """From now on, while this process lives, go along when `kernels-hub hub migrate` moves rows or git data.

        git: False for who does some work `alone`, under a lock of the place that git data is in: it stays, and such a
            migration gives up.
        """

        def check_git() -> None:
            if not git:
                raise KernelsHubError("it is `kernels-hub mirror`, which is stopped while git data moves")
            self._store.confirm()

        self._following = Following(self.layout, self.database, self._let_go, self._open_again, check_git)
        self._following.start()

    def _open_again(self, using: int) -> Database:
        """The rows where they are now, and the git data, once the lock is held again."""
        try:
            self.layout.read_marker()
            opened = open_database(self.layout)
            try:
                for schema in SCHEMAS:
                    opened.add(schema)
                if self.layout.read().git or self.git.has_several_roots:
                    before = self.git.inner
                    self.git.exchange(self._open_git(opened))
                    before.close()
            except BaseException:
                opened.close()
                raise
        except BaseException:
            os.close(using)
            raise
        self._using = using
        return opened

    def _let_go(self) -> None:
        """Let go of the lock that says that this process has the rows open."""
        if self._using is not None:
            os.close(self._using)
            self._using = None

    def close(self) -> None:
        """Close files and connections."""
        if self._following is not None:
            self._following.stop()
        self.search.stop()
        self.downloads.stop()
        self.git.close()
        self.database.close()
        self.layout.close()
        self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
