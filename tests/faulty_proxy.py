"""A proxy on a real socket in front of a Hub: it records what it is sent, and answers wrongly on cue.

with FaultyProxy(hub.endpoint) as proxy:
    proxy.fault = lambda request: Cut(100) if "/objects" in request.path else None
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""

    @property
    def token(self) -> str | None:
        """What stands behind "Bearer"."""
        return self.headers.get("authorization", "").removeprefix("Bearer ") or None


@dataclass(frozen=True)
class Cut:
    """So many bytes of the body, then the connection is gone."""

    bytes: int


@dataclass(frozen=True)
class Status:
    """A status in place of the answer."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Changed:
    """Another body, under the headers of the real one."""

    change: Callable[[bytes], bytes]


class Gone:
    """No answer at all."""


class Endless:
    """A body without an end."""


def json_changed(change: Callable[[Any], Any]) -> Changed:
    """A document changed in place, or replaced by what `change` returns."""

    def body(content: bytes) -> bytes:
        document = json.loads(content)
        changed = change(document)
        return json.dumps(document if changed is None else changed).encode()

    return Changed(body)


Fault = Cut | Status | Changed | Gone | Endless | None


class FaultyProxy:
    """Listens on a port of its own until it is closed; `target` and `fault` may be set at any time."""

    def __init__(self, target: str, fault: Callable[[Seen], Fault] = lambda _: None) -> None:
        self.target, self.fault = target, fault
        self.seen: list[Seen] = []
        self.down = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass(self) -> None:
                outer._pass(self)

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _pass

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def paths(self, word: str = "") -> list[str]:
        """The paths that were asked for, with the query, of those that have a word."""
        return [one.path for one in self.seen if word in one.path]

    def _pass(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length") or 0)
        sent = handler.rfile.read(length) if length else None
        request = Seen(
            handler.command, handler.path, {name.lower(): value for name, value in handler.headers.items()}
        )
        self.seen.append(request)
        fault = Gone() if self.down else self.fault(request)
        if isinstance(fault, Gone):
            handler.close_connection = True
            return
        if isinstance(fault, Status):
            self._answer(handler, fault.status, {**fault.headers, "Content-Length": "0"}, b"")
            return
        where = urlsplit(self.target)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
        try:
            headers = {name: value for name, value in handler.headers.items() if name.lower() != "host"}
            connection.request(handler.command, handler.path, sent, {**headers, "Connection": "close"})
            response = connection.getresponse()
            body = response.read()
        except OSError:
            handler.close_connection = True
            return
        finally:
            connection.close()
        kept = {
            name: value
            for name, value in response.getheaders()
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server")
        }
        size = str(len(body)) if handler.command != "HEAD" else response.getheader("Content-Length", "0")
        match fault:
            case Cut(count):
                handler.close_connection = True
                self._answer(handler, response.status, {**kept, "Content-Length": size}, body[:count])
            case Changed(change):
                body = change(body) if handler.command != "HEAD" else body
                size = str(len(body)) if handler.command != "HEAD" else size
                self._answer(handler, response.status, {**kept, "Content-Length": size}, body)
            case Endless():
                handler.close_connection = True
                self._answer(handler, response.status, {**kept, "Connection": "close"}, body)
                with suppress(OSError):
                    while True:
                        handler.wfile.write(b" " * (1 << 20))
            case _:
                self._answer(handler, response.status, {**kept, "Content-Length": size}, body)

    @staticmethod
    def _answer(handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes) -> None:
        with suppress(OSError):
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(body)
            handler.wfile.flush()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
