"""`kernels-hub engines list` and `engines check FILE`: what runs graphs here, and what says that it can run one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels_hub.cli.output import AsJson, echo, print_columns, print_json

if TYPE_CHECKING:
    from kernels_hub.compiler.engines.engine import Device, Engine
    from kernels_hub.compiler.ir.graph import Graph

engines = typer.Typer(no_args_is_help=True, help="Engines: what runs compiled graphs, plugins included.")

Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="PATH", help="A plugin's file or folder besides; may be given again."),
]


@engines.command("list")
def list_engines(plugin: Plugins = None, as_json: AsJson = False) -> None:
    """List engines with the devices on which each takes a simple graph, and plugins that did not load, with reasons."""
    registry = _registry(plugin)
    rows: list[dict[str, Any]] = [
        {
            "name": row.name,
            "id": row.id,
            "source": row.source,
            "devices": _devices(row.engine),
        }
        for row in registry.registered()
    ]
    failed = [{"source": one.source, "reason": one.reason} for one in registry.failures()]
    if as_json:
        print_json({"engines": rows, "failures": failed})
        return
    table = [("ENGINE", "ID", "DEVICES", "SOURCE")]
    table += [
        (row["name"], f"{row['id']:+d}", ", ".join(row["devices"]) or "none here", row["source"])
        for row in rows
    ]
    print_columns(table)
    if failed:
        echo("not loaded:")
        print_columns([(one["source"], one["reason"]) for one in failed])


@engines.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An ONNX file.", dir_okay=False)],
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, rocm …")] = "cpu",
    dim: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=SIZE", help="Bind a named axis; may be given again."),
    ] = None,
    as_written: Annotated[
        bool, typer.Option("--as-written", help="The graph of the file, without the compiler's rewrites.")
    ] = False,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Ask every engine whether it takes a model's whole graph, with the reasons; exit 1 if none does."""
    if not file.is_file():
        raise typer.BadParameter(f"there is no file {file}", param_hint="FILE")
    from kernels_hub.cli.onnx import _sizes
    from kernels_hub.compiler.engines.guard import checked
    from kernels_hub.compiler.importers.onnx import import_onnx
    from kernels_hub.compiler.rewrite.pipeline import rewrite

    where = _device(device)
    registry = _registry(plugin)
    graph: Graph = import_onnx(file, dims=dict(_sizes(dim or [])))
    if not as_written:
        graph = rewrite(graph).graph
    count = len(graph.live())
    rows: list[dict[str, Any]] = []
    for engine in registry.engines():
        answer: Any = checked(engine, graph, where)
        rows.append(
            {
                "engine": engine.name,
                "takes": bool(answer),
                "reason": "" if answer else answer.reason,
                "values": [] if answer else sorted(answer.values),
                "notes": sorted(note.value for note in answer.notes) if answer else [],
                "workspace": answer.workspace if answer else None,
            }
        )
    if as_json:
        print_json({"file": str(file), "device": str(where), "nodes": count, "engines": rows})
    else:
        echo(f"{file}: {count} nodes, on {where}")
        table = [("ENGINE", "TAKES IT", "")]
        table += [
            (
                row["engine"],
                "yes" if row["takes"] else "no",
                "; ".join(row["notes"]) if row["takes"] else row["reason"],
            )
            for row in rows
        ]
        print_columns(table)
    if not any(row["takes"] for row in rows):
        raise typer.Exit(1)


def _registry(plugin: list[Path] | None) -> Any:
    from kernels_hub.compiler.engines import registry

    for one in plugin or ():
        if not one.exists():
            raise typer.BadParameter(f"there is no file or folder {one}", param_hint="--plugin")
    if plugin:
        registry.set_plugin_paths(plugin)
    return registry


def _devices(engine: Engine) -> list[str]:
    """Types of devices on which it takes x + x."""
    from kernels_hub.compiler.engines.engine import Device
    from kernels_hub.compiler.engines.guard import checked
    from kernels_hub.compiler.ir.graph import Graph

    graph = Graph("probe")
    x = graph.input("x", (8,))
    graph.output("y", x + x)
    return [one for one in ("cpu", "cuda", "rocm") if checked(engine, graph, Device(one))]


def _device(text: str) -> Device:
    from kernels_hub.compiler.engines.engine import Device
    from kernels_hub.layer.device import DEVICE_TYPES

    kind, _, index = text.partition(":")
    if kind not in DEVICE_TYPES or (index and not index.isdecimal()):
        known = f"{', '.join(DEVICE_TYPES)}, and perhaps a number, as in cuda:1"
        raise typer.BadParameter(f"expected a device: {known}; got {text!r}", param_hint="--device")
    return Device(kind, int(index or 0))
