"""Training: a forward that keeps what its backward needs, and the backward, as programs beside the layer's own.

1. The module is traced in training, too: where that is another graph (dropout, batch norm), there is no gradient.
2. Weights become inputs: nothing is packed or folded of what is another at every step.
3. The graph is differentiated (`autodiff`), forward and backward are rewritten, scheduled, and written as C++.
4. Gradients that are added up by index (of an embedding's table) leave the backward as places and numbers, which
   PyTorch adds.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernels_hub.compiler.autodiff import Differentiated, differentiate
from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.export.arrays import write_tensors
from kernels_hub.compiler.export.programs import Programs, native_program
from kernels_hub.compiler.export.recorded_attributes import recorded
from kernels_hub.compiler.export.source import Example, Source, from_module
from kernels_hub.compiler.export.table import Parts, _lines, _literal, write_table
from kernels_hub.compiler.importers.torch_trace import paths_of
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.printer import print_graph
from kernels_hub.compiler.rewrite.fold import FoldParameters
from kernels_hub.compiler.rewrite.pipeline import INFERENCE_PASS, PIPELINE, rewrite
from kernels_hub.compiler.runtime.parts import Module
from kernels_hub.compiler.schedule.inlining import refused
from kernels_hub.compiler.schedule.kernel import Buffer, Schedule
from kernels_hub.compiler.schedule.schedule import schedule

_PASSES = tuple(one for one in PIPELINE if not isinstance(one, FoldParameters))
_BEFORE = tuple(one for one in _PASSES if one is not INFERENCE_PASS)
"""What a graph goes through before it is differentiated: it keeps where gradients end."""


@dataclass(frozen=True)
class Training:
    """The programs of one dtype. modules: what the layer's result depends on, in training, too.

    asked: names of the graph's inputs that can have a gradient. weights: of parameters and buffers, the forward's
    inputs behind those of the call, in order. both: before rewriting.
    """

    forward: Parts
    backward: Parts
    both: Differentiated
    modules: tuple[Module, ...]
    asked: tuple[str, ...]
    weights: tuple[str, ...]
    added: Mapping[str, tuple[str, str]]
    """Input of the forward -> the backward's outputs that are places and numbers of what is added to its gradient."""

    @property
    def table_file(self) -> str:
        """The file that says what goes from one program to the other."""
        label = self.forward.label.removesuffix("training").rstrip("_")
        return f"table_gradient_{label}.py" if label else "table_gradient.py"


@dataclass(frozen=True)
class Trained:
    """Programs of all dtypes, and of each those for training. `programs` depend on nothing that is only so outside
    of training."""

    programs: tuple[Programs, ...]
    trainings: tuple[Training, ...]


def with_training(programs: Sequence[Programs], asked: Sequence[str] | None = None) -> Trained | str:
    """The programs with those for training; or why there are none, of all dtypes alike. asked: as below."""
    made = []
    for one in programs:
        found = training_programs(one.found, one.native, asked)
        if isinstance(found, str):
            return found
        made.append(found)
    changed = tuple(
        replace(
            program,
            native=replace(program.native, modules=training.modules),
            triton=program.triton and replace(program.triton, modules=training.modules),
        )
        for program, training in zip(programs, made, strict=True)
    )
    return Trained(changed, tuple(made))


def training_programs(found: Source, native: Parts, asked: Sequence[str] | None = None) -> Training | str:
    """The programs of a layer, or why there are none. asked: inputs that need a gradient; all floats by default."""
    if found.example is None:
        return "it was made of an ONNX file, for inference"
    other = _in_training(found, native.layer)
    if isinstance(other, str):
        return other
    graph, weights = _opened(rewrite(found.graph, _BEFORE).graph, native)
    learned = dict(found.example.module.named_parameters(remove_duplicate=False))
    inputs = [name for name, one in found.graph.inputs.items() if one.dtype.is_float]
    wrt = [one for one in inputs if asked is None or one in asked]
    try:
        weighed = [
            given for name, given in weights.items() if name in learned and graph.inputs[given].dtype.is_float
        ]
        both = differentiate(graph, [*wrt, *weighed])
        backward, added = _without_sums(both)
        forward, backward = (rewrite(one, _PASSES).graph for one in (both.forward, backward))
        for one in (forward, backward):
            if lacking := refused(one):
                value, reason = next(iter(lacking.items()))
                return f"no C++ kernel computes its {value.node.origin or value.op_name}: {reason}"
        label = f"{native.label}_" if native.label else ""
        made = [
            _parts(native, one, f"{label}{kind}")
            for one, kind in ((forward, "training"), (backward, "backward"))
        ]
    except CompilerError as error:
        return str(error)
    return Training(made[0], made[1], both, other, tuple(wrt), tuple(weights.values()), added)


def _parts(native: Parts, graph: Graph, label: str) -> Parts:
    scheduled = schedule(graph)
    source = replace(
        native.source,
        graph=graph,
        signature=inspect.Signature(),
        arguments={},
        result=None,
        views=(),
        aliases={},
    )
    return Parts(native.layer, source, scheduled, native_program(scheduled), (), label)


def _in_training(source: Source, layer: str) -> tuple[Module, ...] | str:
    """What the result depends on, whether in training or not; or why training is another matter."""
    example = source.example
    assert example is not None
    with in_mode(example.module, training=False):
        before = recorded(example, by_layout=source.by_layout, remembered=source.remembered)
    with in_mode(example.module, training=True):
        try:
            graph = from_module(example, layer).graph
            after = recorded(example, by_layout=source.by_layout, remembered=source.remembered)
        except Exception as error:  # noqa: BLE001  (of the model, or of torch.export)
            return f"in training, its forward cannot be traced: {str(error).splitlines()[0]}"
    if print_graph(graph, data=True) != print_graph(source.graph, data=True):
        return "in training, its forward computes something else (dropout, batch norm)"
    merged = []
    for one, other in zip(before, after, strict=True):
        facts = {**one.facts, **other.facts}
        merged.append(replace(one, facts={name: facts[name] for name in sorted(facts) if name != "training"}))
    return tuple(merged)


@contextmanager
def in_mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """The module in training or not, as it was afterwards."""
    before = [(one, one.training) for one in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for one, mode in before:
            one.training = mode


def _opened(graph: Graph, native: Parts) -> tuple[Graph, dict[str, str]]:
    """The graph with weights as inputs, and parameter -> its input. Constants that tracing found stay parameters."""
    held = native.source.constants
    new = Graph(graph.name)
    new.only_runs = graph.only_runs
    mapped = {value: new.input(name, value.shape, value.dtype) for name, value in graph.inputs.items()}
    names = {}
    for name in native.parameters():
        if name not in held:
            value = native.source.graph.parameters[name]
            names[name] = name if name not in new.inputs else f"weight {name}"
            given = new.input(names[name], value.shape, value.dtype)
            if name in graph.parameters:
                mapped[graph.parameters[name]] = given
    for node in graph.live():
        if not all(value in mapped for value in node.results):
            copied = new.copy(node, tuple(mapped[operand] for operand in node.operands))
            mapped.update(zip(node.results, copied.results, strict=True))
    for name, value in graph.outputs.items():
        new.output(name, mapped[value])
    return new, names


def _without_sums(both: Differentiated) -> tuple[Graph, dict[str, tuple[str, str]]]:
    """The backward without what is added up by index for a gradient; input -> outputs that are places and numbers."""
    graph = both.backward
    of = {output: name for name, output in both.gradients.items()}
    new = Graph(graph.name)
    mapped: dict[Value, Value] = {}
    for node in graph.live():
        if node.op.name == "input":
            mapped[node.results[0]] = new.input(
                node.attrs["name"], node.results[0].shape, node.results[0].dtype
            )
        else:
            copied = new.copy(node, tuple(mapped[operand] for operand in node.operands))
            mapped.update(zip(node.results, copied.results, strict=True))
    added = {}
    for output, value in graph.outputs.items():
        terms = _terms(value)
        sums = [term for term in terms if _is_sum(term)]
        if len(sums) != 1:
            new.output(output, mapped[value])
            continue
        rest = [mapped[term] for term in terms if term is not sums[0]]
        if rest:
            total = rest[0]
            for one in rest[1:]:
                total = total + one
            new.output(output, total)
        names = (f"{output} places", f"{output} numbers")
        for name, operand in zip(names, sums[0].operands[1:], strict=True):
            new.output(name, mapped[operand].cast("int64") if "places" in name else mapped[operand])
        added[of[output]] = names
    return new, added


def _terms(value: Value) -> list[Value]:
    """What a value is the sum of, through sums that nothing else uses."""
    if value.op_name != "add":
        return [value]
    terms = []
    for operand in value.operands:
        terms += _terms(operand) if value.graph.uses(operand) == 1 else [operand]
    return terms


def _is_sum(value: Value) -> bool:
    """Whether a value is zeros with numbers added by index."""
    return (
        value.op_name == "scatter_nd" and value.attrs["reduction"] == "add" and value.operands[0].scalar == 0
    )


def gradient_table(training: Training) -> str:
    """The text of the table that joins both programs."""
    forward, backward = training.forward, training.backward
    inputs, outputs = list(forward.source.graph.inputs), list(forward.source.graph.outputs)
    results = list(training.both.outputs)
    back = list(backward.source.graph.outputs)
    given = {name: output for output, name in training.both.given.items()}
    sources = []
    for name in backward.source.graph.inputs:
        if name in given:
            sources.append(("gradient", results.index(given[name])))
        else:
            kept = training.both.kept[name]
            place = inputs.index(kept.name) if kept.kind == "input" else outputs.index(kept.name)
            sources.append(("input" if kept.kind == "input" else "output", place))
    named = training.both.gradients
    gradients = tuple(back.index(named[one]) if named.get(one) in back else -1 for one in inputs)
    added = {
        inputs.index(one): (back.index(places), back.index(numbers))
        for one, (places, numbers) in training.added.items()
    }
    steps, writes = _steps(backward.schedule)
    call = [name for name in inputs if name not in training.weights]
    fields = {
        "results": str(len(results)),
        "asked": _literal(tuple(name in training.asked for name in call)),
        "sources": _lines("()", map(_literal, sources)),
        "gradients": _literal(gradients),
        "added": _literal(added),
        "steps": _lines("()", map(_literal, steps)),
        "writes": _lines("()", map(_literal, writes)),
    }
    modules = [one.file("table.py").removesuffix(".py") for one in (forward, backward)]
    return "\n".join([
        '"""What goes from the forward to the backward. Generated."""',
        "", "from .compiler.runtime.gradient import Gradient",
        f"from .{modules[0]} import TABLE as FORWARD",
        f"from .{modules[1]} import TABLE as BACKWARD",
        "", "GRADIENT = Gradient(", "    forward=FORWARD,", "    backward=BACKWARD,",
        *(f"    {name}={text}," for name, text in fields.items()), ")", "",
    ])  # fmt: skip


def write_training(folder: Path, trainings: Sequence[Training]) -> None:
    """Write the programs and their tables beside those of the layer."""
    texts: dict[str, str] = {}
    for training in trainings:
        texts[training.table_file] = gradient_table(training)
        for parts in (training.forward, training.backward):
            texts[parts.program_file] = parts.program.source
            texts[parts.file("table.py")] = write_table(parts)
            if constants := parts.constants():
                named = {buffer.name: array for buffer, array in constants.items()}
                write_tensors(folder / "cpu" / parts.file("constants.safetensors"), named)
    for name, text in texts.items():
        (folder / "cpu" / name).write_text(text, encoding="utf-8", newline="\n")


def _steps(scheduled: Schedule) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The kernels that each output takes, and the outputs that each kernel writes."""
    writers: dict[Buffer, set[int]] = {}
    needs: list[set[int]] = []
    for number, kernel in enumerate(scheduled.kernels):
        wanted = {number}
        for buffer in (*kernel.reads(), *kernel.writes()):
            for earlier in writers.get(buffer, ()):
                wanted |= needs[earlier]
        needs.append(wanted)
        for buffer in kernel.writes():
            writers.setdefault(buffer, set()).add(number)
    outputs = list(scheduled.outputs.values())
    steps = [
        tuple(sorted({step for writer in writers.get(buffer, ()) for step in needs[writer]}))
        for buffer in outputs
    ]
    writes = [
        tuple(index for index, buffer in enumerate(outputs) if buffer in kernel.writes())
        for kernel in scheduled.kernels
    ]
    return steps, writes


def asked_inputs(example: Example, submodule: str | None) -> tuple[str, ...] | None:
    """Paths of the arguments of a module, or of one in it, that require a gradient; None where none does.

    A layer's are what they are while the model runs with gradients on.
    """
    if submodule is None:
        return _requiring(example.module, example.args, dict(example.kwargs))
    module = example.module.get_submodule(submodule)
    found: list[tuple[str, ...] | None] = []
    hook = module.register_forward_pre_hook(
        lambda _, args, kwargs: found.append(_requiring(module, args, dict(kwargs))), with_kwargs=True
    )
    try:
        with torch.enable_grad():
            example.module(*example.args, **example.kwargs)
    except Exception:  # noqa: BLE001  (a model that runs without gradients alone is compiled for all floats)
        return None
    finally:
        hook.remove()
    return found[0] if found else None


def _requiring(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]) -> tuple[str, ...] | None:
    leaves = zip(paths_of(module, args, kwargs), pytree.tree_leaves((args, kwargs)), strict=True)
    return (
        tuple(path for path, leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad) or None
    )
