"""`kernels-hub tune SOURCE`: search for the fastest way to run a layer, and write it into its repository."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels_hub.cli.onnx_bindings import Dims, Shapes, Values
from kernels_hub.cli.output import AsJson, echo, print_columns, print_json

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from kernels_hub.compiler.engines.engine import Device
    from kernels_hub.compiler.export.source import Source
    from kernels_hub.compiler.search.result import SearchResult, Standing

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SHOWN = 8
_INTERRUPTED = "it was interrupted"


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip())
    if match is None or match[2] not in _UNITS or not float(match[1]):
        raise typer.BadParameter(f"expected a time like 60s, 5m or 1h, got {text!r}", param_hint="--budget")
    return float(match[1]) * _UNITS[match[2]]


def tune(
    source: Annotated[
        str,
        typer.Argument(
            help="A repository that kernels-hub compile wrote, an ONNX file, or package.module:factory."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the layer, tuned, into this folder; see compile."),
    ] = None,
    layer: Annotated[
        str | None, typer.Option("--layer", metavar="NAME", help="The layer's name, a class name.")
    ] = None,
    submodule: Annotated[
        str | None, typer.Option(metavar="PATH", help="One layer of the model, as in layers.0.mlp.")
    ] = None,
    dim: Dims = None,
    shape: Shapes = None,
    value: Values = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZE",
            help="Be fast for this size of a dim that may change. Default: the example's.",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda:N, rocm:N, best; sm_90 …: compile, time nothing.")
    ] = "best",
    budget: Annotated[str, typer.Option(metavar="TIME", help="Search so long: 60s, 5m, 1h.")] = "60s",
    seed: Annotated[
        int, typer.Option(min=0, help="Of inputs, and of the order in which things are tried.")
    ] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes that build candidates. Default: one a CPU.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Build and measure on a Ray cluster; local: one on this machine."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Search on, also where a search ended; nothing known is repeated."),
    ] = False,
    afresh: Annotated[bool, typer.Option("--afresh", help="Use nothing of earlier searches.")] = False,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page with everything that was tried.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search for the fastest way to run a layer.

    Graphs that compute the same, and other loops, are tried; each is compared with the oracle before it is timed. What
    is found is kept, and written into the repository where SOURCE is one, or where -o names one. Ctrl-C keeps what is
    known; run it again to go on.
    """
    target = _target(
        source, out, layer, submodule, {"--dim": dim or [], "--shape": shape or [], "--value": value or []}
    )
    if resume and afresh:
        raise typer.BadParameter("contradict each other", param_hint="--resume and --afresh")
    if page is not None and not page.absolute().parent.is_dir():
        raise typer.BadParameter(f"no folder is there: {page.parent}", param_hint="--page")
    settings = _Settings(
        device, _seconds(budget), seed, _given_sizes(size or []), jobs, ray, resume=resume, afresh=afresh
    )
    dtypes: list[_TunedDtype] = []
    written = None
    with contextlib.redirect_stdout(sys.stderr):  # stdout is the report's
        try:
            _search_all(target, settings, dtypes)
            interrupted = any(dtype.interrupted for dtype in dtypes)
            if not interrupted and target.folder is not None:
                written = _write(target, dtypes)
        except KeyboardInterrupt:
            interrupted = True
    documents = [dtype.document for dtype in dtypes]
    if page is not None and documents:
        _write_page(page, documents)
    if as_json:
        print_json({"searches": documents, "written": written})
    else:
        for one in dtypes:
            _show(one.document)
        if written is not None:
            echo(f"written to {written}; next: kernels-hub build {written}")
        if page is not None and documents:
            echo(f"everything that was tried: {page}")
    if interrupted:
        again = shlex.join(["kernels-hub", *(one for one in sys.argv[1:] if one != "--afresh")])
        echo(f"interrupted; what is known is kept, go on with: {again}", err=True)
        raise typer.Exit(130)


@dataclass(frozen=True)
class _Target:
    """What is tuned. made: the options of kernels-hub compile. folder: where it is written, None nowhere."""

    made: Mapping[str, Any]
    folder: Path | None
    command: str | None


@dataclass(frozen=True)
class _Settings:
    device: str
    budget: float
    seed: int
    sizes: Mapping[str, int]
    jobs: int | None
    ray: str | None
    resume: bool
    afresh: bool


@dataclass(frozen=True)
class _TunedDtype:
    """Of one dtype. document: what --json and the page show."""

    dtype: str
    arch: str
    result: SearchResult
    document: Mapping[str, Any]
    interrupted: bool


# -- what is tuned ----------------------------------------------------------------------------------


def _target(
    source: str,
    out: Path | None,
    layer: str | None,
    submodule: str | None,
    bound: Mapping[str, Sequence[str]],
) -> _Target:
    if Path(source).is_dir():
        if out is not None or layer is not None or submodule is not None or any(bound.values()):
            raise typer.BadParameter(
                f"{source} says itself what it was made of: leave out -o, --layer, --submodule, --dim, --shape, "
                "--value",
                param_hint="SOURCE",
            )
        command = _made_by(Path(source))
        return _Target(_options(shlex.split(command)[2:]), Path(source), command)
    if out is not None and layer is None:
        raise typer.BadParameter("-o writes a layer: give it a name with --layer", param_hint="--layer")
    arguments = [source, "--layer", layer or _name_of(source), "-o", str(out or ".")]
    if submodule is not None:
        arguments += ["--submodule", submodule]
    arguments += [word for option, given in bound.items() for one in given for word in (option, one)]
    return _Target(_options(arguments), out, shlex.join(["kernels-hub", "compile", *arguments]))


def _name_of(source: str) -> str:
    """A name for the graph where no layer is written."""
    return (
        re.sub(r"\W", "_", Path(source).stem if source.endswith(".onnx") else source.rpartition(":")[2])
        or "layer"
    )


def _made_by(folder: Path) -> str:
    """The command of a repository's card."""
    from kernels_hub.compiler.export.package import MARK

    manifest, card = folder / "kernel.toml", folder / "README.md"
    if not manifest.is_file() or not manifest.read_text(encoding="utf-8").startswith(MARK):
        raise typer.BadParameter(
            f"{folder} was not written by kernels-hub compile, so there is no graph to search",
            param_hint="SOURCE",
        )
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    match = re.search(r"^## Made by\n\n```\n(kernels-hub compile .*)\n```$", text, re.MULTILINE)
    if match is None:
        raise typer.BadParameter(
            f"{card} does not say by which command it was made: name its source instead, with -o {folder} --layer NAME",
            param_hint="SOURCE",
        )
    return match[1]


def _options(arguments: list[str]) -> dict[str, Any]:
    """The options of a kernels-hub compile command line."""
    from kernels_hub.cli.compile import compile as compile_layer

    parser = typer.Typer()
    parser.command()(compile_layer)
    command = typer.main.get_command(parser)
    with command.make_context("compile", list(arguments)) as context:
        return dict(context.params)


def _given_sizes(texts: list[str]) -> dict[str, int]:
    sizes = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if not name or not number.isdecimal() or not int(number):
            raise typer.BadParameter(f"write NAME=SIZE, as in batch=8, got {text!r}", param_hint="--size")
        sizes[name] = int(number)
    return sizes


# -- searching --------------------------------------------------------------------------------------


def _search_all(target: _Target, settings: _Settings, dtypes: list[_TunedDtype]) -> None:
    """A search for each dtype of the layer, which share the budget; what each finds is added to `found`."""
    from torch import nn

    from kernels_hub.cli.compile import emit_arguments
    from kernels_hub.compiler.export.emit_layer import _sources
    from kernels_hub.compiler.export.source import evaluating

    source, given = emit_arguments(target.made)
    names = (
        "args",
        "kwargs",
        "dynamic_shapes",
        "submodule",
        "dims",
        "shapes",
        "values",
        "dtypes",
        "layer_name",
    )
    place = _device(settings.device)
    module = source if isinstance(source, nn.Module) else nn.Module()
    with evaluating(module):
        asked: list[Any] = [given.get(name) for name in names]
        sources, *_ = _sources(source, *asked)
    with _executor(settings, place) as executor:
        for dtype, one in sources.items():
            dtypes.append(_search(dtype, one, place, settings, settings.budget / len(sources), executor))
            if dtypes[-1].interrupted:
                break


def _device(text: str) -> Device:
    """A device, or the architecture of a GPU that is not here."""
    from kernels_hub.compiler.engines.devices import find_device
    from kernels_hub.compiler.engines.engine import Device

    if re.fullmatch(r"sm_\d+[a-z]?|gfx[0-9a-f]+", text) is None:
        return find_device(text)
    best = find_device("best")
    if best.arch == text:
        return best
    if best.type != "cpu":
        raise typer.BadParameter(
            f"this machine has a GPU of {best.arch}; candidates for {text} are compiled where none is",
            param_hint="--device",
        )
    return Device("cuda" if text.startswith("sm_") else "rocm", 0, text)


@contextlib.contextmanager
def _executor(settings: _Settings, device: Device) -> Iterator[Executor]:
    if settings.ray is not None:
        import torch

        from kernels_hub.compiler.search.ray_executor import RayExecutor

        gpus = int(device.type != "cpu" and torch.cuda.is_available())
        with RayExecutor(settings.ray, settings.jobs, gpus=gpus) as cluster:
            yield cluster
        return
    from kernels_hub.compiler.search.workers import Workers

    with Workers(settings.jobs) as workers:
        yield workers


def _search(
    dtype: str, source: Source, device: Device, settings: _Settings, budget: float, executor: Executor
) -> _TunedDtype:
    from kernels_hub.compiler.export.check import first_sizes
    from kernels_hub.compiler.export.checked import machine
    from kernels_hub.compiler.ir.printer import print_graph
    from kernels_hub.compiler.search.journal import Journal
    from kernels_hub.compiler.search.search import search

    graph = source.graph
    graph.weights.update(source.arrays)
    sizes = {**first_sizes(source), **settings.sizes}
    if unknown := [name for name in settings.sizes if name not in graph.symbols]:
        known = ", ".join(graph.symbols) or "none"
        message = f"no dim is called {unknown[0]!r}; those that may change: {known}"
        raise typer.BadParameter(message, param_hint="--size")
    journal = Journal.of(print_graph(graph, data=True), device, settings.seed, {"sizes": sizes})
    if settings.afresh:
        journal.begin_anew()
    with _shown(graph.name, budget) as progress:
        result = search(
            graph, device, budget=budget, seed=settings.seed, sizes=sizes, executor=executor, journal=journal,
            progress=progress, again=settings.resume or settings.afresh,
        )  # fmt: skip
    interrupted = result.interrupted == _INTERRUPTED
    head = {
        "graph": graph.name,
        "dtype": dtype,
        "device": str(device),
        "machine": machine(),
        "sizes": sizes,
        "seed": settings.seed,
        "budget": budget,
        "spent": round(result.elapsed, 3),
        "interrupted": interrupted,
        "remembered": result.remembered,
    }
    return _TunedDtype(
        dtype, device.arch, result, {**head, **_rows(result), "log": list(result.log)}, interrupted
    )


def _rows(result: SearchResult) -> dict[str, Any]:
    base, winner = result.default, result.winner
    rows = []
    for row in result.rows:
        seconds, before = row.measured.seconds, base.measured.seconds
        rows.append(
            {
                "digest": row.candidate.digest,
                "origin": row.candidate.origin,
                "choices": dict(row.candidate.choices),
                "predicted": row.candidate.predicted,
                "status": row.measured.status,
                "seconds": seconds,
                "times_faster": before / seconds if before and seconds else None,
                "reason": row.measured.reason,
                "facts": dict(row.measured.facts),
                "winner": row is winner and row.measured.status == "fastest",
                "baseline": row is base,
                "graph": row.candidate.graph if row is winner else "",
            }
        )
    return {"baseline_seconds": base.measured.seconds, "times_faster": result.speedup, "candidates": rows}


@contextlib.contextmanager
def _shown(name: str, budget: float) -> Iterator[Any]:
    """A line on stderr that says how far it is, where there is a terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from kernels_hub.compiler.viewing.tuning import amount
    from kernels_hub.escaping import TerminalText

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"{escape(TerminalText(name))}: begins", total=budget)

        def tell(step: Standing) -> None:
            latest = step.latest.candidate.origin if step.latest is not None else ""
            best = f", best {amount(step.best)}" if step.best is not None else ""
            text = f"{name}: {step.tried} tried{best}; {step.stage}: {latest}"
            shown = escape(TerminalText(text)[: console.width - 40])
            bar.update(task, completed=min(step.elapsed, budget), description=shown)

        yield tell


# -- results ----------------------------------------------------------------------------------------


def _write(target: _Target, dtypes: list[_TunedDtype]) -> str | None:
    """Emit the layer again, from what was found; the folder, or None where nothing is to be written."""
    from kernels_hub.cli.compile import emit_arguments
    from kernels_hub.compiler.export.emit_layer import emit_layer
    from kernels_hub.compiler.export.tuned import Tuned, merged, read_tuned

    assert target.folder is not None
    new = []
    for dtype in dtypes:
        row, base = dtype.result.winner, dtype.document["baseline_seconds"]
        if row is dtype.result.default or not row.measured.ran:
            continue
        seconds = row.measured.seconds or 0.0
        new.append(
            Tuned(
                dtype.dtype, dtype.arch, row.candidate.graph, dict(row.candidate.choices),
                dict(dtype.document["sizes"]), seconds, base or 0.0, dtype.document["machine"], row.candidate.origin,
            )
        )  # fmt: skip
    if not new and target.folder.exists():
        return None
    source, given = emit_arguments(target.made)
    tuned = merged(read_tuned(target.folder), new)
    emit_layer(source, out=target.folder, command=target.command, tuned=tuned, **given)
    return str(target.folder)


def _write_page(path: Path, documents: list[Mapping[str, Any]]) -> None:
    """The page of the first search; those of further dtypes beside it."""
    from kernels_hub.compiler.viewing.tuning import render_tuning

    for index, document in enumerate(documents):
        file = path if not index else path.with_stem(f"{path.stem}-{document['dtype']}")
        file.write_text(render_tuning(document), encoding="utf-8")


def _show(document: Mapping[str, Any]) -> None:
    from kernels_hub.compiler.viewing.tuning import amount

    rows = document["candidates"]
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    not_timed = "".join(f", {counts[one]} {one}" for one in ("wrong", "failed", "pruned") if one in counts)
    dtype = f" in {document['dtype']}" if document["dtype"] else ""
    tried = "1 candidate" if len(rows) == 1 else f"{len(rows)} candidates"
    echo(
        f"{document['graph']}{dtype} on {document['device']}: {tried} in {document['spent']:.1f} s{not_timed}"
    )
    shown = [row for row in rows if row["seconds"] is not None or row["winner"]][:_SHOWN]
    shown += [row for row in rows if row["baseline"] and row not in shown]
    lines: list[tuple[str, ...]] = [("MEASURED", "TIMES FASTER", "PREDICTED", "FOUND AS")]
    for row in shown:
        faster = "-" if row["times_faster"] is None else f"{row['times_faster']:.2f}"
        lines.append((amount(row["seconds"]), faster, amount(row["predicted"] or None), row["origin"]))
    print_columns(lines)
    winner = next((row for row in rows if row["winner"]), None)
    if winner is None:
        echo("nothing was timed: no such device is here" if shown else "nothing ran")
    elif winner["baseline"]:
        echo("nothing that was tried is faster than the default")
    else:
        faster = f", {winner['times_faster']:.2f} times the default" if winner["times_faster"] else ""
        echo(f"fastest{faster}: {winner['origin']}")
    if document["remembered"]:
        echo("this is what an earlier search found; --resume searches on, --afresh begins again")
