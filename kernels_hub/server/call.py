"""A request as handlers see it, the routes that lead to them, and the answers that they give.

A handler is a plain function, which runs in a thread and may block, or a coroutine where bodies are
streamed. Paths are matched as they were sent: `%2F` inside a revision or file stays inside its segment.
"""

from __future__ import annotations

import base64
import binascii
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response

from kernels_hub.server.access import Caller
from kernels_hub.server.hub import Hub
from kernels_hub.server.refusal import bad_request, too_large, unauthorized
from kernels_hub.server.repositories import Repository

REPOSITORY_TYPES = {"models": "model", "kernels": "kernel"}
_SEGMENT = re.compile(r"\{(\w+)(?::([^{}]+))?\}")


def json_response(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    content = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(content, status, dict(headers or {}), "application/json")


@dataclass
class Call:
    """One request: the Hub, what was asked, by whom."""

    hub: Hub
    request: Request
    params: Mapping[str, str]
    threads: CapacityLimiter
    body: bytes = b""
    user: str | None = field(default=None)
    """The authenticated user, for the log."""

    @cached_property
    def caller(self) -> Caller:
        """Who asks: nobody without a token; 401 for a token that is none. Blocks."""
        header = self.request.headers.get("authorization", "")
        if not header:
            return Caller()
        scheme, _, value = header.partition(" ")
        secret = value.strip()
        if scheme.lower() == "basic":
            try:
                secret = base64.b64decode(secret, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                raise unauthorized() from None
        elif scheme.lower() != "bearer":
            raise unauthorized()
        if (token := self.hub.accounts.authenticate(secret)) is None:
            raise unauthorized()
        self.user = token.user
        return Caller(token)

    def json(self) -> dict[str, Any]:
        """The body as a JSON object, or 400."""
        try:
            document = json.loads(self.body or b"{}")
        except (ValueError, RecursionError):
            raise bad_request("The body is not JSON") from None
        if not isinstance(document, dict):
            raise bad_request("The body is not a JSON object")
        return document

    def visible(self) -> Repository:
        """The repository that the path names, if the caller may see it."""
        params = self.params
        return self.hub.access.visible(
            self.caller, REPOSITORY_TYPES[params["type"]], params["namespace"], params["name"]
        )

    def writable(self, *, admin: bool = False) -> Repository:
        """The repository that the path names, if the caller may change it."""
        params = self.params
        return self.hub.access.writable(
            self.caller, REPOSITORY_TYPES[params["type"]], params["namespace"], params["name"], admin=admin
        )

    @property
    def base(self) -> str:
        """This server's address as the caller knows it."""
        url = self.request.base_url
        return f"{url.scheme}://{url.netloc}"

    def query(self, name: str, default: str = "") -> str:
        """A parameter of the query."""
        return self.request.query_params.get(name, default)

    def flag(self, name: str) -> bool:
        """Whether a parameter of the query is set and not false."""
        return self.query(name).lower() not in ("", "0", "false", "no")

    def number(self, name: str, default: int, most: int) -> int:
        """A whole number from the query, at least 1 and at most `most`."""
        text = self.query(name)
        if text and not (text.isascii() and text.isdigit() and len(text) < 10):
            raise bad_request(f"{name} must be a whole number")
        return max(1, min(int(text or default), most))

    async def run(self, function: Callable[..., Any], *values: object) -> Any:
        """Run something that blocks, in a thread."""
        return await to_thread.run_sync(function, *values, limiter=self.threads)

    async def read_body(self, limit: int) -> bytes:
        """The whole body; 413 beyond the limit."""
        content = bytearray()
        async for chunk in self.request.stream():
            content += chunk
            if len(content) > limit:
                raise too_large(f"The body is larger than {limit} bytes")
        return bytes(content)


Handler = Callable[[Call], Response] | Callable[[Call], Awaitable[Response]]


class Route:
    """A method and a path with parts.

    `{name}` is one segment, `{name:rest}` all that follows, `{name:a|b}` what that pattern matches.
    """

    def __init__(self, methods: str, template: str, handler: Handler, **fixed: str) -> None:
        self.methods = frozenset(methods.split())
        self.template = template
        self.handler = handler
        self.fixed = fixed
        self.streams = inspect.iscoroutinefunction(handler)
        pattern, last = "", 0
        for match in _SEGMENT.finditer(template):
            kind = match[2]
            inner = ".+" if kind == "rest" else f"(?:{kind})" if kind else "[^/]+"
            pattern += re.escape(template[last : match.start()]) + f"(?P<{match[1]}>{inner})"
            last = match.end()
        self.pattern = re.compile(pattern + re.escape(template[last:]))

    def match(self, raw_path: str) -> dict[str, str] | None:
        """The parts of a path as it was sent, decoded; None for a path of another form."""
        match = self.pattern.fullmatch(raw_path)
        if match is None:
            return None
        try:
            return {**self.fixed, **{k: unquote(v, errors="strict") for k, v in match.groupdict().items()}}
        except UnicodeDecodeError:
            raise bad_request("The path is not UTF-8") from None
