"""`kernels-hub compile SOURCE`: a module, or a model's file, becomes a layer repository in source form."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels_hub.cli.onnx_bindings import Dims, Shapes, Values, bindings
from kernels_hub.cli.output import AsJson, echo, print_columns, print_json

if TYPE_CHECKING:
    from kernels_hub.compiler.export.emit_layer import Emitted
    from kernels_hub.compiler.export.gpu_binaries import Compiled
    from kernels_hub.compiler.export.gradient_check import CheckedGradients


def compile(  # noqa: A001  (the command's name)
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="An ONNX file, a program of torch.export.save (.pt2), or package.module:factory: the factory "
            "returns (module, args) or (module, args, dynamic_shapes)."
        ),
    ],
    layer: Annotated[str, typer.Option("--layer", metavar="NAME", help="The layer's name, a class name.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A folder that is new, or was written by this.")],
    submodule: Annotated[
        str | None, typer.Option(metavar="PATH", help="One layer of the model, as in layers.0.mlp.")
    ] = None,
    dim: Dims = None,
    shape: Shapes = None,
    value: Values = None,
    name: Annotated[str | None, typer.Option(help="The kernel's name. Default: made of the layer's.")] = None,
    version: Annotated[str, typer.Option(help="The release that kernel.toml states.")] = "0.1.0",
    dtypes: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="float32,bfloat16 …: a program for each. Default: the module's own."
        ),
    ] = None,
    aot: Annotated[
        str | None,
        typer.Option(metavar="ARCHS", help="sm_80,sm_90,sm_100,gfx942: GPU binaries that come along."),
    ] = None,
    prebuilt: Annotated[
        bool, typer.Option("--prebuilt", help="Ship the C++ compiled for this kind of CPU, too.")
    ] = False,
    no_triton: Annotated[bool, typer.Option("--no-triton", help="Write no GPU kernels.")] = False,
    interpret: Annotated[
        bool, typer.Option("--interpret", help="Compare the GPU kernels, too, in Triton's interpreter.")
    ] = False,
    no_benchmark: Annotated[bool, typer.Option("--no-benchmark", help="Do not time it.")] = False,
    no_training: Annotated[
        bool, typer.Option("--no-training", help="No programs for gradients, even where there could be.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compile a layer: C++ for the CPU, Triton for GPUs.

    They are built where they run, or come along. Writes kernel.toml, the Python package, the generated programs and
    a card. The result is compared with the module and with the oracle before the command ends. Go on with
    kernels-hub build and kernels-hub publish.
    """
    options = dict(locals())
    from kernels_hub.compiler.export.emit_layer import emit_layer

    found, given = emit_arguments(options)
    emitted = emit_layer(found, out=out, command=command_of(context), **given)
    if as_json:
        print_json(_document(emitted))
        return
    _show(emitted)


def emit_arguments(options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The source, and what `emit_layer` takes of this command's options, but for the folder and the command."""
    source = options["source"]
    bound = {option: options[option] for option in ("dim", "shape", "value")}
    given = {name: options[name] for name in ("submodule", "name", "version", "prebuilt", "interpret")}
    given |= {
        "layer_name": options["layer"],
        "benchmark": not options["no_benchmark"],
        "training": not options["no_training"],
        "triton": not options["no_triton"],
        "dtypes": _names(options["dtypes"]),
        "aot": _names(options["aot"]) or (),
    }
    if source.endswith((".onnx", ".pt2")) or Path(source).is_file():
        if not Path(source).is_file():
            raise typer.BadParameter(f"there is no file {source}", param_hint="SOURCE")
        return source, {**given, **bindings(**bound)}
    for option, texts in bound.items():
        if texts:
            raise typer.BadParameter(
                f"a factory returns its dynamic shapes; --{option} is for ONNX files",
                param_hint=f"--{option}",
            )
    found, args, dynamic_shapes = _from_factory(source)
    given["kwargs" if isinstance(args, dict) else "args"] = args
    return found, {**given, "dynamic_shapes": dynamic_shapes}


def _from_factory(text: str) -> tuple[Any, Any, Any]:
    """(module, arguments, dynamic shapes)."""
    from torch import Tensor, nn

    from kernels_hub.cli.factory import call_factory

    found = call_factory(text)
    match found:
        case (nn.Module() as module, args):
            shapes = None
        case (nn.Module() as module, args, shapes):
            pass
        case _:
            what = f"a tuple of {len(found)}" if isinstance(found, tuple) else f"a {type(found).__name__}"
            raise typer.BadParameter(
                f"{text} returns {what}; expected (module, args) or (module, args, dynamic_shapes)",
                param_hint="SOURCE",
            )
    if not isinstance(args, (tuple, list, dict)):
        if not isinstance(args, Tensor):
            raise typer.BadParameter(
                f"{text}: args is a {type(args).__name__}; expected a tuple, or a dict of keyword arguments",
                param_hint="SOURCE",
            )
        args = (args,)
    return module, args, shapes


def _names(text: str | None) -> tuple[str, ...] | None:
    """ "sm_90, gfx942" -> ("sm_90", "gfx942")."""
    return None if text is None else tuple(one.strip() for one in text.split(",") if one.strip())


def command_of(context: typer.Context) -> str:
    """The command line, by which the layer is made again."""
    words = ["kernels-hub", "compile"]
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name == "as_json" or value in (None, False, [], ()) or value == parameter.default:
            continue
        if parameter.param_type_name == "argument":
            words.append(str(value))
        elif value is True:
            words.append(parameter.opts[0])
        else:
            for one in value if isinstance(value, (list, tuple)) else [value]:
                words += [parameter.opts[0], str(one)]
    return shlex.join(words)


def _show(emitted: Emitted) -> None:
    rows: list[tuple[str, ...]] = [
        ("SIZES", f"ERROR, OF {emitted.checked.original}".upper(), "OF THE ORACLE", "TIMES FASTER")
    ]
    for one in emitted.checked.cases:
        sizes = ", ".join(
            [*([one.dtype] if one.dtype else []), *(f"{name} = {size}" for name, size in one.sizes.items())]
        )
        errors = ["-" if error is None else f"{error:.1e}" for error in (one.original, one.oracle)]
        rows.append((sizes or "fixed", *errors, "-" if one.ratio is None else f"{one.ratio:.2f}"))
    echo(f"{emitted.layer_name}: {len(emitted.program.steps)} C++ kernels, on {emitted.checked.machine}")
    print_columns(rows)
    echo(_on_gpus(emitted))
    if emitted.prebuilt:
        echo(f"native code for {', '.join(dict.fromkeys(prebuilt.isa for prebuilt in emitted.prebuilt))}")
    gradients = emitted.gradients
    if gradients is not None and gradients.cases:
        echo(f"gradients: off by {max(case.error for case in gradients.cases):.1e} at most")
    elif gradients is not None:
        echo(f"no gradients: {gradients.reason}")
    echo(f"written to {emitted.path}; next: kernels-hub build {emitted.path}")


def _on_gpus(emitted: Emitted) -> str:
    lacking = dict.fromkeys(program.without_triton for program in emitted.programs if program.triton is None)
    if lacking:
        return f"no GPU kernels: {'; '.join(lacking)}"
    errors = [interpreted.error for interpreted in emitted.interpreted if interpreted.error is not None]
    off = f", off by {max(errors):.1e} at most in the interpreter" if errors else ""
    if not emitted.ahead:
        return f"GPU kernels: Triton, compiled where they run{off}"
    binaries = [one for one in emitted.ahead if one.binary is not None]
    archs = ", ".join(dict.fromkeys(one.arch for one in emitted.ahead))
    left = len(emitted.ahead) - len(binaries)
    return (
        f"GPU kernels: {len(binaries)} binaries for {archs}"
        + (f", {left} left to Triton" if left else "")
        + off
    )


def _document(emitted: Emitted) -> dict[str, Any]:
    return {
        "path": str(emitted.path),
        "name": emitted.name,
        "layer": emitted.layer_name,
        "kernels": list(emitted.program.steps),
        "files": list(emitted.files),
        "machine": emitted.checked.machine,
        "original": emitted.checked.original,
        "without_gpu": list(
            dict.fromkeys(program.without_triton for program in emitted.programs if program.triton is None)
        ),
        "prebuilt": [
            {"file": prebuilt.file, "isa": prebuilt.isa, "bytes": prebuilt.nbytes}
            for prebuilt in emitted.prebuilt
        ],
        "interpreted": [
            {
                "program": interpreted.program,
                "sizes": dict(interpreted.sizes),
                "error": interpreted.error,
                "reason": interpreted.reason or None,
            }
            for interpreted in emitted.interpreted
        ],
        "ahead": [_ahead(one) for one in emitted.ahead],
        "cases": [
            {
                "sizes": dict(case.sizes),
                "dtype": case.dtype or None,
                "error": case.original,
                "oracle_error": case.oracle,
                "eager_ms": case.eager_ms,
                "compiled_ms": case.compiled_ms,
                "times_faster": case.ratio,
            }
            for case in emitted.checked.cases
        ],
        "gradients": None if emitted.gradients is None else _gradients(emitted.gradients),
    }


def _ahead(compiled: Compiled) -> dict[str, Any]:
    return {
        "program": compiled.program,
        "arch": compiled.arch,
        "kernel": compiled.kernel,
        "constants": dict(compiled.constants),
        "registers": compiled.resources.registers,
        "spills": compiled.resources.spills,
        "shared": compiled.resources.shared,
        "bytes": compiled.nbytes,
        "left_out": compiled.reason or None,
    }


def _gradients(checked: CheckedGradients) -> dict[str, Any]:
    return {
        "inputs": list(checked.asked),
        "reason": checked.reason or None,
        "cases": [
            {
                "sizes": dict(case.sizes),
                "error": case.error,
                "eager_ms": case.eager_ms,
                "compiled_ms": case.compiled_ms,
                "times_faster": case.ratio,
            }
            for case in checked.cases
        ],
    }
