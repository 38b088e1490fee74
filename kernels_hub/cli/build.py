"""`kernels-hub build PATH`: from source form to the folders that clients load, checked first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from kernels_hub.cli.output import AsJson, echo, print_columns, print_json

_MANYLINUX = re.compile(r"(?:manylinux_)?(\d+)[_.](\d+)", re.ASCII)


def parse_manylinux(text: str) -> tuple[int, int]:
    """ "2_28" or "manylinux_2_28" -> (2, 28); typer.BadParameter for anything else."""
    if (match := _MANYLINUX.fullmatch(text)) is None:
        raise typer.BadParameter(
            f"expected a glibc version such as 2_28, got {text!r}", param_hint="--manylinux"
        )
    return int(match[1]), int(match[2])


Manylinux = Annotated[str, typer.Option(help="Newest glibc that native files may need.")]


def build(
    path: Annotated[Path, typer.Argument(help="A layer repository in source form (kernel.toml).")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where build/ is written. Default: PATH itself.")
    ] = None,
    backend: Annotated[
        list[str] | None, typer.Option(help="cpu, cuda, rocm …; may be repeated. Default: all.")
    ] = None,
    manylinux: Manylinux = "2_28",
    as_json: AsJson = False,
) -> None:
    """Check a layer repository and build its variants."""
    from kernels_hub.repository.build import build_repository
    from kernels_hub.repository.digest import list_files
    from kernels_hub.repository.metadata import read_metadata

    folders = build_repository(
        path, out or path, backend or None, check=True, manylinux=parse_manylinux(manylinux)
    )
    rows = []
    for folder in folders:
        files = list_files(folder).values()
        metadata = read_metadata(folder)
        rows.append(
            {
                "variant": folder.name,
                "path": str(folder),
                "id": metadata.id,
                "release": metadata.release,
                "files": len(files),
                "bytes": sum(file.stat().st_size for file in files),
            }
        )
    if as_json:
        print_json({"path": str(path), "out": str(out or path), "variants": rows})
        return
    print_columns(
        [
            ("variant", "files", "bytes", "id"),
            *((str(r["variant"]), str(r["files"]), str(r["bytes"]), str(r["id"])) for r in rows),
        ],
        indent="",
    )
    echo(f"built into {(out or path) / 'build'}")
