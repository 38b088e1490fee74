"""Runs the server: one process, or several workers on one socket and one root."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.hub import Hub
from kernels_hub.server.layout import RootPaths
from kernels_hub.server.limits import Limits
from kernels_hub.server.refusal import Refusal
from kernels_hub.server.sweep import sweep

_BACKLOG = 2048


@dataclass(frozen=True)
class Serve:
    """How to serve a root."""

    root: Path
    database: str | None = None
    """The address of the PostgreSQL database of the rows, where the root does not know it."""
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    tls_cert: Path | None = None
    tls_key: Path | None = None
    require_token: bool = False
    access_log: bool = True
    trusted_proxies: str = ""
    objects: str | None = None
    """The address of the object store for large files; None for the root's own folders."""
    limits: Limits = field(default_factory=Limits)


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket: from here on, connections wait until a worker takes them."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # asyncio turns Nagle's algorithm off, worth 40 ms a request, only where the protocol is named.
        listening = socket.socket(family, kind, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
            listening.set_inheritable(True)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise KernelsHubError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port"
        ) from error
    return listening


def _check_certificate(settings: Serve) -> None:
    """Raise KernelsHubError where certificate and key are none, before a folder is made."""
    if settings.tls_cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            settings.tls_cert, settings.tls_key, password=""
        )
    except (ssl.SSLError, OSError) as error:
        raise KernelsHubError(
            f"{settings.tls_cert} and {settings.tls_key} are no certificate and its key, "
            f"as PEM files without a password: {error}"
        ) from error


def serve(settings: Serve, announce: Callable[[str], None] = print) -> None:
    """Serve until the process is told to end (SIGINT, SIGTERM).

    announce: is told the address, once it takes connections.
    Raises KernelsHubError for a folder that is not a Hub's root, for a certificate that is none, and off Unix.
    """
    if importlib.util.find_spec("fcntl") is None:
        raise KernelsHubError(
            "a Hub needs file locks that this system lacks; run it on Linux or another Unix"
        )
    _check_certificate(settings)
    import uvicorn
    from uvicorn.supervisors import Multiprocess

    from kernels_hub.server.metrics import MULTIPROCESS
    from kernels_hub.server.protocol import SETTINGS

    try:
        hub = Hub(
            settings.root,
            limits=settings.limits,
            create=True,
            database=settings.database,
            objects=settings.objects,
        )
    except OSError as error:
        raise KernelsHubError(
            f"cannot keep a Hub in {settings.root}: {error.strerror or error}; choose another --root"
        ) from error
    except Refusal as refusal:
        raise KernelsHubError(f"{settings.objects}: {refusal.message}") from refusal
    with hub:
        root = hub.layout.root
        rows = None if hub.layout.elsewhere is None else hub.layout.elsewhere.root
        try:
            hub.large_files.objects.confirm()
        except Refusal as refusal:
            announce(f"kernels-hub serve: {refusal.message}; everything but large files is served until then")
        for line in sweep(hub):
            announce(f"kernels-hub serve: removed {line}")
    # A corner of this process: where it is killed, the next start removes what is in there.
    own = RootPaths.open(root)
    if settings.workers > 1:
        metrics = own.temporary().with_name("metrics")
        metrics.mkdir()
        os.environ[MULTIPROCESS] = str(metrics)
    os.environ[SETTINGS] = json.dumps(
        {
            "root": str(root),
            "database": settings.database,
            "rows": rows,
            "objects": settings.objects,
            "limits": asdict(settings.limits),
            "workers": settings.workers,
            # Not asked of the system by the worker: by then it may have been killed.
            "supervisor": os.getpid(),
            "require_token": settings.require_token,
            "access_log": settings.access_log,
            "trusted_proxies": settings.trusted_proxies,
        }
    )
    config = uvicorn.Config(
        "kernels_hub.server.app:create",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        access_log=False,
        log_config=None,  # `create` sets the logs up, uvicorn's own included
        server_header=False,
        http="kernels_hub.server.protocol:LimitedProtocol",
        loop="kernels_hub.server.protocol:HubLoop",
        ws="none",
        # Without a proxy that is named, X-Forwarded-For says nothing: anybody can send it.
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies,
        timeout_keep_alive=settings.limits.keep_alive_seconds,
        timeout_graceful_shutdown=30,
        backlog=_BACKLOG,
    )
    with _closed_at_the_end(own):
        listening = _listen(settings.host, settings.port)
        scheme = "https" if settings.tls_cert else "http"
        address = f"[{settings.host}]" if ":" in settings.host else settings.host
        announce(f"kernels-hub serve: {scheme}://{address}:{listening.getsockname()[1]} root {root}")
        if settings.workers > 1:
            Multiprocess(config, sockets=[listening]).run()
        else:
            uvicorn.Server(config).run(sockets=[listening])


@contextlib.contextmanager
def _closed_at_the_end(own: RootPaths) -> Iterator[None]:
    """A process's corner that SIGTERM does not leave: uvicorn sends itself the signal again once it has stopped."""
    told = False

    def end(number: int, _: object) -> None:
        nonlocal told
        told = True
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        own.close()
        signal.signal(signal.SIGTERM, before)
        if told:
            signal.raise_signal(signal.SIGTERM)
