"""`kernels-hub variants PATH|ORG/NAME[@VERSION]`: which variants run here, best first, and why others do not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kernels_hub.cli.output import AsJson, echo, print_columns, print_json


def variants(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH|ORG/NAME[@VERSION]",
            help="A repository, its build/ folder or one variant on disk; or a repository on a Hub.",
        ),
    ],
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda, rocm …; need not be here. Default: what torch was built for."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Which variants of a repository run here, best first."""
    from kernels_hub.hub.kernels import get_kernel_variants
    from kernels_hub.hub.provision import parse_dependency
    from kernels_hub.repository.local import local_variants
    from kernels_hub.repository.system import System
    from kernels_hub.repository.variants import VariantRejected

    system = System.detect(device)
    if Path(path).exists() or path.count("/") != 1 or path.startswith((".", "/")):
        found = local_variants(Path(path), system)
    else:
        asked = parse_dependency(path)
        wanted = asked.wanted
        found = get_kernel_variants(
            asked.repo_id, version=wanted.version, revision=wanted.revision, backend=device
        )
    decisions = [
        (str(decision.variant), decision.reason if isinstance(decision, VariantRejected) else None)
        for decision in found
    ]
    if as_json:
        print_json(
            {
                "path": path,
                "system": asdict(system),
                "variants": [
                    {"variant": name, "accepted": reason is None, "reason": reason}
                    for name, reason in decisions
                ],
            }
        )
    elif decisions:
        print_columns(
            (name, "accepted" if reason is None else "rejected", reason or "") for name, reason in decisions
        )
        if all(reason is not None for _, reason in decisions):
            echo(
                "none runs here: --device NAME tells of another backend; its publisher can build for this one"
            )
    else:
        echo(f"{path} is one package without a variant's name: it is taken as it is, whatever the system")
