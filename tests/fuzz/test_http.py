"""Requests, damaged in every part: through the application, and as bytes over a real socket."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import pytest

from tests.fuzz.harness import budget, run
from tests.fuzz.in_process import InProcess, RefusedRequest
from tests.fuzz.mutations import HOSTILE_TEXTS, mutate_bytes, mutate_json
from tests.running_hub import RunningHub, start_hub

REQUESTS: list[tuple[str, str, object]] = [
    ("GET", "/", None), ("GET", "/?q=attention&page=1", None), ("GET", "/health", None), ("GET", "/metrics", None),
    ("GET", "/api/whoami-v2", None), ("GET", "/api/models?author=ada&search=r&limit=5&cursor=1", None),
    ("GET", "/api/models/ada/r?blobs=true", None), ("GET", "/api/kernels/ada/r/refs", None),
    ("GET", "/api/models/ada/r/tree/main?recursive=True&limit=10", None),
    ("GET", "/api/models/ada/r/commits/main?limit=5", None), ("GET", "/api/users/ada/overview", None),
    ("GET", "/ada/r/resolve/main/.gitattributes", None), ("HEAD", "/kernels/ada/r/resolve/main/.gitattributes", None),
    ("GET", "/ada/r/blob/main/.gitattributes", None), ("GET", "/ada/r/compare?from=main&to=main&view=split", None),
    ("GET", "/api/models/ada/r/xet-write-token/main", None), ("GET", "/api/agent-harnesses", None),
    ("POST", "/api/validate-yaml", {"content": "---\nlicense: mit\n---\n", "repoType": "model"}),
    ("POST", "/api/models/ada/r/paths-info/main", {"paths": [".gitattributes"], "expand": False}),
    ("POST", "/api/models/ada/r/preupload/main", {"files": [{"path": "a.py", "size": 3, "sample": "aGk="}]}),
    ("POST", "/ada/r.git/info/lfs/objects/batch", {"operation": "upload", "objects": [{"oid": "ab" * 32, "size": 5}]}),
    ("PUT", "/api/models/ada/r/settings", {"visibility": "public", "gated": False}),
    ("POST", "/api/repos/create", {"name": "made", "type": "model", "private": False}),
]  # fmt: skip
HEADERS = (
    "range",
    "if-range",
    "if-none-match",
    "content-type",
    "authorization",
    "host",
    "x-forwarded-for",
    "accept",
    "cookie",
    "expect",
)
VALUES = (
    "bytes=0-", "bytes=-", "bytes=9-1", "bytes=" + "9" * 40 + "-", "application/json", "Basic eA==", "Basic \x80", "Bearer hf_x",
    "Bearer " + "x" * 5000, "[::1", "a b", "hub:99999999", "*", '"', "text/html;q=0", "", "100-continue",
)  # fmt: skip


def encode(request: tuple[str, str, object]) -> bytes:
    method, path, body = request
    return json.dumps({"method": method, "path": path, "headers": {}, "body": body}).encode()


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Another method, path, query, header or body; what results is JSON again."""
    request = json.loads(data)
    for _ in range(chance.choice((0, 1, 1, 2))):
        path, _, query = request["path"].partition("?")
        odd = chance.choice(HOSTILE_TEXTS)
        spelled = chance.choice(
            (quote(odd.encode("utf-8", "surrogatepass"), safe=""), "..", "%2e%2e", "%2F", "%00", "%ff", "%")
        )
        match chance.randrange(8):
            case 0:
                request["method"] = chance.choice(
                    ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "X" * 50)
                )
            case 1:
                parts = path.split("/")
                parts[chance.randrange(1, len(parts))] = spelled
                request["path"] = "/".join(parts) + (f"?{query}" if query else "")
            case 2:
                at = chance.randrange(1, len(path) + 1)
                request["path"] = path[:at] + spelled + path[at:] + (f"?{query}" if query else "")
            case 3:
                request["path"] = f"{path}?{query}&{query}&x={spelled}"
            case 4 if "=" in query:
                pairs = query.split("&")
                at = chance.randrange(len(pairs))
                pairs[at] = f"{pairs[at].split('=')[0]}={spelled}"
                request["path"] = f"{path}?{'&'.join(pairs)}"
            case 5:
                request["headers"][chance.choice(HEADERS)] = chance.choice(VALUES)
            case _:
                if request["body"] is not None:
                    body = mutate_json(json.dumps(request["body"]).encode(), chance)
                    request["raw"] = body.decode("latin-1")
    return json.dumps(request).encode()


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    with InProcess(tmp_path_factory.mktemp("http") / "root") as app:
        yield app


def test_any_request_is_answered_or_refused(app: InProcess) -> None:
    def ask(data: bytes) -> object:
        request = json.loads(data)
        body = request["raw"].encode("latin-1") if "raw" in request else json.dumps(request["body"]).encode()
        headers = {
            "content_type": "application/json",
            **{k.replace("-", "_"): v for k, v in request["headers"].items()},
        }
        token = "authorization" not in headers
        return app.ask(
            request["method"],
            request["path"],
            b"" if request["body"] is None else body,
            token=token,
            **headers,
        )

    run("http", [encode(request) for request in REQUESTS], mutate, ask, (RefusedRequest,), count=budget())


# -- over a socket


LIMITS = {
    "header_seconds": 1.0,
    "idle_seconds": 2.0,
    "max_requests_per_minute": 0,
    "max_bad_tokens_per_minute": 0,
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with start_hub(tmp_path_factory.mktemp("raw") / "root", limits=LIMITS) as running:
        headers = {"Authorization": f"Bearer {running.token('ada')}"}
        for kind in ("model", "kernel"):
            body = {"name": "r", "type": kind}
            httpx.post(f"{running.endpoint}/api/repos/create", json=body, headers=headers).raise_for_status()
        yield running


class RefusedBytesError(Exception):
    """A status of 4xx, no status at all, or a request that was cut off."""


def as_bytes(request: tuple[str, str, object], token: str) -> bytes:
    method, path, body = request
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
    return (
        f"{head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
    )


def peak_mib(process: int) -> float:
    return int(Path(f"/proc/{process}/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def test_any_bytes_are_answered_or_refused(hub: RunningHub) -> None:
    address = urlsplit(hub.endpoint)

    def ask(data: bytes) -> object:
        with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
            try:
                connection.sendall(data)
                connection.settimeout(0.04)  # a request that was cut waits for its end, and is given up
                answer = connection.recv(65536)
            except (ConnectionError, TimeoutError) as error:
                raise RefusedBytesError from error
        status = answer[9:12]
        assert not status.startswith(b"5"), answer[:500]
        if status[:1] not in (b"2", b"3"):
            raise RefusedBytesError(status)
        return status

    before = peak_mib(hub.process.pid)
    seeds = [as_bytes(request, hub.token("ada")) for request in REQUESTS]
    run("http_bytes", seeds, mutate_bytes, ask, (RefusedBytesError,), count=budget())
    assert httpx.get(f"{hub.endpoint}/health").status_code == 200
    assert peak_mib(hub.process.pid) - before < 200
    assert "Traceback" not in hub.output()
