"""HTTP connections with limits: uvicorn's protocol, with what it lets wait for ever given an end.

uvicorn ends idle connections between requests. Here end also: a request whose headers do not arrive, a body that
stops or drips, and an answer that nobody reads; and the number of connections is bounded, in all and for one
address. An address that has as many as it may have loses the oldest that waits for a request, so that whoever
holds connections open holds up nobody but themselves; one whose connections are all at work is refused.

Connections are looked at once a second, all of them, which costs about a millisecond for a thousand.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import time
import weakref
from collections import Counter, OrderedDict
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from kernels_hub.server.limits import Limits

SETTINGS = "KERNELS_HUB_SERVE"
"""Environment variable of worker processes: JSON that `process.serve` writes."""
_OPEN_FILES = 65_536
_TICK_SECONDS = 1.0
_ADDRESSES = 10_000
_HANDSHAKE_SECONDS = 10.0
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 5\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)
_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\nx-error-message: The request did not arrive in time\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)
log = logging.getLogger("kernels_hub.server")


def allow_open_files() -> int:
    """Raise the limit of descriptors as far as this process may, and return it.

    Open packs and connections take descriptors; many systems start processes with 1,024.
    """
    import resource  # not on every system, and only a running server needs it

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return soft


class Guard:
    """The connections of one process, and which of them have waited too long."""

    def __init__(self, limits: Limits, proxies: str, descriptors: int) -> None:
        """proxies: addresses and networks that stand for many clients, with commas; "*" for all.

        descriptors: how many this process may have open.
        """
        self.limits = limits
        self._proxies = [part.strip() for part in proxies.split(",") if part.strip()]
        self._known_proxies: dict[str, bool] = {}
        # A quarter stays for packs, large files and the database.
        self._most = min(limits.max_connections, descriptors * 3 // 4)
        self._open: OrderedDict[LimitedProtocol, None] = OrderedDict()
        self._of_address: Counter[str] = Counter()
        self._ticking = False

    def admit(self, connection: LimitedProtocol) -> bool:
        """Count a new connection; false where there are too many, and none of its address can go in its place."""
        address = connection.address
        if self._has_too_many(address):
            self._drop_oldest(address)
        if len(self._open) >= self._most:
            self._drop_oldest(None)
        if len(self._open) >= self._most or self._has_too_many(address):
            return False
        self._open[connection] = None
        self._of_address[address] += 1
        if not self._ticking:
            self._ticking = True
            connection.loop.call_later(_TICK_SECONDS, self._tick, connection.loop)
        return True

    def _has_too_many(self, address: str) -> bool:
        return self._of_address[address] >= self.limits.max_address_connections and not self._is_proxy(
            address
        )

    def _is_proxy(self, address: str) -> bool:
        if (known := self._known_proxies.get(address)) is None:
            if len(self._known_proxies) >= _ADDRESSES:
                self._known_proxies.clear()
            known = self._known_proxies[address] = any(_covers(proxy, address) for proxy in self._proxies)
        return known

    def remove(self, connection: LimitedProtocol) -> None:
        """Forget a connection that is closed."""
        if self._open.pop(connection, connection) is None:
            self._of_address[connection.address] -= 1
            if not self._of_address[connection.address]:
                del self._of_address[connection.address]

    def _drop_oldest(self, address: str | None) -> None:
        """Close a connection without a request at work: one that has begun none or half of one, else an idle one."""
        idle = None
        for connection in self._open:
            if address in (None, connection.address) and connection.waits_for_request:
                if connection.began_half:
                    break
                idle = idle or connection
        else:
            if idle is None:
                return
            connection = idle
        self.remove(connection)
        connection.transport.abort()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        for connection in list(self._open):
            connection.look(now)
        self._ticking = bool(self._open)
        if self._ticking:
            loop.call_later(_TICK_SECONDS, self._tick, loop)


def _covers(proxy: str, address: str) -> bool:
    """Whether an address is a proxy's, which is named by its address or its network."""
    try:
        return proxy in ("*", address) or ipaddress.ip_address(address) in ipaddress.ip_network(
            proxy, strict=False
        )
    except ValueError:
        return False


_guards: weakref.WeakKeyDictionary[ServerState, Guard] = weakref.WeakKeyDictionary()


def guard_of(state: ServerState) -> Guard:
    """The guard of a server, made from the environment of its process the first time."""
    if (guard := _guards.get(state)) is None:
        settings = json.loads(os.environ[SETTINGS])
        limits = Limits(**settings["limits"])
        guard = _guards[state] = Guard(limits, settings["trusted_proxies"], allow_open_files())
    return guard


class LimitedProtocol(H11Protocol):
    """One connection, which ends when a limit of time or rate is passed."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], **more: Any
    ) -> None:
        super().__init__(config, server_state, app_state, **more)
        self._guard = guard_of(server_state)
        self.address = ""
        self._since = time.monotonic()  # when the request began that is awaited
        self._window = (self._since, 0)  # when a body was looked at, and how much of it had come
        self._received = 0
        self._unread = (self._since, 0)  # since when an answer has waited, and how much of it
        self._reading = False

    # The base class declares another type of transport than asyncio does.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or turn it away."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if not self._guard.admit(self):
            transport.write(_FULL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._guard.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """More of a request. The time for its headers runs from its first byte, however they drip."""
        if self.transport.is_closing():
            return
        if self.waits_for_request and not self._reading:
            self._reading, self._since = True, time.monotonic()
        self._received += len(data)
        super().data_received(data)
        if not self.waits_for_request:
            self._reading = False

    def on_response_complete(self) -> None:
        """The next request may come: its time begins with its first byte, as keep-alive has its own limit."""
        self._since = time.monotonic()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, in the form of every other refusal."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            reply = f"HTTP/1.1 400 Bad Request\r\nx-error-message: {msg}\r\nconnection: close\r\n"
            self.transport.write(f"{reply}content-length: {len(msg)}\r\n\r\n{msg}".encode("ascii", "replace"))
        self.transport.close()

    @property
    def waits_for_request(self) -> bool:
        """Whether no request is at work, on a new connection or between two."""
        return self.cycle is None or bool(self.cycle.response_complete)

    @property
    def began_half(self) -> bool:
        """Whether a request is awaited that has not arrived whole, or a first one at all."""
        return self._reading or self.cycle is None

    def look(self, now: float) -> None:
        """End the connection if it has waited too long for what its client should do."""
        limits = self._guard.limits
        if self.transport.is_closing():
            if now - self._since > limits.header_seconds + limits.idle_seconds:
                self.transport.abort()  # it was told to end and never took the last bytes
            return
        if self.waits_for_request:
            # Between requests uvicorn's own timer runs.
            if self.began_half and now - self._since > limits.header_seconds:
                self._end_late()
        elif self._body_stalls(now) or self._answer_stalls(now):
            self._end_late()

    def _body_stalls(self, now: float) -> bool:
        """Whether a body is awaited that has come too slowly, over a window of time."""
        if not self.cycle.more_body or self.flow.read_paused:
            self._window = now, self._received
            return False
        began, before = self._window
        if now - began < self._guard.limits.idle_seconds:
            return False
        self._window = now, self._received
        return self._received - before < self._guard.limits.min_body_rate * (now - began)

    def _answer_stalls(self, now: float) -> bool:
        """Whether an answer waits of which the client has taken nothing for too long."""
        began, before = self._unread
        waiting = self.transport.get_write_buffer_size()
        if not waiting or waiting != before:
            self._unread = now, waiting
            return False
        return now - began > self._guard.limits.idle_seconds

    def _end_late(self) -> None:
        self._since = time.monotonic()
        if self.waits_for_request and self._reading and not self.transport.get_write_buffer_size():
            self.transport.write(_LATE)
            self.transport.close()
        else:
            self.transport.abort()


class HubLoop(asyncio.SelectorEventLoop):
    """An event loop whose TLS handshakes end in time: until then asyncio tells nobody of a connection."""

    async def create_server(self, *values: Any, **options: Any) -> Any:
        """A listening server; see asyncio."""
        if options.get("ssl") is not None:
            options.setdefault("ssl_handshake_timeout", _HANDSHAKE_SECONDS)
        return await super().create_server(*values, **options)


def quiet(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The loop's handler of errors: one line where asyncio has none left to accept with, as it asks again at once."""
    error = context.get("exception")
    if isinstance(error, OSError) and "accept" in str(context.get("message", "")):
        log.error("cannot accept connections: %s; more descriptors (ulimit -n) would help", error.strerror)
    elif isinstance(error, ConnectionError):
        log.debug("a connection broke: %s", error)
    else:
        loop.default_exception_handler(context)
