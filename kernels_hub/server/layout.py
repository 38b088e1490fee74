"""Where everything lies under the root of a Hub.

FORMAT                the format, and whether rows, large files or git data are somewhere else, with the object store's
                      address
hub.sqlite            accounts, tokens, repositories, large files (rows), unless they are in PostgreSQL:
database              then its address, without a password, and the root's id, which the database has too
database.begun        the same of a migration that was begun, and is not done
git.begun             a migration of git data that was begun: "store" or "folder"; see `git/opening.py`
using                 a lock that whoever has the rows open shares, and a migration of the rows takes at its end
moving                of such a migration, while servers let the rows go: where to
secret                the key that signs upload addresses
id                    who this root is to an object store
repositories/<id>/    git/ (a bare repository) and lfs/ (large files by SHA-256)
cache/<id>            copies of packs, where git data is in the object store: they may be removed
locks/<id>            one lock a repository
incoming/<process>/   files being written; those of dead processes are swept
orphans/<id>          repositories found without a row, set aside until an administrator drops them
multipart/<upload>/   large files being uploaded in parts
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kernels_hub.errors import KernelsHubError
from kernels_hub.files import flush_folder, write_atomically
from kernels_hub.server.database.address import checked, without_password
from kernels_hub.server.durable import locked, try_lock
from kernels_hub.server.refusal import Refusal

FORMAT = "kernels-hub root 1\n"
_ELSEWHERE = re.compile(r"kernels-hub root 2\n(rows database\n)?(?:objects (s3://[!-~]{1,2000})\n)?()")
"""Of a root whose rows are in the database that the file `database` names, or whose large files are in an object store.
Earlier versions would find them missing; they refuse it."""
_GIT_ELSEWHERE = re.compile(
    r"kernels-hub root 3\n(rows database\n)(?:objects (s3://[!-~]{1,2000})\n)?(git store\n)"
)
"""Of a root whose git data is in both. It has no object store yet while the Hub is being made."""
_NUMBER = re.compile(r"kernels-hub root ([0-9]{1,6})\n")
NEWEST = 3
_FOLDERS = ("repositories", "locks", "incoming", "multipart", "orphans")
_SECRET_BYTES = 32


def marker_text(*, rows: bool = False, objects: str | None = None, git: bool = False) -> str:
    """FORMAT of a root. rows: whether its rows are elsewhere. objects: the address of its object store.

    git: whether git data is in both.
    """
    if not rows and objects is None:
        return FORMAT
    moved, stored = "rows database\n" if rows else "", "" if objects is None else f"objects {objects}\n"
    return (
        f"kernels-hub root 3\n{moved}{stored}git store\n" if git else f"kernels-hub root 2\n{moved}{stored}"
    )


@dataclass(frozen=True)
class Marker:
    """What FORMAT says: whether rows are elsewhere, the address of the object store, whether git data is in both."""

    rows: bool = False
    objects: str | None = None
    git: bool = False

    def __str__(self) -> str:
        return marker_text(rows=self.rows, objects=self.objects, git=self.git)


@dataclass(frozen=True)
class Elsewhere:
    """The database that has a root's rows: its address without a password, and the id that the root has there."""

    address: str
    root: str


def elsewhere_text(elsewhere: Elsewhere) -> str:
    """What the file `database` holds."""
    return f"{elsewhere.address}\nroot {elsewhere.root}\n"


def elsewhere_of(text: str, path: Path) -> Elsewhere:
    """What such a text says; KernelsHubError, which names its file, where it says nothing."""
    lines = text.splitlines()
    if len(lines) != 2 or not lines[1].startswith("root "):
        raise KernelsHubError(
            f"{path} is missing or damaged, which says where the rows of this root are: in its first line "
            "the address of a database, in its second `root` and the id that the table hub_root there has"
        )
    return Elsewhere(checked(lines[0]), lines[1].removeprefix("root "))


class RootPaths:
    """The paths of one root, and this process's own corner for files that are being written."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.guard = self.root / "lock"
        self.database = self.root / "hub.sqlite"
        self.repositories = self.root / "repositories"
        self.locks = self.root / "locks"
        self.incoming = self.root / "incoming"
        self.multipart = self.root / "multipart"
        self.orphans = self.root / "orphans"
        self.cache = self.root / "cache"
        self.using = self.root / "using"
        self.moving = self.root / "moving"
        self.marker = self.root / "FORMAT"
        self.address = self.root / "database"
        self.begun = self.root / "database.begun"
        self.git_begun = self.root / "git.begun"
        self.elsewhere: Elsewhere | None = None
        """Where the rows are, if not in hub.sqlite."""
        self.is_new = False
        """Whether opening it made it."""
        self._own_lock: int | None = None
        self._own_folder: Path | None = None
        self._own_guard = threading.Lock()

    @classmethod
    def open(
        cls, root: Path, *, create: bool = False, database: str | None = None, objects: str | None = None
    ) -> RootPaths:
        """The layout of a root; with `create`, an empty or missing folder becomes one.

        database: the address of the PostgreSQL database that has, or is to have, the rows.
        objects: of an object store. A new root with both has its git data there, too.
        Raises KernelsHubError where there is no root, or a folder that holds something else.
        """
        layout = cls(root)
        if layout.marker.is_file():
            layout.read_marker(database)
            if layout.read().git:
                layout.repositories.mkdir(exist_ok=True)  # which holds nothing
            if not layout.repositories.is_dir():
                raise KernelsHubError(
                    f"{layout.repositories} is missing, which holds every repository; nothing was changed. Put it back "
                    "from a copy made by `kernels-hub hub backup`"
                )
            if (
                layout.elsewhere is None
                and not layout.database.is_file()
                and any(layout.repositories.iterdir())
            ):
                raise KernelsHubError(
                    f"{root} has repositories but no hub.sqlite, which says whose they are; nothing was changed. "
                    "Put back the hub.sqlite of a copy made by `kernels-hub hub backup`"
                )
            layout._make_passing_folders()
            return layout
        if not create:
            raise KernelsHubError(
                f"{root} is not the root of a Hub; `kernels-hub serve --root` makes one, or check the path"
            )
        layout._create(root, database, git=objects is not None)
        return layout

    def read_marker(self, database: str | None = None) -> None:
        """See where the rows are; KernelsHubError for another format, and where `database` is none of this root."""
        text, self.elsewhere = self.marker.read_text(), None
        if self._parsed(text).rows:
            self.elsewhere = self.read_address()
        elif database is not None:
            raise KernelsHubError(
                f"{self.root} has its rows in hub.sqlite, not in {without_password(database)}; "
                "`kernels-hub hub migrate --to` moves them there"
            )

    def _parsed(self, text: str) -> Marker:
        if text == FORMAT:
            return Marker()
        found = _ELSEWHERE.fullmatch(text) or _GIT_ELSEWHERE.fullmatch(text)
        if found is not None and any(found.groups()):
            return Marker(found[1] is not None, found[2], bool(found[3]))
        number = _NUMBER.match(text)
        if number is not None and int(number[1]) > NEWEST:
            raise KernelsHubError(
                f"{self.root} is a Hub's root of another format, {number[1]}, and this version knows those up to "
                f"{NEWEST}; use the version of kernels-hub that made it, or a newer one"
            )
        raise KernelsHubError(
            f"{self.root} is a Hub's root of another format ({text.strip()!r}, this version writes "
            f"{FORMAT.strip()!r}); use the version of kernels-hub that made it"
        )

    def read(self) -> Marker:
        """What FORMAT says now."""
        return self._parsed(self.marker.read_text())

    def read_address(self, *, begun: bool = False) -> Elsewhere:
        """What the file `database` says, or that of a migration; KernelsHubError where it says nothing."""
        path = self.begun if begun else self.address
        return elsewhere_of(path.read_text() if path.is_file() else "", path)

    @staticmethod
    def new_id() -> str:
        """The id of a root in a database that it is new to."""
        return uuid.uuid4().hex

    def write_address(self, elsewhere: Elsewhere, *, begun: bool = False) -> None:
        """Say where the rows are, once FORMAT says that they are elsewhere; or where a migration copies them."""
        path = self.begun if begun else self.address
        write_atomically(path, elsewhere_text(elsewhere), mode=0o600, durable=True)

    def write_marker(self, elsewhere: Elsewhere | None) -> None:
        """Say which database counts: the one that the file `database` names, or hub.sqlite."""
        before = self.read() if self.marker.is_file() else Marker()
        self.mark(replace(before, rows=elsewhere is not None))
        self.elsewhere = elsewhere

    def mark(self, marker: Marker) -> None:
        """Write FORMAT, in one step that is durable on return."""
        write_atomically(self.marker, str(marker), durable=True)

    def join(self, elsewhere: Elsewhere, identity: str, secret: bytes, objects: str) -> None:
        """Become one of the roots of a Hub whose git data is in object store and database, and hold what they share.

        FORMAT is written last: until then the root may be made to join again.
        """
        write_atomically(self.root / "secret", secret, mode=0o600, durable=True)
        write_atomically(self.root / "id", f"{identity}\n", durable=True)
        self.write_address(elsewhere)
        self.mark(Marker(rows=True, objects=objects, git=True))
        self.elsewhere = elsewhere

    def unmake(self) -> None:
        """Make a root that was made just now none again: its database was the wrong one."""
        self.marker.unlink(missing_ok=True)
        self.address.unlink(missing_ok=True)

    def _make_passing_folders(self) -> None:
        """Make the folders again that hold nothing of worth, and so may be missing."""
        for folder in (self.locks, self.incoming, self.multipart, self.orphans):
            try:
                folder.mkdir(exist_ok=True)
            except OSError as error:
                raise KernelsHubError(
                    f"{folder} is no folder, and cannot be made one: {error.strerror}; move away what lies there"
                ) from error

    def _create(self, root: Path, database: str | None, *, git: bool) -> None:
        if self.root.exists() and not self.root.is_dir():
            raise KernelsHubError(f"{root} is a file, not a folder; choose another --root")
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Two processes that start at once: one makes the root, the other finds it made.
        with locked(self.guard):
            if self.marker.is_file():
                self.read_marker(database)
                return
            known = {*_FOLDERS, "lock", "secret", "database", "using", "FORMAT.new", "lost+found"}
            half_written = ("secret.", ".secret.", ".FORMAT.", ".database.")
            names = sorted(entry.name for entry in self.root.iterdir())
            if strangers := [
                name for name in names if name not in known and not name.startswith(half_written)
            ]:
                raise KernelsHubError(
                    f"{root} is neither empty nor the root of a Hub: it holds {strangers[0]!r}; choose another folder"
                )
            for name in _FOLDERS:
                (self.root / name).mkdir(exist_ok=True)
            self.secret()
            elsewhere = None
            if database is not None:
                elsewhere = Elsewhere(without_password(checked(database)), self.new_id())
                self.write_address(elsewhere)
            self.mark(Marker(rows=elsewhere is not None, git=git and elsewhere is not None))
            self.elsewhere = elsewhere
            self.is_new = True
            flush_folder(self.root.parent)

    def objects(self) -> str | None:
        """The address of the object store that large files are in, as it is now; None where they are below the root."""
        return self.read().objects

    def keep_objects(self, address: str | None) -> None:
        """From now on, large files are in this object store, or below the root; one step, durable."""
        self.mark(replace(self.read(), objects=address))

    @contextmanager
    def store_stays(self, place: str | None) -> Iterator[None]:
        """Hold while an object and its row are written: `store_moves` waits for that.

        place: of the store that the object is in. Refuses (503) where the root keeps its objects elsewhere by now.
        """
        with ExitStack() as held:
            # Who moves the store holds the gate first: those who come later wait there, so that the others get done.
            with locked(self.root / "objects.gate", shared=True):
                held.enter_context(locked(self.root / "objects.lock", shared=True))
            if self.store_place() != place:
                raise Refusal(
                    503,
                    "The large files of this Hub have moved, and this server is about to be restarted; try again",
                    headers={"Retry-After": "10"},
                )
            yield

    @contextmanager
    def store_moves(self) -> Iterator[None]:
        """Hold while the root changes to another store: no object or row is written meanwhile."""
        with locked(self.root / "objects.gate"), locked(self.root / "objects.lock"):
            yield

    def store_place(self) -> str | None:
        """The bucket and prefix that objects are in, as it is now; None where they are below the root."""
        kept = self.objects()
        return None if kept is None else kept.partition("?")[0]

    def identity(self) -> str:
        """Who this root is to an object store: 32 hexadecimal digits, made once."""
        path = self.root / "id"
        with locked(self.guard):
            if not path.is_file():
                write_atomically(path, f"{uuid.uuid4().hex}\n", durable=True)
        if not re.fullmatch(r"[0-9a-f]{32}", text := path.read_text().strip()):
            raise KernelsHubError(
                f"{path} is damaged: expected 32 hexadecimal digits; put it back from a copy"
            )
        return text

    def secret(self) -> bytes:
        """The key that signs addresses; made once."""
        path = self.root / "secret"
        if not path.is_file():
            write_atomically(path, secrets.token_bytes(_SECRET_BYTES), mode=0o600, durable=True)
        if len(key := path.read_bytes()) != _SECRET_BYTES:
            raise KernelsHubError(
                f"{path} is damaged: it has {len(key)} bytes, expected {_SECRET_BYTES}; remove it and a new one is "
                "made (addresses of uploads that are under way then fail, and are asked for again)"
            )
        return key

    def repository(self, identifier: str) -> Path:
        """The folder of a repository, by its id (never by its name)."""
        return self.repositories / identifier

    def lock(self, identifier: str) -> Path:
        """The lock file of a repository."""
        return self.locks / identifier

    def temporary(self) -> Path:
        """A new path for a file or folder that is being written, on the disk of the root.

        What lies there belongs to this process, by a lock that it holds as long as it lives.
        """
        with self._own_guard:
            if self._own_folder is None or not self._own_folder.is_dir():
                folder = self.incoming / uuid.uuid4().hex
                # Against a sweep that sees the folder before its lock is taken.
                with locked(self.guard):
                    folder.mkdir()
                    self._own_lock = try_lock(folder / "lock")
                self._own_folder = folder
            return self._own_folder / uuid.uuid4().hex

    def close(self) -> None:
        """Remove this process's corner."""
        with self._own_guard:
            if self._own_folder is not None:
                shutil.rmtree(self._own_folder, ignore_errors=True)
            if self._own_lock is not None:
                os.close(self._own_lock)
            self._own_folder = self._own_lock = None
