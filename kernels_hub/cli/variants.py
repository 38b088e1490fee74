"""`kernels-hub variants PATH`: which variants of a repository run here, best first, and why others do not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kernels_hub.cli.output import AsJson, print_columns, print_json


def variants(
    path: Annotated[Path, typer.Argument(help="A repository, its build/ folder, or one variant.")],
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda, rocm …; need not be here. Default: what torch was built for."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Which variants of a repository run here, best first."""
    from kernels_hub.repository.local import local_variants
    from kernels_hub.repository.system import System
    from kernels_hub.repository.variants import VariantRejected

    system = System.detect(device)
    decisions = [
        (str(decision.variant), decision.reason if isinstance(decision, VariantRejected) else None)
        for decision in local_variants(path, system)
    ]
    if as_json:
        print_json(
            {
                "path": str(path),
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
    else:
        print(f"{path} is one package without a variant's name: it is taken as it is, whatever the system")
