"""Card (README.md) of an exported layer: what it is, how it is used, its errors and speed, how it is made again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from kernels_hub import cxx_compiler
from kernels_hub.compiler.export.bytecode_files import BytecodeFile
from kernels_hub.compiler.export.check import first_sizes
from kernels_hub.compiler.export.checked import Case, Checked
from kernels_hub.compiler.export.gpu_binaries import Compiled
from kernels_hub.compiler.export.gradient_check import CheckedGradients, training_section
from kernels_hub.compiler.export.interpreted import Interpreted
from kernels_hub.compiler.export.native_binaries import Prebuilt, variant_name
from kernels_hub.compiler.export.programs import Programs
from kernels_hub.compiler.export.source import Source
from kernels_hub.compiler.export.tuned import Tuned
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
    bytecode: Sequence[BytecodeFile] = (),
) -> str:
    """The text of README.md."""
    first = programs[0]
    source = first.found
    sections = [
        f"# {MarkdownText(card.name)}",
        f"{MarkdownText(card.summary)}. Written by `kernels-hub compile`.",
        _usage(
            card.layer,
            gradients,
            gpu=first.triton is not None,
            compiled_for=tuple(
                dict.fromkeys(compiled.arch for compiled in ahead if compiled.binary is not None)
            ),
            prebuilt=bool(built),
            bytecode=any(one.content is not None for one in bytecode),
            standalone=source.example is None,
        ),
        _inputs([program.found for program in programs]),
        _correctness(checked),
        _speed(checked),
        training_section(gradients, checked.machine),
        _graph(first),
        _tuned(card.tuned),
        _prebuilt(built, checked),
        _bytecode(bytecode, checked),
        _gpu(programs, ahead, interpreted),
        _made_by(card.command, checked),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


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


def _usage(
    layer: str,
    gradients: CheckedGradients,
    *,
    gpu: bool,
    compiled_for: Sequence[str],
    prebuilt: bool,
    bytecode: bool,
    standalone: bool,
) -> str:
    """How to use it, and what is compiled when. compiled_for: GPUs for which it holds machine code."""
    asked = "a gradient that is asked for, " if gradients.reason else ""
    unbuilt = "no\ncompiler, and no interpreter of bytecode" if bytecode else "no\ncompiler"
    devices = '"cpu": layer, "cuda": layer' if gpu else '"cpu": layer'
    here = "at its first use on a machine, in a few seconds, and kept"
    where = (
        f"Where no native code below fits, the C++ is compiled {here}."
        if prebuilt
        else f"The C++ is compiled {here}."
    )
    if compiled_for:
        where += (
            f" For {', '.join(compiled_for)} GPU kernels come compiled; on other GPUs, Triton compiles them."
        )
    elif gpu:
        where += " On GPUs, Triton compiles its kernels at their first use."
    text = f"""## From this folder

```python
from kernels_hub import LocalLayerRepository, Mode, kernelize, use_kernel_mapping

layer = LocalLayerRepository(".", layer_name="{layer}")
with use_kernel_mapping({{"{layer}": {{{devices}}}}}):
    kernelize(model, mode=Mode.INFERENCE)
```

{where}
The layer reads the weights of the module that it replaces, and follows when they change. Where a call is not what it
was compiled for (another dtype or device, a shape outside of what is declared below, {asked}{unbuilt}), \
the module's own forward runs, and the logger `kernels_hub` says why, once."""
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
        code_span(symbol.only_symbol.facts)
        for symbol in source.graph.symbols.values()
        if symbol.only_symbol is not None
    ]
    sizes = f"\n\nSizes: {', '.join(facts)}." if facts else ""
    return "## Inputs and outputs\n\n" + markdown_table(("name", "", "dtype", "shape"), rows) + sizes


def _correctness(checked: Checked) -> str:
    rows = [(_sizes(case), _error(case.original), _error(case.oracle)) for case in checked.cases]
    return (
        "## Errors\n\nLargest error of any output on seeded inputs, in units of its largest magnitude. "
        "The oracle is the graph in NumPy, sums in float64.\n\n"
        + markdown_table(("sizes", f"against {checked.original}", "against the oracle"), rows)
    )


def _speed(checked: Checked) -> str:
    rows = [
        (_sizes(case), f"{case.eager_ms:.3g}", f"{case.compiled_ms:.3g}", f"{case.ratio:.2f}")
        for case in checked.cases
        if case.ratio is not None
    ]
    if not rows:
        return ""
    head = ("sizes", f"{checked.original.removeprefix('the ')}, ms", "compiled, ms", "times faster")
    return (
        f"## Speed\n\nMedians of calls in turn on {MarkdownText(checked.machine)}; the ratio is the least of two "
        "measurements, and is left out where they differ by more than 10%.\n\n"
    ) + markdown_table(head, rows)


def _graph(first: Programs) -> str:
    program, graph = first.native.program, first.graph
    kernels = "\n".join(f"- {code_span(step)}" for step in program.steps)
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
        (
            code_span(prebuilt.file),
            prebuilt.isa,
            str(prebuilt.nbytes),
            "yes" if prebuilt.isa in checked.isas else "no",
        )
        for prebuilt in built
    ]
    return (
        f"## Native code that comes along\n\nIn the variant `{variant_name()}`; the best that a machine runs is "
        "taken there, and nothing is compiled. It needs neither torch nor Python. Where none fits (another CPU, an "
        "older C library), the C++ is compiled.\n\n"
        + markdown_table(("file", "instructions", "bytes", "run while it was made"), rows)
    )


def _bytecode(files: Sequence[BytecodeFile], checked: Checked) -> str:
    """What runs where there is no compiler, whether it ran, and which programs have none of it."""
    shipped = [one.name for one in files if one.content is not None]
    parts = []
    if shipped:
        have = "has" if len(shipped) == 1 else "have"
        ran = "did not run while this was written"
        if checked.interpreted:
            ran = "is what ran while this was written, without a compiler: all figures above are of it"
        elif {*shipped} <= {*checked.bytecode}:
            ran = "ran while this was written, and gave the same"
        parts.append(
            f"{' and '.join(map(code_span, shipped))} {have} the same kernels as numbers that an interpreter runs; it "
            f"comes along in the wheels of kernels-hub for Linux. Bytecode {ran}."
        )
    parts += [
        f"{code_span(one.program)} has no bytecode: {MarkdownText(one_line(one.reason))}."
        for one in files
        if one.content is None
    ]
    return "## Without a C++ compiler\n\n" + " ".join(parts) if parts else ""


def _gpu(programs: Sequence[Programs], ahead: Sequence[Compiled], interpreted: Sequence[Interpreted]) -> str:
    lacking = [program for program in programs if program.triton is None]
    of = {program.dtype: f" of {program.dtype}" if len(programs) > 1 else "" for program in programs}
    reasons = [
        f"There are no GPU kernels{of[one.dtype]}: {MarkdownText(one_line(one.without_triton))}."
        for one in lacking
    ]
    files = [program.triton.program_file for program in programs if program.triton is not None]
    if files:
        reasons.insert(0, (
            f"{' and '.join(f'`triton/{file}`' for file in files)}: Triton for CUDA and ROCm, with the knobs of "
            f"`call/knobs.json`. It ran on no GPU when this was written."
        ))  # fmt: skip
    reasons += [_interpreted(one) for one in interpreted]
    text = "## On GPUs\n\n" + " ".join(reasons)
    if not ahead:
        return text
    text += (
        (
            "\n\nCompiled when this was written, without a GPU; loaded through the driver, so that nothing is compiled "
            "where they fit."
            if any(one.binary is not None for one in ahead)
            else "\n\nNone could be compiled when this was written, so Triton compiles all of them."
        )
        + " Registers and spills are per thread, shared memory is bytes per block, moved is bytes of "
        "memory at the example's sizes; where a kernel was compiled for several alignments, the most is shown.\n\n"
    )
    groups: dict[tuple[str, str, str, str], list[Compiled]] = {}
    for compiled in ahead:
        constants = ", ".join(f"{name}={value}" for name, value in compiled.constants.items())
        groups.setdefault((compiled.program, compiled.arch, compiled.kernel, constants), []).append(compiled)
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


def _interpreted(interpreted: Interpreted) -> str:
    sizes = ", ".join(f"{name} = {size}" for name, size in interpreted.sizes.items()) or "its sizes"
    if interpreted.error is None:
        reason = MarkdownText(one_line(interpreted.reason))
        return f"`{interpreted.program}` was not run in Triton's interpreter: {reason}."
    off = f"`{interpreted.program}` is off from the oracle by {interpreted.error:.1e}"
    return f"In Triton's interpreter, {off}, for {MarkdownText(sizes)}."


def _moved(programs: Sequence[Programs]) -> dict[tuple[str, str], str]:
    """(program, kernel of the schedule) -> bytes that it moves at the example's sizes."""
    found: dict[tuple[str, str], str] = {}
    for program in programs:
        if program.triton is None:
            continue
        sizes = first_sizes(program.found)
        for kernel in program.triton.schedule.kernels:
            cost = kernel_cost(kernel, sizes)
            found[program.triton.program_file, Identifier(kernel.name)] = str(cost.bytes)
    return found


def _without_origins(text: str) -> str:
    return "\n".join(line.partition(' @"')[0] for line in text.rstrip().split("\n"))


def _made_by(command: str | None, checked: Checked) -> str:
    made = f"{code_block(command)}\n\n" if command else ""
    seeds = ", ".join(f"{_sizes(case)}: {case.seed}" for case in checked.cases)
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
    path = cxx_compiler.find_compiler()
    lines = cxx_compiler.compiler_version(path).splitlines() if path else []
    return lines[0] if lines else "no C++ compiler"


def _sizes(case: Case) -> str:
    sizes = ", ".join(f"{name} = {size}" for name, size in case.sizes.items()) or "fixed"
    return f"{case.dtype}, {sizes}" if case.dtype else sizes


def _error(error: float | None) -> str:
    return "-" if error is None else f"{error:.1e}"


__all__ = ["Card", "Case", "write_card"]
