"""README.md of what is emitted: what it is, how it is used, how right and how fast it is, how it is made again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernels_hub.compiler.emitting.check import Case, Checked
from kernels_hub.compiler.emitting.source import Source
from kernels_hub.compiler.emitting.table import Parts
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.op import show
from kernels_hub.compiler.ir.printer import print_graph

_LARGEST_GRAPH = 80
"""Nodes of a graph that the card shows."""


def write_card(
    parts: Parts, source: Source, checked: Checked, name: str, version: str, summary: str, command: str | None
) -> str:
    """The text of README.md."""
    sections = [
        f"# {name}",
        f"{summary}. Written by `kernels-hub compile`, release {version}.",
        _usage(parts.layer, standalone=source.example is None),
        _inputs(source),
        _correctness(checked),
        _speed(checked),
        _graph(parts.source.graph, parts),
        _again(command),
    ]
    return "\n\n".join(one for one in sections if one) + "\n"


def _usage(layer: str, *, standalone: bool) -> str:
    text = f"""## From this folder

```python
from kernels_hub import LocalLayerRepository, Mode, kernelize, use_kernel_mapping

layer = LocalLayerRepository(".", layer_name="{layer}")
with use_kernel_mapping({{"{layer}": {{"cpu": layer}}}}):
    kernelize(model, mode=Mode.INFERENCE)
```

The C++ is compiled at its first use on a machine, in a few seconds, and kept. The layer reads the weights of the
module that it replaces, and follows when they change. Where a call is not what it was compiled for (another dtype or
device, a shape outside of what is declared below, a gradient that is asked for, no compiler), the module's own forward
runs, and the logger `kernels_hub` says why, once."""
    if standalone:
        text += """

On its own, with the weights of the ONNX file:

```python
from kernels_hub import get_local_kernel

model = get_local_kernel(".").load()
```"""
    return text


def _inputs(source: Source) -> str:
    rows = [
        (f"`{name}`", kind, one.dtype.name, f"`{show(one.shape)}`")
        for kind, values in (("input", source.graph.inputs), ("output", source.graph.outputs))
        for name, one in values.items()
    ]
    facts = [
        f"`{one.only_symbol.facts}`" for one in source.graph.symbols.values() if one.only_symbol is not None
    ]
    sizes = f"\n\nSizes: {', '.join(facts)}." if facts else ""
    return "## Inputs and outputs\n\n" + _table(("name", "", "dtype", "shape"), rows) + sizes


def _correctness(checked: Checked) -> str:
    rows = [(_sizes(one.sizes), _error(one.original), _error(one.oracle)) for one in checked.cases]
    return (
        "## Errors\n\nLargest error of any output on seeded inputs, in units of its largest magnitude. "
        "The oracle is the graph in NumPy, sums in float64.\n\n"
        + _table(("sizes", "against the original", "against the oracle"), rows)
    )


def _speed(checked: Checked) -> str:
    rows = [
        (_sizes(one.sizes), f"{one.eager_ms:.3g}", f"{one.compiled_ms:.3g}", f"{one.ratio:.2f}")
        for one in checked.cases
        if one.ratio is not None
    ]
    if not rows:
        return ""
    head = ("sizes", "original, ms", "compiled, ms", "times faster")
    return f"## Speed\n\nMedians of calls in turn on {checked.machine}.\n\n" + _table(head, rows)


def _graph(graph: Graph, parts: Parts) -> str:
    kernels = "\n".join(f"- `{one}`" for one in parts.program.steps)
    text = f"## The program\n\n`program.cpp`, {len(parts.program.steps)} kernels in this order:\n\n{kernels}"
    if len(graph.live()) <= _LARGEST_GRAPH:
        text += f"\n\nThe graph that they compute:\n\n```text\n{_without_origins(print_graph(graph))}\n```"
    return text


def _without_origins(text: str) -> str:
    return "\n".join(line.partition(' @"')[0] for line in text.rstrip().splitlines())


def _again(command: str | None) -> str:
    return f"## Made by\n\n```\n{command}\n```" if command else ""


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items()) or "fixed"


def _error(error: float | None) -> str:
    return "-" if error is None else f"{error:.1e}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


__all__ = ["Case", "write_card"]
