"""`kernels-hub view FILE -o PAGE`: a model as a picture, or as a page to look around in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels_hub.cli.output import echo

if TYPE_CHECKING:
    from kernels_hub.compiler.errors import OnnxImportError
    from kernels_hub.compiler.ir.graph import Graph, Node, Value

FORMATS = (".html", ".svg", ".dot")


def view(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="An ONNX file, a program of torch.export.save (.pt2), or the printed text of a graph.",
            dir_okay=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="A page (.html), picture (.svg) or Graphviz file (.dot). Default: FILE.html",
        ),
    ] = None,
    optimized: Annotated[
        bool, typer.Option("--optimized", help="Show the graph before and after the compiler's rewrites.")
    ] = False,
    size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZE", help="A size for a symbolic dim, which costs on the page are computed at."
        ),
    ] = None,
    mark: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT[=NOTE]",
            help="Mark nodes: %12 (a value, of the graph before), the name of an op, or part of an ONNX name.",
        ),
    ] = None,
) -> None:
    """See a model as an interactive page or a picture.

    One HTML file without a network, an SVG, or a Graphviz file. Of an ONNX file that cannot be imported: its nodes as
    they are, those that stop it marked.
    """
    target = output if output is not None else Path(f"{file.name}.html")
    if target.suffix not in FORMATS:
        raise typer.BadParameter(f"ends in none of {', '.join(FORMATS)}: {target}", param_hint="-o")
    if not file.is_file():
        raise typer.BadParameter(f"no file is there: {file}", param_hint="FILE")
    if target.exists() and target.samefile(file):
        raise typer.BadParameter(f"is the file that is read: {target}", param_hint="-o")
    if not target.parent.is_dir():
        raise typer.BadParameter(f"no folder is there: {target.parent}", param_hint="-o")
    sizes = _sizes(size or [])

    from kernels_hub.compiler.errors import OnnxImportError
    from kernels_hub.compiler.viewing import view as views

    try:
        graph = _read(file)
    except OnnxImportError as error:
        _view_nodes(file, target, error)
        return
    after = _rewritten(graph) if optimized else None
    marks = _marks([graph] if after is None else [graph, after], mark or [])
    if target.suffix == ".html":
        text = views.to_html(graph, after, sizes=sizes, marks=marks)
    elif target.suffix == ".dot":
        text = views.to_dot(graph, after, marks=marks)
    else:
        shown = after or graph
        text = views.to_svg(
            shown, marks={value: note for value, note in marks.items() if value.graph is shown}
        )
    target.write_text(text, encoding="utf-8")
    nodes = (
        f"{len(graph.nodes)} nodes"
        if after is None
        else f"{len(graph.nodes)} nodes before, {len(after.nodes)} after"
    )
    echo(f"{target}: {graph.name}, {nodes}")


def _marks(graphs: list[Graph], texts: list[str]) -> dict[Value, str]:
    """What --mark names, in each graph. Raises typer.BadParameter where it names nothing."""
    marks: dict[Value, str] = {}
    for text in texts:
        what, _, note = text.partition("=")
        found = [
            node.results[0]
            for graph in (graphs[:1] if what.startswith("%") else graphs)
            for node in (graph.live() if graph.outputs else graph.nodes)
            if node.results and node.op.name not in {"parameter", "constant"} and _is_named(node, what)
        ]
        if not what or not found:
            raise typer.BadParameter(
                f"{what!r} is no value, op or name of the graph: expected one such as %12, matmul, or part of an "
                "ONNX name",
                param_hint="--mark",
            )
        marks |= dict.fromkeys(found, note)
    return marks


def _is_named(node: Node, what: str) -> bool:
    return what == node.op.name or what in {f"%{one.id}" for one in node.results} or what in node.origin


def _view_nodes(file: Path, target: Path, error: OnnxImportError) -> None:
    """The nodes of a model that cannot be imported as they are, those that stop it marked."""
    import onnx

    from kernels_hub.compiler.importers.onnx_file import read_onnx
    from kernels_hub.compiler.viewing.view import render_onnx

    model = read_onnx(
        onnx.ModelProto.FromString(file.read_bytes())
    ).model  # pictures are made of protobuf's messages
    reasons = {
        unsupported.path[0] if unsupported.path else unsupported.node: unsupported.reason
        for unsupported in reversed(error.unsupported)
    }
    reasons |= {
        name.removeprefix("-> "): reason for name, reason in reasons.items() if name.startswith("-> ")
    }
    target.write_text(render_onnx(model, reasons, target.suffix), encoding="utf-8")
    echo(
        f"{target}: {model.graph.name or file.name}, {len(model.graph.node)} ONNX nodes, {len(error.unsupported)} "
        f"of which cannot be imported (kernels-hub onnx check {file})"
    )


def _sizes(given: list[str]) -> dict[str, int]:
    sizes = {}
    for one in given:
        name, _, number = one.rpartition("=")
        if not name or not (number.isascii() and number.isdigit()):
            raise typer.BadParameter(f"write NAME=SIZE, as in batch=8, got {one!r}", param_hint="--size")
        sizes[name] = int(number)
    return sizes


def _read(file: Path) -> Graph:
    """A graph's printed text starts with the word graph, which no ONNX file does."""
    from kernels_hub.compiler.importers.torch_archive import is_torch_archive

    with file.open("rb") as opened:
        start = opened.read(6)
    if start == b"KHPLAN" or file.suffix == ".khplan":
        raise typer.BadParameter(
            f"{file} is a compiled plan: view the ONNX file that it was made of, or call graph.to_html() on the graph",
            param_hint="FILE",
        )
    if is_torch_archive(file):
        from kernels_hub.compiler.importers.torch_file import import_program_file

        return import_program_file(file).graph
    if start != b"graph ":
        from kernels_hub.compiler.importers.onnx import import_onnx

        return import_onnx(file)

    from kernels_hub.compiler.errors import ParseError
    from kernels_hub.compiler.ir.parser import parse_graph

    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ParseError(f"{file} is no UTF-8 text, as printed graphs are: {error}") from error
    try:
        return parse_graph(text)
    except ParseError as error:
        raise ParseError(f"{file}: {error}") from error


def _rewritten(graph: Graph) -> Graph:
    from kernels_hub.compiler.rewrite.pipeline import rewrite

    return rewrite(graph).graph
