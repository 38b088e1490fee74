"""A request as handlers see it, the routes that lead to them, and the answers that they give.

A handler is a plain function, which runs in a thread and may block, or a coroutine where bodies are
streamed. Paths are matched as they were sent: `%2F` inside a revision or file stays inside its segment.
"""

from __future__ import annotations

import base64
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response

from kernels_hub.errors import MetadataError
from kernels_hub.parsing import parse_json
from kernels_hub.server.access import Caller
from kernels_hub.server.audit import acting
from kernels_hub.server.hub import Hub
from kernels_hub.server.refusal import bad_request, too_large, unauthorized
from kernels_hub.server.repositories import Repository
from kernels_hub.server.sessions import Session, cookie_over

REPOSITORY_TYPES = {"models": "model", "kernels": "kernel"}
_HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_COOKIE = re.compile(r"[0-9a-f]{64}")
_MOST_TOKEN = 1024
_MOST_PARAMETERS = 1000
Kind = TypeVar("Kind")
_SEGMENT = re.compile(r"\{(\w+)(?::([^{}]+))?\}")


def json_response(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    content = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(content, status, dict(headers or {}), "application/json")


@dataclass
class HubRequest:
    """One request: the Hub, what was asked, by whom."""

    hub: Hub
    request: Request
    params: Mapping[str, str]
    threads: CapacityLimiter
    body: bytes = b""
    user: str | None = field(default=None)
    """The authenticated user, for the log."""
    guessed: bool = False
    """Whether a token was given that is none, other than in the Authorization header; it counts as one there does."""

    @property
    def cookie(self) -> str:
        """The name of the cookie that a session has here."""
        return cookie_over(self.request.scope["scheme"])

    @cached_property
    def session(self) -> Session | None:
        """The session of the browser's cookie, for pages and what they show; no other request looks at it. Blocks."""
        secret = self.request.cookies.get(self.cookie, "")
        session = self.hub.sessions.find(secret) if _COOKIE.fullmatch(secret) else None
        if session is not None:
            self.user = session.token.user
        return session

    @cached_property
    def viewer(self) -> Caller:
        """Who looks at pages and loads files: the caller, or whoever is signed in. Nothing is changed by these."""
        caller = self.caller
        return Caller(self.session.token) if caller.token is None and self.session is not None else caller

    @cached_property
    def caller(self) -> Caller:
        """Who asks: nobody without a token; 401 for a token that is none. Blocks."""
        header = self.request.headers.get("authorization", "")
        if not header:
            return Caller()
        scheme, _, value = header.partition(" ")
        secret = value.strip()
        if len(secret) > _MOST_TOKEN:
            raise unauthorized()
        if scheme.lower() == "basic":
            try:
                secret = base64.b64decode(secret, validate=True).decode().partition(":")[2]
            except ValueError:  # what is not ASCII, not base64 or not UTF-8
                raise unauthorized() from None
        elif scheme.lower() != "bearer":
            raise unauthorized()
        if (token := self.hub.accounts.authenticate(secret)) is None:
            raise unauthorized()
        self.user = token.user
        return Caller(token)

    def parse(self, kind: type[Kind]) -> Kind:
        """The body, JSON, as one of the types of `bodies`; 400 for anything else. No body is an empty object."""
        limit = self.hub.limits.max_json_bytes
        try:
            return parse_json(self.body or b"{}", kind, where="the JSON body", most_bytes=limit)
        except MetadataError as error:
            raise bad_request(str(error)) from None

    def visible(self) -> Repository:
        """The repository that the path names, if the caller may see it."""
        return self._seen_by(self.caller)

    def viewable(self) -> Repository:
        """The repository that the path names, if the viewer may see it."""
        return self._seen_by(self.viewer)

    def _seen_by(self, caller: Caller) -> Repository:
        params = self.params
        return self.hub.access.visible(
            caller, REPOSITORY_TYPES[params["type"]], params["namespace"], params["name"]
        )

    def writable(self, *, admin: bool = False) -> Repository:
        """The repository that the path names, if the caller may change it."""
        params = self.params
        return self.hub.access.writable(
            self.caller, REPOSITORY_TYPES[params["type"]], params["namespace"], params["name"], admin=admin
        )

    def acting(self) -> AbstractContextManager[None]:
        """What is changed inside is recorded in the audit log as done by the caller."""
        token = self.viewer.token
        client = self.request.client
        source = f"token {token.id if token else '-'} from {client.host if client else '-'}"
        return acting(token.user if token else "", source)

    @property
    def base(self) -> str:
        """This server's address as the caller knows it."""
        host = self.request.headers.get("host")
        if host is None:
            name, port = self.request.scope.get("server") or ("localhost", None)
            host = f"[{name}]" if ":" in name else name
            host += f":{port}" if port else ""
        if not _HOST.fullmatch(host):
            raise bad_request("The Host header is no name or address, with a port or without")
        return f"{self.request.scope['scheme']}://{host}"

    def query(self, name: str, default: str = "") -> str:
        """A parameter of the query; 400 where it stands there more than once."""
        values = self._query.get(name, [default])
        if len(values) > 1:
            raise bad_request(f"The query has {name} {len(values)} times; it may stand there once")
        return values[0]

    @cached_property
    def _query(self) -> dict[str, list[str]]:
        try:
            text = self.request.scope.get("query_string", b"").decode("ascii")
            return parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS)
        except ValueError:  # a UnicodeDecodeError is one
            raise bad_request(
                f"The query is not UTF-8, percent-encoded, of at most {_MOST_PARAMETERS} parameters"
            ) from None

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


Handler = Callable[[HubRequest], Response] | Callable[[HubRequest], Awaitable[Response]]


class Route:
    """A method and a path with parts.

    `{name}` is one segment, `{name:rest}` all that follows, `{name:a|b}` what that pattern matches.
    """

    def __init__(
        self,
        methods: str,
        template: str,
        handler: Handler,
        *,
        slow: bool = False,
        page: bool = False,
        open: bool = False,  # noqa: A002
        reads: bool = False,
        **fixed: str,
    ) -> None:
        """slow: whether anybody can make it compute for long; such routes share a few threads of their own.

        page: whether browsers ask for it, whose sessions count. open: whether a closed Hub answers everybody. reads:
        whether a method other than GET and HEAD changes nothing that a mirror leaves to its origin.
        """
        self.slow, self.page, self.open = slow, page, open
        self.methods = frozenset(methods.split())
        self.reads = reads or self.methods <= {"GET", "HEAD"}
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
