"""`kernels-hub explain package.module:factory`: what kernelize would do to a model, without doing it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from kernels_hub.cli.output import AsJson, echo_lines, print_json

if TYPE_CHECKING:
    from kernels_hub.kernelization.device import Device


def explain(
    factory: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY",
            help="A function without arguments that returns the model; modules of this folder are found.",
        ),
    ],
    mode: Annotated[
        str, typer.Option(help="inference or training, with |torch_compile if it is to be compiled.")
    ] = "inference",
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, rocm …; need not be here. Default: where the model lies.")
    ] = None,
    capability: Annotated[
        str | None, typer.Option(help="Of a GPU that is not here: 90 or 9.0 for compute capability 9.0.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Which kernel each module of a model would get, and why."""
    from kernels_hub.kernelization.apply import explain as explain_model
    from kernels_hub.kernelization.mode import parse_mode

    wanted_mode, wanted_device = parse_mode(mode), _device(device, capability)

    from kernels_hub.cli.factory import build_model

    report = explain_model(build_model(factory), mode=wanted_mode, device=wanted_device)
    if as_json:
        print_json(report.to_dict())
    else:
        echo_lines(report)


def _device(device: str | None, capability: str | None) -> str | Device | None:
    from kernels_hub.kernelization.device import CUDAProperties, Device, ROCMProperties, as_device

    if device is not None:
        as_device(device)  # an unknown one is refused before the model is built
    if capability is None:
        return device
    if not re.fullmatch(r"\d{2,3}|\d{1,2}\.\d", capability, re.ASCII):
        raise typer.BadParameter(
            f"write 90 or 9.0 for capability 9.0, got {capability!r}", param_hint="--capability"
        )
    number = int(capability.replace(".", ""))
    if device == "cuda":
        return Device("cuda", CUDAProperties(number, number))
    if device == "rocm":
        return Device("rocm", ROCMProperties(number, number))
    raise typer.BadParameter("goes with --device cuda or --device rocm", param_hint="--capability")
