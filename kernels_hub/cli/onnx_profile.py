"""`kernels-hub onnx profile FILE`: where the time of a compiled model goes, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels_hub.cli.onnx_bindings import Dims, Shapes, Values, bindings, require_file
from kernels_hub.cli.output import AsJson, echo, print_columns, print_json

if TYPE_CHECKING:
    from kernels_hub.compiler.ir.op import TensorType
    from kernels_hub.compiler.ir.types import Array
    from kernels_hub.compiler.plan.profiling import Profile

_LEADING, _OTHER = 1, 64
"""Sizes of axes that nothing binds: of a first axis, and of all others."""


def profile(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The model.")],
    dim: Dims = None,
    shape: Shapes = None,
    value: Values = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="How often each step is timed; medians are shown.")
    ] = 10,
    most: Annotated[
        int, typer.Option("--most", min=1, help="How many of the slowest steps are listed.")
    ] = 20,
    trace: Annotated[
        Path | None, typer.Option(help="Write all steps as a trace for chrome://tracing and Perfetto.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compile a model, and list its slowest steps: shapes, engine, share of the time, share of the machine's roof.

    Inputs are random. Axes that nothing binds are 1 where they come first, and 64 elsewhere.
    """
    require_file(file)
    if trace is not None and not trace.absolute().parent.is_dir():
        raise typer.BadParameter(f"no folder is there: {trace.parent}", param_hint="--trace")

    from kernels_hub.compiler.pipeline import compile as compile_model

    bound = bindings(dim, shape, value)
    run = compile_model(file, "cpu", wait=True, **bound)
    inputs = {name: _example(of) for name, of in run.signature.inputs.items()}
    found = run.profile(*inputs.values(), repeats=repeats)
    if trace is not None:
        found.to_chrome_trace(trace)
    sizes = {name: list(array.shape) for name, array in inputs.items()}
    if as_json:
        print_json(_document(found, sizes))
    else:
        _print(found, sizes, most)
        if trace is not None:
            echo(f"{trace}: {len(found.steps)} steps")


def _example(of: TensorType) -> Array:
    import numpy as np

    sizes = [
        size if isinstance(size, int) else _LEADING if index == 0 else _OTHER
        for index, size in enumerate(of.shape)
    ]
    random = np.random.default_rng(0)
    if of.dtype.is_float:
        return random.standard_normal(sizes).astype(of.dtype.numpy)
    return random.integers(0, 2, sizes).astype(of.dtype.numpy)


def _document(profile: Profile, sizes: dict[str, list[int]]) -> dict[str, object]:
    total = profile.total.seconds or 1.0
    return {
        "graph": profile.graph,
        "device": profile.device,
        "inputs": sizes,
        "seconds": profile.seconds,
        "steps": [
            {
                "step": step.name,
                "engine": step.engine,
                "shapes": step.shapes,
                "seconds": step.seconds,
                "share of time": step.seconds / total,
                "share of roof": profile.share(step),
                "slow": profile.is_slow(step),
            }
            for step in profile.steps
        ],
    }


def _print(profile: Profile, sizes: dict[str, list[int]], most: int) -> None:
    given = ", ".join(f"{name} {shape}" for name, shape in sizes.items())
    echo(f"{profile.graph} on {profile.device}, {profile.seconds * 1e3:.3f} ms a call; {given}")
    total = profile.total.seconds or 1.0
    ordered = sorted(profile.steps, key=lambda step: -step.seconds)
    rows = [("STEP", "ENGINE", "SHAPES", "US", "TIME", "ROOF", "")]
    for step in ordered[:most]:
        share = profile.share(step)
        rows.append(
            (
                step.name[:48],
                step.engine,
                step.shapes[:48],
                f"{step.seconds * 1e6:.1f}",
                f"{step.seconds / total:.1%}",
                "-" if share is None else f"{share:.0%}",
                "slow" if profile.is_slow(step) else "",
            )
        )
    print_columns(rows)
    slow = [step for step in profile.steps if profile.is_slow(step)]
    part = sum(step.seconds for step in slow) / total
    echo(f"{len(profile.steps)} steps; {len(slow)} below half of their roof take {part:.0%} of the time")
