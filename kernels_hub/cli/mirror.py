"""`kernels-hub mirror --from URL --root DIR`: follows another Hub into a root that is served read-only."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels_hub.cli.hub_root import opened_root
from kernels_hub.cli.output import echo
from kernels_hub.errors import KernelsHubError

if TYPE_CHECKING:
    from kernels_hub.server.mirror.follow import Round

TOKEN_VARIABLE = "KERNELS_HUB_ORIGIN_TOKEN"  # noqa: S105


def mirror(
    origin: Annotated[str, typer.Option("--from", metavar="URL", help="The Hub that is mirrored.")],
    root: Annotated[Path, typer.Option(help="The mirror's folder; made where there is none.")],
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ORG/NAME", help="Which repositories, with * and ?; default: all."),
    ] = None,
    every: Annotated[float, typer.Option(min=1.0, help="Seconds between two rounds.")] = 60.0,
    once: Annotated[
        bool, typer.Option("--once", help="One round; exit code 1 unless everything is as at the origin.")
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"Holds a token of the origin, for what is private; default: ${TOKEN_VARIABLE}."),
    ] = None,
    max_requests_per_minute: Annotated[int, typer.Option(min=1, help="Asked of the origin.")] = 1200,
    moved: Annotated[
        bool, typer.Option("--moved", help="The Hub that this root mirrors has this address now.")
    ] = False,
) -> None:
    """Follow another Hub into a read-only one.

    Brings its repositories, releases and release log here, verified, and goes on doing so.

    `kernels-hub serve --root DIR` serves the root, read-only, whether this command runs or not.
    """
    token = _token(token_file)
    address = origin.rstrip("/")
    with opened_root(root, create=True) as hub:
        from kernels_hub.server.mirror.follow import follow_once, following
        from kernels_hub.server.mirror.origin import Origin
        from kernels_hub.server.sweep import sweep

        with following(hub, address, moved=moved):
            sweep(hub)
            hub.follow_moves(git=False)
            source = Origin(address, token, requests_per_minute=max_requests_per_minute)
            while True:
                done = follow_once(hub, source, only or (), lambda line: echo(line, flush=True))
                echo(_summary(address, done), flush=True)
                if once:
                    break
                # Mirrors that were started together do not ask together.
                time.sleep(every * random.uniform(0.9, 1.1))  # noqa: S311
    if not done.is_well:
        raise typer.Exit(1)


def _token(path: Path | None) -> str | None:
    """The origin's token. HF_TOKEN is none: it is for the Hub that HF_ENDPOINT names."""
    if path is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise KernelsHubError(f"{path} cannot be read as a file with a token: {error}") from error
    if not token.isascii() or not token.isprintable() or " " in token or not token:
        raise KernelsHubError(f"{path} holds no token: one line, as `kernels-hub hub token new` prints it")
    return token


def _summary(address: str, done: Round) -> str:
    if done.failed:
        said = done.failed if done.failed.startswith(address) else f"{address}: {done.failed}"
        return f"{said}; what is here stays as it was"
    apart = f", {len(done.problems)} not as at the origin" if done.problems else ""
    return f"{address}: {done.looked_at} repositories, {len(done.brought)} brought up to date{apart}"
