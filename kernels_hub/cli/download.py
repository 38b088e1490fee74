"""`kernels-hub download`: fill the cache, from the Hub or from a bundle, so that loading needs neither."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernels_hub.cli.output import AsJson, print_columns, print_json


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
    as_json: AsJson = False,
) -> None:
    """Fill the cache, from the Hub or from a bundle.

    Nothing is imported; whether code may run is decided when it is loaded.
    """
    from kernels_hub.hub.bundle import read_bundle
    from kernels_hub.hub.provision import provision, wanted_kernels

    if from_bundle is not None:
        items = read_bundle(from_bundle)
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
