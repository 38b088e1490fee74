"""A real server process of a Hub of one's own, for tests.

with start_hub(tmp_path / "hub") as hub:
    api = HfApi(endpoint=hub.endpoint, token=hub.token("ada"))
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kernels_hub.server.hub import Hub
from tests import hub_databases
from tests.object_store import objects_for

_ANNOUNCED = re.compile(r"kernels-hub serve: (https?://\S+) root ")
_ACCESS = re.compile(
    r"(?P<time>\S+ \S+) access (?P<client>\S+) (?P<user>\S+) (?P<method>\S+) (?P<path>\S+) (?P<status>\d+) (?P<sent>\d+) "
)


@dataclass(frozen=True)
class Request:
    """One line of the access log. `path` is as it was sent, without the query."""

    method: str
    path: str
    status: int
    user: str | None
    sent: int
    time: str = field(compare=False, repr=False, default="")


class RunningHub:
    """A server process (a session of its own), the root that it serves, and its administration."""

    def __init__(
        self, root: Path, *, workers: int = 1, env: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self.root = root
        self.log = root.parent / f"{root.name}.log"
        self._start_of_log = self.log.stat().st_size if self.log.exists() else 0
        self._tokens: dict[tuple[str, str, str | None], str] = {}
        self._ended = False
        if options.get("database") is None:
            options["database"] = hub_databases.new_address(root)
        self.database: str | None = options["database"]
        self.objects = options.setdefault("objects", objects_for(root))
        settings = json.dumps({"workers": workers, **options})
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kernels_hub.server", str(root)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={**os.environ, "KERNELS_HUB_SERVE_OPTIONS": settings, **(env or {})},
            )
        try:
            self.endpoint = self._announced()
            self._wait_until_it_serves()
        except BaseException:
            self.kill()
            raise

    def _announced(self) -> str:
        assert self.process.stdout is not None
        guard = threading.Timer(60, self.process.kill)
        guard.start()
        try:
            for line in self.process.stdout:
                if match := _ANNOUNCED.match(line):
                    return match[1]
        finally:
            guard.cancel()
        raise AssertionError(f"the server did not start:\n{self.output()}")

    def _wait_until_it_serves(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with urllib.request.urlopen(self.endpoint + "/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(0.02)
        raise AssertionError(f"the server does not answer:\n{self.output()}")

    # -- administration: on the root, as the command line does it

    def administer(self) -> Hub:
        """The root, opened beside the server; a context manager."""
        return Hub(self.root, objects=self.objects)

    def token(self, user: str, role: str = "write", *, repository: str | None = None) -> str:
        """A token of a user, who is added first if there is none of that name."""
        key = (user, role, repository)
        if key not in self._tokens:
            with self.administer() as hub:
                if hub.accounts.find(user) is None:
                    hub.accounts.add_user(user)
                self._tokens[key] = hub.accounts.new_token(user, role, repository=repository)[0]
        return self._tokens[key]

    def organisation(self, name: str, admin: str, *, trusted: bool = False) -> None:
        """Add an organisation; its admin is added too if there is no such user."""
        with self.administer() as hub:
            if hub.accounts.find(admin) is None:
                hub.accounts.add_user(admin)
            hub.accounts.add_organisation(name, admin, trusted=trusted)

    # -- what it did

    @property
    def roots(self) -> list[Path]:
        """The roots of all its servers."""
        return [self.root]

    def logged(self) -> str:
        """The log of this process so far."""
        with self.log.open("rb") as file:
            file.seek(self._start_of_log)
            return file.read().decode("utf-8", "replace")

    def output(self, until: str = "", seconds: float = 20.0) -> str:
        """The log of this process so far, once it holds `until`: a line is written just after its answer was sent."""
        end = time.monotonic() + seconds
        while True:
            found = self.logged()
            if until in found or time.monotonic() > end:
                return found
            time.sleep(0.02)

    def requests(self) -> list[Request]:
        """Every request that was answered, except for the checks of health."""
        # Lines are written after their answers: until none comes any more.
        seen, before = self.output(), ""
        while seen != before:
            time.sleep(0.03)
            seen, before = self.output(), seen
        found = []
        for line in seen.splitlines():
            if (match := _ACCESS.match(line)) and match["path"] != "/health":
                user = None if match["user"] == "-" else match["user"]
                status, sent = int(match["status"]), int(match["sent"])
                found.append(Request(match["method"], match["path"], status, user, sent, match["time"]))
        return found

    # -- its end

    def stop(self) -> None:
        """End the server as its administrator would, and wait for it."""
        if not self._ended:
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"the server does not stop:\n{self.output()}") from None
            self._finish()

    def kill(self) -> None:
        """kill -9 of the server and all its workers."""
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._finish()

    def _finish(self) -> None:
        self._ended = True
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


several_servers: Callable[[Path, dict[str, Any]], RunningHub | None] | None = None
"""With `--hub-servers`, starts several servers where a test says nothing of its own about them."""


def start_hub(
    root: Path, *, workers: int = 1, env: Mapping[str, str] | None = None, **options: Any
) -> RunningHub:
    """Start a server on a root, which is made if it is not there, and wait until it serves.

    env: more environment variables of the server.
    options: other fields of `kernels_hub.server.process.Serve`; `limits` is a dictionary.
    """
    several = None
    if several_servers is not None and workers == 1 and env is None:
        several = several_servers(root, options)
    return several or RunningHub(root, workers=workers, env=env, **options)
