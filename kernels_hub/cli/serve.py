"""`kernels-hub serve --root DIR`: a Hub of one's own, for every client that reads HF_ENDPOINT."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernels_hub.cli.hub_root import Database, Objects
from kernels_hub.cli.output import echo
from kernels_hub.errors import KernelsHubError


def serve(
    root: Annotated[Path, typer.Option(help="The Hub's folder; made where there is none.")],
    database: Database = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8080,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes on the same root.")] = 1,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate (PEM), for https.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Key of the certificate (PEM).")] = None,
    objects: Objects = None,
    require_token: Annotated[
        bool,
        typer.Option("--require-token", help="Answer nothing without a token, public repositories included."),
    ] = False,
    trusted_proxies: Annotated[
        str,
        typer.Option(
            help="Addresses of proxies whose X-Forwarded-* headers count, with commas; none by default."
        ),
    ] = "",
    access_log: Annotated[
        bool, typer.Option(help="One line a request on stderr, without credentials.")
    ] = True,
    max_file_mib: Annotated[int, typer.Option(min=1, help="A large file.")] = 50 * 1024,
    max_repository_mib: Annotated[int, typer.Option(min=0, help="A repository; 0: no limit.")] = 0,
    max_repositories: Annotated[
        int, typer.Option(min=0, help="Repositories of an account; 0: no limit.")
    ] = 0,
    max_requests_per_minute: Annotated[
        int, typer.Option(min=0, help="Requests with a token, or of an address without one; 0: no limit.")
    ] = 6000,
    max_bad_tokens_per_minute: Annotated[
        int, typer.Option(min=0, help="Requests of an address with invalid tokens; 0: no limit.")
    ] = 60,
    max_connections: Annotated[int, typer.Option(min=8, help="Open connections of a process.")] = 4096,
    max_address_connections: Annotated[
        int, typer.Option(min=1, help="Open connections of one address, at a process.")
    ] = 256,
    header_seconds: Annotated[
        float, typer.Option(min=0.5, help="How long a request's headers may take to arrive.")
    ] = 10.0,
    idle_seconds: Annotated[
        float, typer.Option(min=1.0, help="How long a body may stall, or an answer stay unread.")
    ] = 30.0,
    min_body_rate: Annotated[
        int, typer.Option(min=0, help="Bytes a second that a body must come with.")
    ] = 128,
    keep_alive_seconds: Annotated[
        int, typer.Option(min=1, help="How long a connection is kept between requests.")
    ] = 30,
    min_free_mib: Annotated[int, typer.Option(min=0, help="Disk space that uploads leave free.")] = 64,
    cache_mib: Annotated[
        int, typer.Option(min=16, help="Local copies of git data that is in an object store.")
    ] = 4096,
) -> None:
    """Serve a Hub: set HF_ENDPOINT to the address that is printed.

    `kernels-hub hub user add` and `kernels-hub hub token new` make the accounts, before or while it runs.
    """
    if (tls_cert is None) != (tls_key is None):
        raise KernelsHubError("https needs both --tls-cert and --tls-key")
    for path in (tls_cert, tls_key):
        if path is not None and not path.is_file():
            raise KernelsHubError(f"{path} is not a file; --tls-cert and --tls-key take PEM files")
    try:
        from kernels_hub.server.limits import Limits
        from kernels_hub.server.process import Serve
        from kernels_hub.server.process import serve as run
    except ModuleNotFoundError as error:
        raise KernelsHubError(
            f"serving a Hub needs {error.name}; pip install 'kernels-hub[serve]' brings it"
        ) from error
    limits = Limits(
        max_file_bytes=max_file_mib << 20,
        max_repository_bytes=max_repository_mib << 20,
        max_account_repositories=max_repositories,
        max_requests_per_minute=max_requests_per_minute,
        max_bad_tokens_per_minute=max_bad_tokens_per_minute,
        max_connections=max_connections,
        max_address_connections=max_address_connections,
        header_seconds=header_seconds,
        idle_seconds=idle_seconds,
        min_body_rate=min_body_rate,
        keep_alive_seconds=keep_alive_seconds,
        min_free_bytes=min_free_mib << 20,
        git_cache_bytes=cache_mib << 20,
    )
    run(
        Serve(
            root=root,
            database=database,
            host=host,
            port=port,
            workers=workers,
            objects=objects,
            tls_cert=tls_cert,
            tls_key=tls_key,
            require_token=require_token,
            access_log=access_log,
            trusted_proxies=trusted_proxies,
            limits=limits,
        ),
        announce=lambda line: echo(line, flush=True),
    )
