"""A Hub's application in this process, asked without a socket: thousands of requests a second."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Self

from kernels_hub.server.app import App
from kernels_hub.server.hub import Hub
from kernels_hub.server.limits import Limits


class RefusedRequest(Exception):
    """An answer of 4xx."""


class InProcess:
    """The application over a new root, with the user ada, who owns the model and the kernel repository ada/r."""

    def __init__(self, root: Path) -> None:
        limits = Limits(
            max_requests_per_minute=0, max_bad_tokens_per_minute=0, large_from_bytes=1024, part_bytes=1 << 16
        )
        self.hub = Hub(root, limits=limits, create=True)
        self.hub.accounts.add_user("ada")
        self.token = self.hub.accounts.new_token("ada", "write")[0]
        self.repository = self.hub.changes.create("model", "ada", "r", private=False, author="ada")
        self.hub.changes.create("kernel", "ada", "r", private=False, author="ada")
        self._app, self._loop = App(self.hub), asyncio.new_event_loop()
        self._lifespan: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._task = self._loop.create_task(self._app({"type": "lifespan"}, self._lifespan.get, self._ignore))
        self._lifespan.put_nowait({"type": "lifespan.startup"})
        self._loop.run_until_complete(asyncio.sleep(0))

    async def _ignore(self, message: Any) -> None:
        pass

    def ask(
        self, method: str, path: str, body: bytes = b"", *, token: bool = True, **headers: str
    ) -> tuple[int, bytes]:
        """The status and body of an answer. Raises RefusedRequest for 4xx, AssertionError for 5xx."""
        sent = {"host": "hub", **headers, **({"authorization": f"Bearer {self.token}"} if token else {})}
        raw, _, query = path.partition("?")
        scope: dict[str, Any] = {
            "type": "http", "method": method, "path": raw, "raw_path": raw.encode(), "query_string": query.encode(),
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 1), "server": ("hub", 80), "scheme": "http", "http_version": "1.1",
        }  # fmt: skip
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])
        found: dict[str, Any] = {"status": 0, "body": b"", "headers": {}}

        async def receive() -> dict[str, Any]:
            return next(messages, {"type": "http.disconnect"})

        async def send(message: Any) -> None:
            found["status"] = message.get("status", found["status"])
            found["body"] += message.get("body", b"")
            found["headers"].update(message.get("headers", ()))

        self._loop.run_until_complete(self._app(scope, receive, send))
        status = found["status"]
        assert 200 <= status < 500, (status, method, path[:500], body[:500], found["body"][:300])
        if status >= 400:
            assert found["headers"].get(b"x-error-message"), (status, method, path[:500])
            raise RefusedRequest(found["body"].decode())
        return status, found["body"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lifespan.put_nowait({"type": "lifespan.shutdown"})
        self._loop.run_until_complete(self._task)
        self._loop.close()
