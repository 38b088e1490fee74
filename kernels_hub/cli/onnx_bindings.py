"""`--dim`, `--shape`, `--value`: what a command line says of an ONNX file's inputs, as `import_onnx` takes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="Bind a named axis; may be given again."),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="INPUT=SIZES",
        help="The shape of an input, as in image=1x3x640x640; a name instead of a size leaves that axis open.",
    ),
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--value",
        metavar="INPUT=VALUE",
        help="An input that is the same in every call: a number, a list as in [1, 2], or an .npy file.",
    ),
]


def require_file(file: Path) -> None:
    """Raises typer.BadParameter where there is no such file."""
    if not file.is_file():
        raise typer.BadParameter(f"there is no file {file}", param_hint="FILE")


def bindings(
    dim: Sequence[str] | None = None, shape: Sequence[str] | None = None, value: Sequence[str] | None = None
) -> dict[str, Any]:
    """The arguments of `import_onnx`. Raises typer.BadParameter."""
    return {"dims": sizes(dim or ()), "shapes": _shapes(shape or ()), "values": _values(value or ())}


def sizes(texts: Sequence[str], option: str = "--dim") -> dict[str, int]:
    """["batch=8"] -> {"batch": 8}. Raises typer.BadParameter."""
    found = {}
    for text in texts:
        name, equals, size = text.rpartition("=")
        if not (equals and name and size.isascii() and size.isdecimal()):
            raise typer.BadParameter(f"expected NAME=SIZE, got {text!r}", param_hint=option)
        found[name] = int(size)
    return found


def _shapes(texts: Sequence[str]) -> dict[str, tuple[int | str, ...]]:
    shapes: dict[str, tuple[int | str, ...]] = {}
    for text in texts:
        name, equals, shape = text.rpartition("=")
        listed = shape.split("," if "," in shape else "x") if shape else []
        if not (equals and name) or not all(listed):
            raise typer.BadParameter(
                f"expected INPUT=SIZES, as in image=1x3x640x640 or ids=batch,16, got {text!r}",
                param_hint="--shape",
            )
        shapes[name] = tuple(int(one) if one.isascii() and one.isdecimal() else one for one in listed)
    return shapes


def _values(texts: Sequence[str]) -> dict[str, object]:
    import numpy as np

    values: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name and value):
            raise typer.BadParameter(f"expected INPUT=VALUE, got {text!r}", param_hint="--value")
        try:
            values[name] = (
                np.load(Path(value), allow_pickle=False) if value.endswith(".npy") else json.loads(value)
            )
        except (OSError, ValueError) as error:
            raise typer.BadParameter(
                f"{value!r} is no number, no list of numbers and no .npy file: {error}", param_hint="--value"
            ) from error
    return values
