"""The ASGI application: finds the route, runs the handler, says what went wrong, logs and counts.

`ROUTES` is the whole table, matched from the top. The access log has one line a request, without the
query (which may be a credential) and without headers.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from anyio import CapacityLimiter, to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

from kernels_hub.errors import KernelsHubError
from kernels_hub.server import api_account, api_git, api_repositories, downloads, lfs_api
from kernels_hub.server.call import HubRequest, Route, json_response
from kernels_hub.server.database import DatabaseFullError, UnavailableError
from kernels_hub.server.hub import Hub
from kernels_hub.server.layout import RootPaths
from kernels_hub.server.limits import Limits, RateLimit
from kernels_hub.server.logs import masked_path, set_up_logs
from kernels_hub.server.metrics import CONTENT_TYPE, Metrics
from kernels_hub.server.mirror import feed
from kernels_hub.server.objects.answers import misconfigured
from kernels_hub.server.protocol import SETTINGS, allow_open_files, quiet
from kernels_hub.server.refusal import Refusal, header_text
from kernels_hub.server.web import routes as web
from kernels_hub.server.xet import routes as xet_api

_READERS, _WRITERS, _SLOW = 24, 24, 2
_SWITCH_SECONDS = 0.001
_WAIT_SECONDS = 1.0
_READY_SECONDS = 1.0
_DRAIN_BYTES, _DRAIN_SECONDS = 64 << 20, 10
_HEADERS = {b"x-content-type-options": b"nosniff", b"referrer-policy": b"no-referrer"}
"""Of every answer that does not say otherwise."""
_ANYTHING_ELSE = "/api/{path:rest}"
_OPEN_TO_ALL = frozenset({"/health", "/ready", "/metrics"})
_SIGNED = ("/lfs/", "/xet/")
access_log = logging.getLogger("kernels_hub.server.access")
log = logging.getLogger("kernels_hub.server")


def nothing(_call: HubRequest) -> Response:
    """Clients that expect JSON get no page."""
    raise Refusal(404, "There is nothing at this address")


def health(call: HubRequest) -> Response:
    """200 while the rows can be read; a mirror says of what, and how old it is."""
    call.hub.database.row("SELECT 1")
    return PlainTextResponse("\n".join(["ok", *feed.health_lines(call), ""]))


class _Ready:
    """200 while rows can be read and the store of large files answers; 502 or 503 otherwise.

    Anybody may ask, as often as they like: the store is asked once a second.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._asked = -_READY_SECONDS
        self._refusal: Refusal | None = None

    def __call__(self, call: HubRequest) -> Response:
        call.hub.database.row("SELECT 1")
        with self._guard:
            if time.monotonic() - self._asked > _READY_SECONDS:
                self._refusal = self._ask(call.hub)
                self._asked = time.monotonic()
            if self._refusal is not None:
                raise self._refusal
        return PlainTextResponse("ok\n")

    @staticmethod
    def _ask(hub: Hub) -> Refusal | None:
        try:
            hub.large_files.objects.confirm()
        except KernelsHubError:
            return misconfigured("it is not the store of this root")
        except Refusal as refusal:
            return refusal
        return None


class App:
    """The application over one Hub."""

    def __init__(self, hub: Hub, *, workers: int = 1, require_token: bool = False) -> None:
        self.hub = hub
        self.metrics = Metrics(shared=workers > 1)
        self.routes = [
            Route("GET HEAD", "/health", health),
            Route("GET HEAD", "/ready", _Ready(), slow=True),
            Route("GET", "/metrics", self._metrics),
            *routes(),
        ]
        self._require_token = require_token
        # Workers share the load evenly enough for a limit.
        self._rate = RateLimit(hub.limits.max_requests_per_minute / workers)
        self._bad_tokens = RateLimit(hub.limits.max_bad_tokens_per_minute / workers)
        self._threads: dict[str, CapacityLimiter] = {}

    def _metrics(self, _call: HubRequest) -> Response:
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                asyncio.get_running_loop().set_exception_handler(quiet)
                # Readers are never held up by writers that wait for a lock.
                self._threads = {
                    "read": CapacityLimiter(_READERS),
                    "write": CapacityLimiter(_WRITERS),
                    "slow": CapacityLimiter(_SLOW),
                }
                await send({"type": "lifespan.startup.complete"})
            else:
                await to_thread.run_sync(self.hub.close)
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(receive, send)
        request = Request(scope, exchange.receive)
        route, call = "other", None
        try:
            found, params = self._find(scope)
            route = found.template
            threads = self._threads[
                "slow" if found.slow else "read" if scope["method"] in ("GET", "HEAD") else "write"
            ]
            call = HubRequest(self.hub, request, params, threads)
            await self._admit(found, call)
            response = await self._answer(found, call)
            await response(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            exchange.status = exchange.status or 499
        except Refusal as refusal:
            await self._refuse(refusal, exchange, scope)
        except Exception as error:
            if not exchange.connected:
                exchange.status = exchange.status or 499
            elif exchange.status:
                raise
            else:
                await self._refuse(_failure(error, exchange.id), exchange, scope)
        finally:
            self._account(scope, route, call, exchange)

    def _find(self, scope: Scope) -> tuple[Route, dict[str, str]]:
        raw = (scope.get("raw_path") or scope["path"].encode()).decode("ascii", "replace")
        first, methods = None, frozenset[str]()
        for route in self.routes:
            # The first path that fits decides; only its own methods are tried.
            if first in (None, route.template) and (params := route.match(raw)) is not None:
                if scope["method"] in route.methods:
                    return route, params
                first, methods = route.template, methods | route.methods
        if first is not None and first != _ANYTHING_ELSE:
            allowed = ", ".join(sorted(methods))
            raise Refusal(405, f"This address takes {allowed}", headers={"Allow": allowed})
        raise Refusal(404, "There is nothing at this address")

    async def _admit(self, route: Route, call: HubRequest) -> None:
        """Refuse requests beyond the rate limit, changes of a mirror, and, on a closed Hub, those without a token."""
        if route.template in _OPEN_TO_ALL:
            return
        # The signed address or token of an upload is its own credential, which its handler checks.
        signed = route.template.startswith(_SIGNED)
        address = call.request.client.host if call.request.client else ""
        if signed:
            self._count(self._rate, address)
        else:
            try:
                caller = await call.run(lambda: call.viewer if route.page else call.caller)
            except Refusal:
                # Guessing is bounded, and costs the address what any request does.
                self._count(self._bad_tokens, address)
                self._count(self._rate, address)
                raise
            self._count(self._rate, f"token {caller.token.id}" if caller.token else address)
        if not route.reads and (refusal := await call.run(self.hub.mirror.refusal)) is not None:
            raise refusal
        if self._require_token and not signed and not route.open:
            if (await call.run(lambda: call.viewer if route.page else call.caller)).token is not None:
                return
            headers = {"Location": f"/login?next={quote(call.request.scope['path'], safe='')}"}
            raise Refusal(
                303 if route.page and call.request.method in ("GET", "HEAD") else 401,
                "This Hub answers only with a token; log in with `hf auth login` or set HF_TOKEN",
                headers=headers if route.page else {},
            )

    def _count(self, rate: RateLimit, caller: str) -> None:
        """Count a request; 429 beyond the rate."""
        if wait := rate.take(caller):
            self.metrics.refused.inc()
            headers = {
                "Retry-After": str(wait),
                "RateLimit": f'"api";r=0;t={wait}',
                "RateLimit-Policy": f'"fixed window";"api";q={int(rate.per_minute)};w=60',
            }
            raise Refusal(429, f"Too many requests; try again in {wait} s", headers=headers)

    async def _answer(self, route: Route, call: HubRequest) -> Response:
        if route.streams:
            answer = await route.handler(call)  # type: ignore[misc]
        else:
            if call.request.method not in ("GET", "HEAD"):
                call.body = await call.read_body(self.hub.limits.max_json_bytes)
            answer = await call.run(route.handler, call)
        if call.guessed:
            self._count(self._bad_tokens, call.request.client.host if call.request.client else "")
        assert isinstance(answer, Response)
        return answer

    async def _refuse(self, refusal: Refusal, exchange: _Exchange, scope: Scope) -> None:
        if exchange.status:  # Too late: the answer has begun. Ending it early tells the client.
            log.error("request %s: %s", exchange.id, refusal.message)
            raise refusal
        message = " ".join(refusal.message.split())
        headers = {"X-Error-Message": header_text(message), **refusal.headers}
        if refusal.code:
            headers["X-Error-Code"] = refusal.code
        # A client that still sends would otherwise never read the answer.
        if not await exchange.drain():
            headers["Connection"] = "close"
        response = json_response({"error": message, **refusal.body}, refusal.status, headers)
        await response(scope, exchange.receive, exchange.send)

    def _account(self, scope: Scope, route: str, call: HubRequest | None, exchange: _Exchange) -> None:
        seconds = time.monotonic() - exchange.started
        method, status = scope["method"], str(exchange.status or 500)
        if method not in ("GET", "HEAD", "POST", "PUT", "DELETE"):
            method = "other"
        self.metrics.requests.labels(route, method, status).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        self.metrics.sent.inc(exchange.sent)
        self.metrics.received.inc(exchange.received)
        if access_log.isEnabledFor(logging.INFO):
            path = masked_path(scope.get("raw_path", b"").decode("ascii", "backslashreplace")[:1000])
            client = scope["client"][0] if scope.get("client") else "-"
            user = (call.user if call else None) or "-"
            access_log.info(
                "%s %s %s %s %s %d %.1fms %s",
                *(client, user, scope["method"], path, status, exchange.sent, seconds * 1000, exchange.id),
            )


class _Exchange:
    """Receive and send of one request, counted."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.id = uuid.uuid4().hex[:16]
        self.started = time.monotonic()
        self.status = 0
        self.sent = self.received = 0
        self.complete = False
        self.connected = True

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self.received += len(message.get("body", b""))
            self.complete = not message.get("more_body", False)
        else:
            self.connected = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = {name: value for name, value in message["headers"] if name in _HEADERS}
            kept = [header for header in message["headers"] if header[0] not in own]
            message["headers"] = [*kept, *{**_HEADERS, **own}.items(), (b"x-request-id", self.id.encode())]
        else:
            self.sent += len(message.get("body", b""))
        await self._send(message)

    async def drain(self) -> bool:
        """Read what the client still sends, within limits; whether all of it came."""
        end, most = time.monotonic() + _DRAIN_SECONDS, self.received + _DRAIN_BYTES
        while not self.complete and self.connected and self.received < most and time.monotonic() < end:
            await self.receive()
        return self.complete


def _failure(error: Exception, request: str) -> Refusal:
    """What a client hears of a failure that is none of its own; the log has the rest."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        log.error("request %s: the disk is full", request)
        return Refusal(507, "The server's disk is full; nothing was changed, tell its administrator")
    if isinstance(error, DatabaseFullError):
        log.error("request %s: the disk of the database is full: %s", request, error)
        return Refusal(
            507, "The disk of the server's database is full; nothing was changed, tell its administrator"
        )
    if isinstance(error, UnavailableError):
        log.error("request %s: the database does not answer: %s", request, error)
        return Refusal(
            503, "The server's database does not answer now; try again", headers={"Retry-After": "2"}
        )
    log.error("request %s failed", request, exc_info=error)
    return Refusal(500, f"The server failed; its log says more under {request}")


@functools.cache
def routes() -> tuple[Route, ...]:
    """Every route but those of the application itself, in the order in which they are tried."""
    return tuple(_routes())


def _routes() -> Iterator[Route]:
    for module in (api_account, api_repositories, feed, api_git, lfs_api, xet_api, downloads):
        yield from module.ROUTES
    yield Route("GET HEAD", _ANYTHING_ELSE, nothing)
    yield from web.ROUTES


def _end_with_parent(parent: int) -> None:
    """A worker whose supervisor was killed would hold on to the port for ever."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def _rows_of(root: Path) -> str | None:
    """The id under which a database has the rows of a root; None where they are below it."""
    elsewhere = RootPaths.open(root).elsewhere
    return None if elsewhere is None else elsewhere.root


def _opened(root: Path, limits: Limits, database: str | None, rows: str | None, objects: str | None) -> Hub:
    """The Hub of a worker, which waits where the database is away: if it ended, another would be started at once.

    database: the address that was given when the server started, and `rows` the id of the root there.
    """
    while True:
        try:
            given = database if _rows_of(root) == rows else None  # moved since, and the root knows where to
            return Hub(root, limits=limits, database=given, objects=objects)
        except KernelsHubError as error:
            if not isinstance(error.__cause__, (DatabaseFullError, UnavailableError)):
                raise
            log.warning("a worker waits for its database: %s", error)
            time.sleep(_WAIT_SECONDS)


def create() -> App:
    """The application of a worker process, from the environment."""
    settings = json.loads(os.environ[SETTINGS])
    set_up_logs(access=settings["access_log"])
    allow_open_files()
    # How long a thread that computes holds up the loop, each time; 5 ms by default.
    sys.setswitchinterval(_SWITCH_SECONDS)
    if settings["workers"] > 1:
        threading.Thread(target=_end_with_parent, args=(settings["supervisor"],), daemon=True).start()
    hub = _opened(
        Path(settings["root"]),
        Limits(**settings["limits"]),
        settings["database"],
        settings["rows"],
        settings["objects"],
    )
    hub.follow_moves()
    hub.search.start()
    hub.downloads.start()
    return App(hub, workers=settings["workers"], require_token=settings["require_token"])
