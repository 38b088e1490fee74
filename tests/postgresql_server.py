"""A PostgreSQL server of the tests' own, by the binaries of this machine: one a session, one database a root.

with PostgresqlServer() as server:
    address = server.new_database()
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

USER = "hub"
_SEARCHED = "/usr/lib/postgresql"


def binaries() -> Path | None:
    """The folder of `initdb` and `postgres`; None where there is none."""
    if (found := shutil.which("initdb")) and shutil.which("postgres"):
        return Path(found).resolve().parent
    folders = sorted(Path(_SEARCHED).glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    return folders[-1].parent if folders else None


def missing() -> str | None:
    """What a server here needs and is not there."""
    if importlib.util.find_spec("psycopg") is None:
        return "needs psycopg, of the extra `postgresql`"
    if binaries() is None:
        return "needs initdb and postgres on PATH, or Debian's package postgresql"
    if os.getuid() == 0 and (_ordinary_user() is None or shutil.which("setpriv") is None):
        return "needs a user other than root and setpriv, as PostgreSQL does not run as root"
    return None


class PostgresqlServer:
    """A server on a random port of 127.0.0.1 with its data below the memory's file system, where there is one.

    It flushes as it does elsewhere; only that no disk makes the tests wait.

    memory: what it keeps of its tables; PostgreSQL's default is 128MB.
    """

    def __init__(self, memory: str = "32MB") -> None:
        found = binaries()
        assert found is not None
        self._binaries = found
        self._numbers = itertools.count()
        shared = Path("/dev/shm")
        place = shared if shared.is_dir() and os.access(shared, os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="kernels-hub-pg-", dir=place))
        self.folder.chmod(0o755)
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        self.data.mkdir(mode=0o700)
        self.log.touch()
        if os.getuid() == 0:
            for path in (self.folder, self.data, self.log):
                shutil.chown(path, _ordinary_user())
        self._run(
            "initdb", "-D", str(self.data), "-A", "trust", "-U", USER, "--no-sync", "-E", "UTF8", "--locale=C"
        )
        self.port = _free_port()
        self._memory = memory
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    # -- its life

    def start(self, *options: str) -> None:
        """Start it, unless it runs, and wait until it takes connections."""
        if self._process is not None:
            return
        command = ["-D", str(self.data), "-p", str(self.port), "-k", str(self.folder)]
        settings = {"listen_addresses": "127.0.0.1", "shared_buffers": self._memory, "max_connections": "200"}
        command += [f"--{name}={value}" for name, value in settings.items()]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_as_ordinary_user(), str(self._binaries / "postgres"), *command, *options],
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
            )
        end = time.monotonic() + 60
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(Exception):
                self.execute("SELECT 1")
                return
            time.sleep(0.02)
        raise AssertionError(f"PostgreSQL does not start:\n{self.log.read_text()[-2000:]}")

    @property
    def pid(self) -> int:
        """Its process, the parent of those that serve connections."""
        assert self._process is not None, "it does not run"
        return self._process.pid

    def kill(self) -> None:
        """kill -9 of the server and all its processes, as a loss of power would end them."""
        if self._process is None:
            return
        # The processes that serve connections are its children, each in a session of its own.
        every = [self._process.pid, *_children(self._process.pid)]
        for pid in every:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        end = time.monotonic() + 30
        while any(_is_there(pid) for pid in every) and time.monotonic() < end:
            time.sleep(0.01)
        self._process = None

    def stop(self) -> None:
        """End it at once, and remove its files."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- its databases

    def new_database(self) -> str:
        """The address of a new, empty database."""
        name = f"hub{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.address(name)

    def drop(self, address: str) -> None:
        """Remove a database, whoever is connected."""
        self.execute(f"DROP DATABASE IF EXISTS {address.rpartition('/')[2]} WITH (FORCE)")

    def address(self, name: str, user: str = USER) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{name}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run one statement as the superuser."""
        import psycopg

        with psycopg.connect(self.address(database), autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*_as_ordinary_user(), str(self._binaries / program), *arguments],
            capture_output=True,
            text=True,
            cwd=self.folder,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def _children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(status.parent.name))
    return found


def _is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _ordinary_user() -> str | None:
    import pwd

    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            pwd.getpwnam(name)
            return name
    return None


def _as_ordinary_user() -> list[str]:
    """What comes before a command; where the system can, it ends with these tests, however they end."""
    if shutil.which("setpriv") is None:
        return []
    user = _ordinary_user() if os.getuid() == 0 else None
    return ["setpriv", *((f"--reuid={user}", "--clear-groups") if user else ()), "--pdeathsig=QUIT", "--"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
