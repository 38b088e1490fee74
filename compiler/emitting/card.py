"""README.md of what is emitted: what it is, how it is used, how right and how fast it is, how it is made again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from kernels_hub.compiler.codegen import toolchain
from kernels_hub.compiler.emitting.ahead import Compiled
from kernels_hub.compiler.emitting.check import Case, Checked, first_sizes
from kernels_hub.compiler.emitting.gradient_check import CheckedGradients, training_section
from kernels_hub.compiler.emitting.interpreted import Interpreted
from kernels_hub.compiler.emitting.prebuilding import Prebuilt, variant_name
from kernels_hub.compiler.emitting.programs import Programs
from kernels_hub.compiler.emitting.source import Source
from kernels_hub.compiler.emitting.tuned import Tuned
from kernels_hub.compiler.ir.op import show
from kernels_hub.compiler.ir.printer import print_graph
from kernels_hub.compiler.schedule.cost import kernel_cost
from kernels_hub.escaping import Identifier, MarkdownText, code_block, code_span, markdown_table, one_line

GRAPH = "graph.svg"

_LARGEST_GRAPH = 80
"""Nodes of a graph that the card shows."""


@dataclass(frozen=True)
class Card:
    """What a card begins and ends with."""

    name: str
    version: str
    layer: str
    summary: str
    command: str | None
    tuned: tuple[Tuned, ...] = ()


def write_card(
    card: Card,
    programs: Sequence[Programs],
    checked: Checked,
    ahead: Sequence[Compiled],
    built: Sequence[Prebuilt],
    gradients: CheckedGradients,
    interpreted: Sequence[Interpreted] = (),
) -> str:
    """The text of README.md."""
    first = programs[0]
    source = first.found
    sections = [
        f"# {MarkdownText(card.name)}",
        f"{MarkdownText(card.summary)}. Written by `kernels-hub compile`.",
        _usage(card.layer, gradients, gpu=first.triton is not None, standalone=source.example is None),
        _inputs([one.found for one in programs]),
        _correctness(checked),
        _speed(checked),
        training_section(gradients, checked.machine),
        _graph(first),
        _tuned(card.tuned),
        _prebuilt(built, checked),
        _gpu(programs, ahead, interpreted),
        _again(card.command, checked),
    ]
    return "\n\n".join(one for one in sections if one) + "\n"


def _tuned(tuned: Sequence[Tuned]) -> str:
    rows = [
        (
            code_span(one.arch),
            one.dtype or "-",
            ", ".join(f"{name} = {size}" for name, size in one.sizes.items()) or "fixed",
            "-" if one.times_faster is None else f"{one.times_faster:.2f}",
            one.origin,
            one.machine,
        )
        for one in tuned
    ]
    if not rows:
        return ""
    head = ("architecture", "dtype", "sizes", "times faster than the usual", "found as", "on")
    return "## Tuned\n\nBy `kernels-hub tune`; what it found is in `tuned.json`.\n\n" + markdown_table(
        head, rows
    )


def _usage(layer: str, gradients: CheckedGradients, *, gpu: bool, standalone: bool) -> str:
    asked = "a gradient that is asked for, " if gradients.reason else ""
    devices = '"cpu": layer, "cuda": layer' if gpu else '"cpu": layer'
    where = " On GPUs, Triton compiles its kernels at their first use." if gpu else ""
    text = f"""## From this folder

```python
from kernels_hub import LocalLayerRepository, Mode, kernelize, use_kernel_mapping

layer = LocalLayerRepository(".", layer_name="{layer}")
with use_kernel_mapping({{"{layer}": {{{devices}}}}}):
    kernelize(model, mode=Mode.INFERENCE)
```

The C++ is compiled at its first use on a machine, in a few seconds, and kept.{where}
The layer reads the weights of the module that it replaces, and follows when they change. Where a call is not what it
was compiled for (another dtype or device, a shape outside of what is declared below, {asked}no
compiler), the module's own forward runs, and the logger `kernels_hub` says why, once."""
    if standalone:
        text += """

On its own, with the weights of the ONNX file:

```python
from kernels_hub import get_local_kernel

model = get_local_kernel(".").load()
```"""
    return text


def _inputs(sources: Sequence[Source]) -> str:
    source = sources[0]
    rows = []
    for kind in ("inputs", "outputs"):
        for name, one in getattr(source.graph, kind).items():
            dtypes = dict.fromkeys(getattr(of.graph, kind)[name].dtype.name for of in sources)
            rows.append((code_span(name), kind[:-1], " or ".join(dtypes), code_span(show(one.shape))))
    facts = [
        code_span(one.only_symbol.facts)
        for one in source.graph.symbols.values()
        if one.only_symbol is not None
    ]
    sizes = f"\n\nSizes: {', '.join(facts)}." if facts else ""
    return "## Inputs and outputs\n\n" + markdown_table(("name", "", "dtype", "shape"), rows) + sizes


def _correctness(checked: Checked) -> str:
    rows = [(_sizes(one), _error(one.original), _error(one.oracle)) for one in checked.cases]
    return (
        "## Errors\n\nLargest error of any output on seeded inputs, in units of its largest magnitude. "
        "The oracle is the graph in NumPy, sums in float64.\n\n"
        + markdown_table(("sizes", "against the original", "against the oracle"), rows)
    )


def _speed(checked: Checked) -> str:
    rows = [
        (_sizes(one), f"{one.eager_ms:.3g}", f"{one.compiled_ms:.3g}", f"{one.ratio:.2f}")
        for one in checked.cases
        if one.ratio is not None
    ]
    if not rows:
        return ""
    head = ("sizes", "original, ms", "compiled, ms", "times faster")
    return (
        f"## Speed\n\nMedians of calls in turn on {MarkdownText(checked.machine)}; the ratio is the least of two "
        "measurements, and is left out where they differ by more than 10%.\n\n"
    ) + markdown_table(head, rows)


def _graph(first: Programs) -> str:
    program, graph = first.native.program, first.graph
    kernels = "\n".join(f"- {code_span(one)}" for one in program.steps)
    text = f"## The program\n\n![The graph]({GRAPH})\n\n"
    text += f"`{first.native.program_file}`, {len(program.steps)} kernels in this order:\n\n{kernels}"
    if len(graph.live()) <= _LARGEST_GRAPH:
        text += (
            f"\n\nThe graph that they compute:\n\n{code_block(_without_origins(print_graph(graph)), 'text')}"
        )
    return text


def _prebuilt(built: Sequence[Prebuilt], checked: Checked) -> str:
    if not built:
        return ""
    rows = [
        (code_span(one.file), one.isa, str(one.nbytes), "yes" if one.isa in checked.isas else "no")
        for one in built
    ]
    return (
        f"## Native code that comes along\n\nIn the variant `{variant_name()}`; the best that a machine runs is "
        "taken there, and nothing is compiled. It needs neither torch nor Python. Where none fits (another CPU, an "
        "older C library), the C++ is compiled.\n\n"
        + markdown_table(("file", "instructions", "bytes", "run while it was made"), rows)
    )


def _gpu(programs: Sequence[Programs], ahead: Sequence[Compiled], interpreted: Sequence[Interpreted]) -> str:
    lacking = [one for one in programs if one.triton is None]
    of = {one.dtype: f" of {one.dtype}" if len(programs) > 1 else "" for one in programs}
    reasons = [
        f"There are no GPU kernels{of[one.dtype]}: {MarkdownText(one_line(one.without_triton))}."
        for one in lacking
    ]
    files = [one.triton.program_file for one in programs if one.triton is not None]
    if files:
        reasons.insert(0, (
            f"{' and '.join(f'`triton/{one}`' for one in files)}: Triton for CUDA and ROCm, with the knobs of "
            f"`call/knobs.json`. It ran on no GPU when this was written."
        ))  # fmt: skip
    reasons += [_interpreted(one) for one in interpreted]
    text = "## On GPUs\n\n" + " ".join(reasons)
    if not ahead:
        return text
    text += (
        "\n\nCompiled ahead, without a GPU; loaded through the driver, so that nothing is compiled where they fit. "
        "What is not in the table, Triton compiles at its first use. Registers and spills are per thread, shared "
        "memory is bytes per block, moved is bytes of memory at the example's sizes; where a kernel was compiled for "
        "several alignments, the most is shown.\n\n"
    )
    groups: dict[tuple[str, str, str, str], list[Compiled]] = {}
    for one in ahead:
        constants = ", ".join(f"{name}={value}" for name, value in one.constants.items())
        groups.setdefault((one.program, one.arch, one.kernel, constants), []).append(one)
    moved = _moved(programs)
    rows = []
    for (program, arch, kernel, constants), of_group in groups.items():
        took = [one.resources for one in of_group]
        most = (max(getattr(one, name) for one in took) for name in ("registers", "spills", "shared"))
        left = next((f"left out: {one_line(str(one.reason))}" for one in of_group if one.binary is None), "")
        nbytes = left or str(sum(one.nbytes for one in of_group))
        rows.append((
            *([program] if len(files) > 1 else []), arch, code_span(kernel), constants, *map(str, most),
            moved.get((program, kernel.rpartition("_kernel")[0]), "-"), nbytes,
        ))  # fmt: skip
    head = [*(["program"] if len(files) > 1 else []), "for", "kernel", "constants", "registers", "spills", "shared",
            "moved", "bytes of files"]  # fmt: skip
    return text + markdown_table(head, rows)


def _interpreted(one: Interpreted) -> str:
    sizes = ", ".join(f"{name} = {size}" for name, size in one.sizes.items()) or "its sizes"
    if one.error is None:
        return f"`{one.program}` was not run in Triton's interpreter: {MarkdownText(one_line(one.reason))}."
    off = f"`{one.program}` is off from the oracle by {one.error:.1e}"
    return f"In Triton's interpreter, {off}, for {MarkdownText(sizes)}."


def _moved(programs: Sequence[Programs]) -> dict[tuple[str, str], str]:
    """(program, kernel of the schedule) -> bytes that it moves at the example's sizes."""
    found: dict[tuple[str, str], str] = {}
    for one in programs:
        if one.triton is None:
            continue
        sizes = first_sizes(one.found)
        for kernel in one.triton.schedule.kernels:
            cost = kernel_cost(kernel, sizes)
            found[one.triton.program_file, Identifier(kernel.name)] = str(cost.bytes)
    return found


def _without_origins(text: str) -> str:
    return "\n".join(line.partition(' @"')[0] for line in text.rstrip().split("\n"))


def _again(command: str | None, checked: Checked) -> str:
    made = f"{code_block(command)}\n\n" if command else ""
    seeds = ", ".join(f"{_sizes(one)}: {one.seed}" for one in checked.cases)
    where = f"{MarkdownText(_compiler())}, on {MarkdownText(checked.machine)}"
    return (
        f"## Made by\n\n{made}kernels-hub {_version('kernels-hub')}, torch {_version('torch')}, triton "
        f"{_version('triton')}, {where}. Inputs are the example's, with noise of these seeds where they are longer: "
        f"{MarkdownText(seeds)}."
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _compiler() -> str:
    path = toolchain.find_compiler()
    lines = toolchain._version(path).splitlines() if path else []
    return lines[0] if lines else "no C++ compiler"


def _sizes(case: Case) -> str:
    sizes = ", ".join(f"{name} = {size}" for name, size in case.sizes.items()) or "fixed"
    return f"{case.dtype}, {sizes}" if case.dtype else sizes


def _error(error: float | None) -> str:
    return "-" if error is None else f"{error:.1e}"


__all__ = ["Card", "Case", "write_card"]
