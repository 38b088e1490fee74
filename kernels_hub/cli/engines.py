"""`kernels-hub engines list` and `engines check FILE`: what runs graphs here, and what says that it can run one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels_hub.cli.onnx_bindings import Dims, Shapes, Values, bindings
from kernels_hub.cli.output import AsJson, echo, print_columns, print_json

if TYPE_CHECKING:
    from kernels_hub.compiler.engines.engine import Device
    from kernels_hub.compiler.engines.registry import Registered
    from kernels_hub.compiler.ir.graph import Graph

engines = typer.Typer(no_args_is_help=True, help="Engines: what runs compiled graphs, plugins included.")

Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="PATH", help="A plugin's file or folder besides; may be given again."),
]


@engines.command("list")
def list_engines(
    plugin: Plugins = None,
    retry: Annotated[
        bool,
        typer.Option("--retry", help="Try plugins again that failed before; else that is done once a day."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List engines: ids, devices, knobs and notes for simple graphs; and plugins that cannot be used, with the reasons.

    Plugins are tried in a child process, and none is imported into this one.
    """
    registry = _registry(plugin)
    if retry:
        registry.retry()
    rows: list[dict[str, Any]] = [
        {"name": row.name, "id": row.id, "source": row.source, **_offer(row)} for row in registry.registered()
    ]
    failed = [{"source": failure.source, "reason": failure.reason} for failure in registry.failures()]
    if as_json:
        print_json({"engines": rows, "failures": failed})
        return
    table = [("ENGINE", "ID", "DEVICES", "SOURCE")]
    table += [
        (row["name"], f"{row['id']:+d}", ", ".join(row["devices"]) or "none here", row["source"])
        for row in rows
    ]
    print_columns(table)
    offers = [(row["name"], "; ".join(_said(row))) for row in rows if row["notes"] or row["knobs"]]
    if offers:
        echo("what they offer and say of themselves, for simple graphs:")
        print_columns(offers)
    if failed:
        echo("not loaded:")
        print_columns([(one["source"], one["reason"]) for one in failed])


@engines.command()
def include() -> None:
    """Print the folder of kernels_hub_engine.h, the C interface of plugins: cc -I "$(kernels-hub engines include)"."""
    from kernels_hub.compiler.engines.plugins.native import HEADER

    echo(str(HEADER.parent))


@engines.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An ONNX file.", dir_okay=False)],
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, rocm …")] = "cpu",
    dim: Dims = None,
    shape: Shapes = None,
    value: Values = None,
    as_written: Annotated[
        bool, typer.Option("--as-written", help="The graph of the file, without the compiler's rewrites.")
    ] = False,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Ask every engine whether it takes a model's whole graph, with the reasons; exit 1 if none does."""
    if not file.is_file():
        raise typer.BadParameter(f"there is no file {file}", param_hint="FILE")
    from kernels_hub.compiler.engines.guard import checked
    from kernels_hub.compiler.importers.onnx import import_onnx
    from kernels_hub.compiler.rewrite.pipeline import rewrite

    where = _device(device)
    registry = _registry(plugin)
    graph: Graph = import_onnx(file, **bindings(dim, shape, value))
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


def _offer(row: Registered) -> dict[str, Any]:
    """Devices, knobs and notes: of a plugin as its trial found them, of a bundled engine as it says now."""
    if row.offer is not None:
        knobs = {knob.name: list(knob.values) for knob in row.offer.knobs}
        return {"devices": list(row.offer.devices), "notes": list(row.offer.notes), "knobs": knobs}
    from kernels_hub.compiler.engines.engine import Device, Support
    from kernels_hub.compiler.engines.guard import checked
    from kernels_hub.compiler.engines.plugins.packing import DEVICES, probes

    answers = {
        device: [checked(row.engine, graph, Device(device)) for graph in probes()] for device in DEVICES
    }
    taken = [one for answer in answers.values() for one in answer if isinstance(one, Support)]
    return {
        "devices": [device for device, found in answers.items() if any(found)],
        "notes": sorted({note.name for one in taken for note in one.notes}),
        "knobs": {knob.name: list(knob.values) for one in taken for knob in one.knobs},
    }


def _said(row: dict[str, Any]) -> list[str]:
    from kernels_hub.compiler.engines.engine import Note

    notes = [Note[one].value for one in row["notes"] if one in Note.__members__]
    return notes + [f"{name}: {' '.join(map(str, values))}" for name, values in row["knobs"].items()]


def _device(text: str) -> Device:
    from kernels_hub.compiler.engines.engine import Device
    from kernels_hub.kernelization.device import DEVICE_TYPES

    kind, _, index = text.partition(":")
    if kind not in DEVICE_TYPES or (index and not index.isdecimal()):
        known = f"{', '.join(DEVICE_TYPES)}, and perhaps a number, as in cuda:1"
        raise typer.BadParameter(f"expected a device: {known}; got {text!r}", param_hint="--device")
    return Device(kind, int(index or 0))
