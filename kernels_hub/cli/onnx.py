"""`kernels-hub onnx check FILE`: what in a model the compiler cannot import, all of it at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernels_hub.cli.output import AsJson, print_columns, print_json

onnx = typer.Typer(no_args_is_help=True, help="ONNX models and the compiler.")


@onnx.callback()
def _group() -> None:
    """Keeps `check` a command of its own while it is the only one."""


@onnx.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The model; its weights need not be there.")],
    dim: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=SIZE", help="Bind a named axis; may be given again."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List every node that cannot be imported, with the reason; exit 1 if there is one."""
    from kernels_hub.compiler.importers.onnx import check_onnx

    if not file.is_file():
        raise typer.BadParameter(f"there is no file {file}", param_hint="FILE")
    found = check_onnx(file, dims=_sizes(dim or []))
    if as_json:
        print_json(
            {
                "file": str(file),
                "importable": not found,
                "unsupported": [
                    {
                        "node": one.node,
                        "path": list(one.path),
                        "op": one.op,
                        "domain": one.domain,
                        "opset": one.opset,
                        "inputs": list(one.inputs),
                        "reason": one.reason,
                    }
                    for one in found
                ],
            }
        )
    elif found:
        rows = [("NODE", "OP", "OPSET", "INPUTS", "REASON")]
        rows += [
            (
                " > ".join((*one.path, one.node)),
                f"{one.domain}::{one.op}" if one.domain else one.op,
                "" if one.opset is None else str(one.opset),
                ", ".join(one.inputs),
                one.reason,
            )
            for one in found
        ]
        print_columns(rows)
    else:
        print(f"{file}: every node can be imported")
    if found:
        raise typer.Exit(1)


def _sizes(texts: list[str]) -> dict[str, int]:
    sizes = {}
    for text in texts:
        name, equals, size = text.rpartition("=")
        if not (equals and name and size.isdecimal()):
            raise typer.BadParameter(f"expected NAME=SIZE, got {text!r}", param_hint="--dim")
        sizes[name] = int(size)
    return sizes
