"""`kernels-hub init NAME`: a layer repository that works as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernels_hub.cli.output import AsJson, echo, print_json


def init(
    name: Annotated[str, typer.Argument(help="The kernel's name: a-z, 0-9 and '-'.")],
    path: Annotated[Path | None, typer.Option(help="A new folder. Default: NAME.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a working layer repository to start from.

    A layer with Triton and CPU kernels, a test, a benchmark.
    """
    from kernels_hub.repository.template import write_template

    folder = path or Path(name)
    files = write_template(name, folder)
    if as_json:
        print_json({"name": name, "path": str(folder), "files": [str(file) for file in files]})
        return
    for file in files:
        echo(f"  {file}")
    echo(f"next: python -m pytest {folder}, then kernels-hub build {folder}")
