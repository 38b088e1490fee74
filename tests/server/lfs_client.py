"""An LFS client by hand, which shows each step of an upload, and a store in trouble between a Hub and its objects."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from tests.running_hub import RunningHub

PART = 5 << 20


def oid_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Lfs:
    """Uploads of one user to one kernel repository."""

    hub: RunningHub
    token: str
    repository: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def create(self, **options: Any) -> Self:
        organisation, name = self.repository.split("/")
        body = {"name": name, "organization": organisation, "type": "kernel", **options}
        answer = httpx.post(f"{self.hub.endpoint}/api/repos/create", json=body, headers=self.headers)
        assert answer.status_code == 200, answer.text
        return self

    def batch(self, *contents: bytes, transfers: list[str] | None = None) -> httpx.Response:
        objects = [{"oid": oid_of(content), "size": len(content)} for content in contents]
        return httpx.post(
            f"{self.hub.endpoint}/kernels/{self.repository}.git/info/lfs/objects/batch",
            json={
                "operation": "upload",
                "objects": objects,
                "transfers": transfers or ["basic", "multipart"],
            },
            headers=self.headers,
            timeout=60,
        )

    def actions(self, content: bytes) -> dict[str, Any]:
        """What to do to upload a content; nothing if the repository has it."""
        answer = self.batch(content)
        assert answer.status_code == 200, answer.text
        return answer.json()["objects"][0].get("actions", {})

    def end(self, actions: dict[str, Any], content: bytes, parts: list[str] | None = None) -> httpx.Response:
        """The call to the Hub that ends an upload."""
        body: dict[str, Any] = {"oid": oid_of(content), "size": len(content)}
        href = actions["verify"]["href"]
        if parts is not None:
            body = {
                "oid": oid_of(content),
                "parts": [{"partNumber": i, "etag": tag} for i, tag in enumerate(parts, 1)],
            }
            href = actions["upload"]["href"]
        return httpx.post(href, json=body, headers=self.headers, timeout=120)

    def upload(self, content: bytes, sent: bytes | None = None) -> httpx.Response:
        """Upload a content, or something else in its name; the last answer."""
        actions, sent = self.actions(content), content if sent is None else sent
        header = actions["upload"].get("header", {})
        if not header:
            answer = httpx.put(actions["upload"]["href"], content=sent, timeout=60)
            return self.end(actions, content) if answer.status_code == 200 else answer
        tags = []
        size = int(header["chunk_size"])
        for number in range(len(header) - 1):
            piece = sent[number * size : (number + 1) * size]
            answer = httpx.put(header[str(number + 1)], content=piece, timeout=60)
            if answer.status_code != 200:
                return answer
            tags.append(answer.headers["etag"])
        return self.end(actions, content, tags)

    def commit(self, path: str, content: bytes) -> httpx.Response:
        value = {"path": path, "algo": "sha256", "oid": oid_of(content), "size": len(content)}
        lines = (
            {"key": "header", "value": {"summary": "m"}},
            {"key": "lfsFile", "value": value},
        )
        return httpx.post(
            f"{self.hub.endpoint}/api/kernels/{self.repository}/commit/main",
            content="\n".join(json.dumps(line) for line in lines),
            headers=self.headers,
            timeout=60,
        )

    def url(self, path: str) -> str:
        return f"{self.hub.endpoint}/kernels/{self.repository}/resolve/main/{path}"

    def get(self, path: str, *, follow: bool = True, **headers: str) -> httpx.Response:
        return httpx.get(
            self.url(path), headers={**self.headers, **headers}, follow_redirects=follow, timeout=60
        )

    def has(self, content: bytes) -> bool:
        """Whether the repository has a large file, by its row."""
        with self.hub.administer() as opened:
            found = opened.repositories.find("kernel", *self.repository.split("/"))
            assert found is not None
            return opened.large_files.size(found, oid_of(content)) is not None


Rule = Callable[[str, str, str], str | None]
"""Method, path and query of a request -> what goes wrong, or None."""
_ERROR = '<?xml version="1.0"?><Error><Code>{0}</Code><Message>{0}</Message></Error>'


class Trouble:
    """A proxy before a store. `rule` says what goes wrong:

    "500", "503 SlowDown", "403 InvalidAccessKeyId", "200 InternalError": this answer, with an error in it. "nothing": 200
    without a body. "drop": the connection ends without an answer.
    "late": an answer after `seconds`. "short": half of the body. "other": a body with one byte changed. "longer": a body,
    or the length that it is said to have, with one byte more. "etag": another ETag. "unsaid": the store does it, and the
    answer has no body. "unkept": an ETag, and the store does nothing. "twice": the store does it two times. "lost": the store does it, and the connection ends without
    the answer. `moved_to`: it redirects there.
    """

    def __init__(self, store: str, seconds: float = 3.0) -> None:
        self.rule: Rule = lambda method, path, query: None
        self.seen: list[tuple[str, str, str]] = []
        self.ranges: list[str | None] = []
        self.released = threading.Event()
        self.moved_to = ""
        trouble = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def answer(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                trouble.seen.append((self.command, parts.path, parts.query))
                trouble.ranges.append(self.headers.get("range"))
                what = trouble.rule(self.command, parts.path, parts.query)
                if trouble.moved_to:
                    where = {"location": trouble.moved_to + self.path, "x-amz-bucket-region": "elsewhere-1"}
                    self.reply(307, where, _ERROR.format("TemporaryRedirect").encode())
                    return
                if what == "drop":
                    self.close_connection = True
                    return
                if what and what[0].isdigit():
                    status, _, code = what.partition(" ")
                    self.reply(int(status), {}, _ERROR.format(code or "InternalError").encode())
                    return
                if what == "nothing":
                    self.reply(200, {}, b"")
                    return
                if what == "unkept":
                    self.reply(200, {"etag": '"00000000000000000000000000000000"'}, b"")
                    return
                if what == "late":
                    trouble.released.wait(seconds)
                headers = {
                    key: value
                    for key, value in self.headers.items()
                    # The host stays as it was signed.
                    if key.lower() not in ("connection", "content-length", "transfer-encoding")
                }
                for _ in range(2 if what == "twice" else 1):
                    answer = httpx.request(
                        self.command, store + self.path, content=body, headers=headers, timeout=60
                    )
                if what == "lost":
                    self.close_connection = True
                    return
                content = answer.content
                if what == "other" and content:
                    content = bytes([content[0] ^ 1]) + content[1:]
                given = dict(answer.headers)
                if what == "longer":
                    content += b"x"
                    given["content-length"] = str(int(given.get("content-length", 0)) + 1)
                elif what == "etag":
                    given["etag"] = '"00000000000000000000000000000000"'
                elif what == "unsaid":
                    content = b""
                self.reply(answer.status_code, given, content, short=what == "short")

            def reply(self, status: int, headers: dict[str, str], body: bytes, short: bool = False) -> None:
                self.send_response(status)
                length = headers.get("content-length", "0") if self.command == "HEAD" else str(len(body))
                for name, value in headers.items():
                    if name.lower() not in (
                        "content-length",
                        "connection",
                        "transfer-encoding",
                        "date",
                        "server",
                    ):
                        self.send_header(name, value)
                self.send_header("Content-Length", length)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body[: len(body) // 2] if short else body)
                if short:
                    self.close_connection = True

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def times(self, count: int, what: str, on: Callable[[str, str, str], bool]) -> None:
        """What goes wrong so many times, with the requests that `on` is true of."""
        left = [count]
        guard = threading.Lock()

        def rule(method: str, path: str, query: str) -> str | None:
            with guard:
                if on(method, path, query) and left[0] > 0:
                    left[0] -= 1
                    return what
            return None

        self.rule = rule

    def well(self) -> None:
        self.rule = lambda method, path, query: None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
