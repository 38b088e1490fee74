"""Every Hub of the tests as three servers with roots of their own behind nginx: `pytest --hub-servers 3`.

They share rows, objects and git data, which are in PostgreSQL and an object store. A test that starts a server starts
all of them, and talks to nginx. One that says itself what its server is like (workers, addresses, an environment) gets
the one that it asks for.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.nginx import SERVERS, nginx
from tests.running_hub import Request, RunningHub

_SHARED = frozenset(("limits", "require_token"))
"""Options that all servers of a Hub can have."""


def start(root: Path, options: dict[str, Any]) -> RunningHub | None:
    """Several servers of a root that is new, or that they served before; None where a test wants others."""
    is_theirs = not (root / "FORMAT").exists() or _other(root, 1).exists()
    return SeveralServers(root, **options) if is_theirs and options.keys() <= _SHARED else None


class SeveralServers(RunningHub):
    """Servers of one Hub, the first of which has the root of that name, and nginx before them."""

    def __init__(self, root: Path, **options: Any) -> None:
        self._others: list[RunningHub] = []
        self._proxy = ExitStack()
        super().__init__(root, trusted_proxies="127.0.0.1", **options)
        try:
            for number in range(1, SERVERS):
                self._others.append(
                    RunningHub(
                        _other(root, number),
                        trusted_proxies="127.0.0.1",
                        **{**options, "database": self.database, "objects": self.objects},
                    )
                )
            endpoints = [self.endpoint, *(other.endpoint for other in self._others)]
            self.endpoint = self._proxy.enter_context(nginx(_free_folder(root), endpoints))
        except BaseException:
            self.kill()
            raise

    @property
    def roots(self) -> list[Path]:
        """The roots of all its servers."""
        return [self.root, *(other.root for other in self._others)]

    def logged(self) -> str:
        """What all of them logged, one after the other."""
        return super().logged() + "".join(other.logged() for other in self._others)

    def requests(self) -> list[Request]:
        """Every request that any of them answered, in the order of the log's times."""
        return sorted(super().requests(), key=lambda request: request.time)

    def stop(self) -> None:
        """End nginx, then the servers."""
        self._proxy.close()
        super().stop()
        for other in self._others:
            other.stop()

    def kill(self) -> None:
        """kill -9 of all servers."""
        self._proxy.close()
        super().kill()
        for other in self._others:
            other.kill()


def _other(root: Path, number: int) -> Path:
    return root.parent / f"{root.name}.server{number}"


def _free_folder(root: Path) -> Path:
    return next(
        folder
        for number in range(1000)
        if not (folder := root.parent / f"{root.name}.nginx{number}").exists()
    )
