"""`kernels-hub download`: fill the cache, from the Hub or from a bundle, so that loading needs neither."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels_hub.cli.output import AsJson, print_columns, print_json

if TYPE_CHECKING:
    from kernels_hub.hub.bundle import Item


def download(
    kernels: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ORG/NAME[@VERSION]",
            help="Kernels; @1 is the branch v1, @'>=1,<2' a specifier. Default: what kernels.lock pins.",
        ),
    ] = None,
    lockfile: Annotated[Path | None, typer.Option("--lock", help="A lock. Default: the project's.")] = None,
    all_variants: Annotated[
        bool, typer.Option("--all-variants", help="For every device and platform, not only for this machine.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, rocm …; default: torch's.")] = None,
    from_bundle: Annotated[
        Path | None, typer.Option("--from-bundle", help="Take everything from this archive, not from a Hub.")
    ] = None,
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code",
            help="With --from-bundle: also take what no rule of the trust policy names.",
        ),
    ] = False,
    max_unpacked: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="With --from-bundle: what it may become, such as 20GiB."),
    ] = None,
    max_files: Annotated[
        int | None, typer.Option(min=1, help="With --from-bundle: how many files it may hold.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fill the cache, from the Hub or from a bundle.

    Nothing is imported; whether code may run is decided when it is loaded. Of a bundle, which anybody may have
    made, the trust policy is asked before it is unpacked, too.
    """
    from kernels_hub.hub.provision import provision, wanted_kernels

    if from_bundle is not None:
        items = _unpack(from_bundle, lockfile, trust_remote_code, max_unpacked, max_files)
    else:
        items = provision(wanted_kernels(kernels or (), lockfile), device, all_variants)
    if as_json:
        print_json(
            {
                "kernels": [
                    {
                        "repository": item.place.repo_id,
                        "type": item.place.repo_type,
                        "commit": item.tree.commit,
                        "variants": item.tree.variants(),
                        "folder": str(item.place.snapshot(item.tree.commit)),
                    }
                    for item in items
                ]
            }
        )
        return
    print_columns(
        (item.place.repo_id, item.tree.commit[:12], ", ".join(item.tree.variants())) for item in items
    )


def _unpack(
    bundle: Path,
    lockfile: Path | None,
    trust_remote_code: bool,
    max_unpacked: str | None,
    max_files: int | None,
) -> list[Item]:
    from kernels_hub.hub.bundle import BundleLimits, read_bundle
    from kernels_hub.hub.lock import read_lock
    from kernels_hub.hub.locked_kernels import LOCK_FILE

    path = lockfile or Path(LOCK_FILE)
    lock = read_lock(path) if lockfile is not None or path.exists() else None
    limits = BundleLimits()
    if max_unpacked is not None:
        limits = replace(limits, unpacked=_bytes(max_unpacked), ratio=None)
    if max_files is not None:
        limits = replace(limits, files=max_files, index=max(limits.index, 512 * max_files))
    return read_bundle(bundle, trust_remote_code=trust_remote_code, lock=lock, limits=limits)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,15})\s*([KMGT]i?)?B?", text.strip(), re.ASCII | re.IGNORECASE)
    if match is None:
        raise typer.BadParameter(f"expected a size such as 20GiB, got {text!r}", param_hint="--max-unpacked")
    unit = (match[2] or "").upper()
    base = 1024 if unit.endswith("I") else 1000
    scale: int = base ** " KMGT".index(unit[:1] or " ")
    return int(match[1]) * scale
