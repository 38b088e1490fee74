"""The table of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernels_hub.cli.benchmark import benchmark
from kernels_hub.cli.build import build
from kernels_hub.cli.bundle import bundle
from kernels_hub.cli.calibrate import calibrate
from kernels_hub.cli.compile import compile as compile_layer
from kernels_hub.cli.diff import diff
from kernels_hub.cli.doctor import doctor
from kernels_hub.cli.download import download
from kernels_hub.cli.engines import engines
from kernels_hub.cli.explain import explain
from kernels_hub.cli.hub import hub
from kernels_hub.cli.info import info
from kernels_hub.cli.init import init
from kernels_hub.cli.key import key
from kernels_hub.cli.lock import lock
from kernels_hub.cli.mirror import mirror
from kernels_hub.cli.onnx import onnx
from kernels_hub.cli.output import echo
from kernels_hub.cli.publish import publish
from kernels_hub.cli.serve import serve
from kernels_hub.cli.trust import trust
from kernels_hub.cli.tune import tune
from kernels_hub.cli.variants import variants
from kernels_hub.cli.verify import verify
from kernels_hub.cli.versions import versions
from kernels_hub.cli.view import view
from kernels_hub.cli.yank import yank

app = typer.Typer(
    name="kernels-hub",
    help="Swap the forward of PyTorch layers for published, versioned kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from kernels_hub.version import __version__

        echo(f"kernels-hub {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Swap the forward of PyTorch layers for published, versioned kernels."""


@app.command()
def demo(
    pairs: Annotated[int, typer.Option(min=1, help="Timed pairs of calls a model.")] = 15,
    folder: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Keep the ONNX file and the pages here. Default: the pages alone, in the cache.",
        ),
    ] = None,
) -> None:
    """Models before and after; layers compiled and published."""
    from kernels_hub.cli.demo import demo as run

    run(pairs, folder)


for command in (
    *(doctor, explain, info, variants, versions, diff),  # use
    *(lock, download, bundle),  # pin and carry
    *(init, build, publish, yank),  # make
    *(verify, benchmark, serve, mirror, view),
):
    app.command()(command)
app.command("compile")(compile_layer)
app.command()(tune)
app.command()(calibrate)
app.add_typer(trust, name="trust")
app.add_typer(key, name="key")
app.add_typer(hub, name="hub")
app.add_typer(onnx, name="onnx")
app.add_typer(engines, name="engines")
