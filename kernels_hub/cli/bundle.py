"""`kernels-hub bundle`: kernels in one archive, to carry to where no Hub can be reached."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernels_hub.cli.output import AsJson, echo, print_columns, print_json


def bundle(
    kernels: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ORG/NAME[@VERSION]",
            help="Kernels; @1 is the branch v1, @'>=1,<2' a specifier. Default: what kernels.lock pins.",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The archive.")] = Path("kernels.bundle"),
    lockfile: Annotated[Path | None, typer.Option("--lock", help="A lock. Default: the project's.")] = None,
    all_variants: Annotated[
        bool, typer.Option("--all-variants/--this-machine", help="For every device and platform.")
    ] = True,
    device: Annotated[str | None, typer.Option(help="With --this-machine: cpu, cuda, rocm …")] = None,
    as_json: AsJson = False,
) -> None:
    """Write kernels into one archive.

    `kernels-hub download --from-bundle` unpacks it elsewhere.
    """
    from kernels_hub.hub.bundle import write_bundle
    from kernels_hub.hub.provision import provision, wanted_kernels

    items = provision(wanted_kernels(kernels or (), lockfile), device, all_variants)
    write_bundle(items, output)
    if as_json:
        print_json(
            {
                "bundle": str(output),
                "bytes": output.stat().st_size,
                "kernels": [
                    {
                        "repository": item.place.repo_id,
                        "commit": item.tree.commit,
                        "variants": item.tree.variants(),
                    }
                    for item in items
                ],
            }
        )
        return
    print_columns(
        (item.place.repo_id, item.tree.commit[:12], ", ".join(item.tree.variants())) for item in items
    )
    echo(f"{output}: {_size(output.stat().st_size)}")


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:.1f} KiB"
