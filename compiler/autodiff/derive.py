"""`differentiate`: turns a graph into a forward graph that returns what is needed later, and a backward graph.

    both = differentiate(graph)
    outputs = evaluate(both.forward, inputs)                    the graph's outputs, and what is kept
    gradients = evaluate(both.backward, both.backward_inputs(inputs, outputs, {"y": gradient_of_y}))

1. Composites are written out, but for those that have a rule of their own; so are parameters that were folded
   (`FoldParameters`), so that the gradients are those of the parameters that they were made of.
2. Gradients are built into a copy of the graph, from the outputs back (`reverse`).
3. A minimum cut says what is kept (`keep`).
4. Forward and backward are cut out of the copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernels_hub.compiler.autodiff.attention import attention
from kernels_hub.compiler.autodiff.keep import kept_values, likely_sizes
from kernels_hub.compiler.autodiff.reverse import Call, Reverse, rule_of, varying_from
from kernels_hub.compiler.autodiff.rule import NotDifferentiable
from kernels_hub.compiler.autodiff.rules import is_unknown
from kernels_hub.compiler.errors import DerivativeError, GraphError
from kernels_hub.compiler.ir.binding import linear, told_symbols
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.ir.folded import unfolded
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Shape
from kernels_hub.compiler.ir.transform import extract, without_calls

CALLS: Mapping[str, Call] = {"attention": attention}
"""Composites with a rule of their own."""


@dataclass(frozen=True)
class Kept:
    """Where an input of the backward comes from: an "input" of the graph, or an "output" or "kept" of the forward."""

    kind: str
    name: str


@dataclass(frozen=True)
class Differentiated:
    """A forward and a backward graph. Parameters of the backward are the graph's own, by name.

    outputs: names of the graph's outputs, which the forward has first; behind them is what is kept for the backward.
    given: output -> the backward's input that is its gradient; outputs that nothing differentiable goes into have
    none. kept: each other input of the backward, and where it comes from. gradients: input or parameter -> the
    backward's output that is its gradient, of its type; those that no output depends on have none.
    """

    forward: Graph
    backward: Graph
    outputs: tuple[str, ...]
    given: Mapping[str, str]
    kept: Mapping[str, Kept]
    gradients: Mapping[str, str]

    def backward_inputs(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], gradients: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The backward's inputs by name, of the graph's inputs, the forward's outputs, and gradients of outputs."""
        named = {one: gradients[name] for name, one in self.given.items()}
        for one, kept in self.kept.items():
            named[one] = inputs[kept.name] if kept.kind == "input" else outputs[kept.name]
        return {one: named[one] for one in self.backward.inputs}


def differentiate(
    graph: Graph, wrt: Iterable[str] | None = None, *, sizes: Mapping[str, int] | None = None
) -> Differentiated:
    """The forward and backward graphs of a graph, which stays as it is.

    wrt: the inputs and parameters (floats) that gradients are asked for; all floats by default. sizes: likely sizes of
    symbols, to choose what to keep by.

    Raises GraphError for names that the graph does not have or that are no floats; DerivativeError where ops on the
    way have no derivative (all of them, with where they come from), or no output depends on what is asked for.

    >>> graph = Graph("double")
    >>> x = graph.input("x", ("n", 4))
    >>> y = graph.output("y", x * 2.0)
    >>> found = differentiate(graph)
    >>> found.gradients
    {'x': 'grad.x'}
    >>> found.backward.outputs["grad.x"]
    %3: float32[n, 4]
    """
    if graph.only_runs:
        raise DerivativeError(
            f"graph {graph.name} was rewritten to be run: where its gradients end was left out; differentiate "
            "the graph that was imported, and rewrite forward and backward"
        )
    graph = unfolded(graph)
    joint = without_calls(graph, CALLS)
    nodes = joint.live()
    named = joint.inputs | joint.parameters
    asked = _asked(graph, wrt)
    varying = varying_from(nodes, [named[name] for name in asked if name in named])
    _check(joint, nodes, varying)
    reverse = Reverse(joint, varying, CALLS)
    used = set(joint.inputs)
    given: dict[str, Value] = {}
    for name, value in joint.outputs.items():
        if value in varying:
            given[name] = joint.input(_unused(f"grad.{name}", used), value.shape, value.dtype)
            reverse.add(value, given[name])
    reverse.run(nodes)
    _raise(joint, reverse.refused)
    gradients = {
        name: one for name in asked if name in named and (one := reverse.of(named[name])) is not None
    }
    if not gradients:
        raise DerivativeError(
            f"graph {graph.name}: no output that is a float depends on {', '.join(map(repr, asked)) or 'any float'}"
        )
    return _cut(joint, given, gradients, reverse.again, likely_sizes(joint, sizes), used)


def _asked(graph: Graph, wrt: Iterable[str] | None) -> list[str]:
    named = graph.inputs | graph.parameters
    if wrt is None:
        return [name for name, value in named.items() if value.dtype.is_float]
    asked = list(dict.fromkeys(wrt))
    for name in asked:
        if name not in named:
            raise GraphError(
                f"graph {graph.name} has no input or parameter {name!r}; it has {', '.join(named)}"
            )
        if not named[name].dtype.is_float:
            raise GraphError(f"{name!r} is {named[name].type}: there are gradients of floats alone")
    return asked


def _check(joint: Graph, nodes: Sequence[Node], varying: set[Value]) -> None:
    """Raise for all ops without a derivative that are on the way to an output."""
    useful = {value for value in joint.outputs.values() if value in varying}
    refused: dict[Node, str] = {}
    for node in reversed(nodes):
        if any(value in useful for value in node.results):
            useful.update(operand for operand in node.operands if operand in varying)
            if is_unknown(node) or any(operand in varying for operand in node.operands):
                try:
                    rule_of(node, CALLS)
                except NotDifferentiable as reason:
                    refused[node] = str(reason)
    for name in joint.definers:
        refused[joint.definers[name]] = f"the size {name!r} is only known from the data"
    _raise(joint, dict(reversed(refused.items())))


def _raise(joint: Graph, refused: Mapping[Node, str]) -> None:
    if refused:
        lines = [
            f"{node.op.name}({', '.join(str(operand.type) for operand in node.operands)}): {reason}; "
            f"from {node.origin or 'the graph'}"
            for node, reason in refused.items()
        ]
        raise DerivativeError(f"graph {joint.name} cannot be differentiated:\n  " + "\n  ".join(lines))


def _cut(
    joint: Graph, values: Mapping[str, Value], gradients: Mapping[str, Value], again: set[Node],
    sizes: Mapping[str, int], used: set[str],
) -> Differentiated:  # fmt: skip
    outputs = dict(joint.outputs)
    ahead, needed = _needed(joint, values, gradients)
    here = {*joint.inputs.values(), *joint.parameters.values(), *outputs.values()}
    chosen = kept_values(ahead, needed, here=here, again=again, sizes=sizes)
    chosen = _reached(gradients.values(), chosen)
    names = {value: name for name, value in reversed(outputs.items())}
    sources, kept, saved = dict[str, Value](), dict[str, Kept](), dict[str, Value]()
    for value in chosen:
        if value.op_name == "parameter":
            continue
        if value.op_name == "input":
            one = name = value.attrs["name"]
            kept[one] = Kept("input", name)
        elif value in names:
            one = _unused(f"kept.{names[value]}", used)
            kept[one] = Kept("output", names[value])
        else:
            one = _unused(f"kept.{len(saved)}", used)
            saved[one] = value
            kept[one] = Kept("kept", one)
        sources[one] = value
    inputs = {value.attrs["name"]: value for value in values.values()} | sources
    results = {f"grad.{name}": value for name, value in gradients.items()}
    while (symbol := _untold(extract(joint, inputs, results))) is not None:
        name = _tells(joint, symbol, sizes)
        kept[name], inputs[name] = Kept("input", name), joint.inputs[name]
    inputs = dict(sorted(inputs.items(), key=lambda one: not _is_plain(one[1].shape)))
    backward = extract(joint, inputs, results, f"{joint.name} backward")
    forward = extract(
        joint,
        {name: value for name, value in joint.inputs.items() if value not in values.values()},
        outputs | saved,
        joint.name,
    )
    return Differentiated(
        forward,
        backward,
        tuple(outputs),
        {name: value.attrs["name"] for name, value in values.items()},
        kept,
        {name: f"grad.{name}" for name in gradients},
    )


def _needed(
    joint: Graph, values: Mapping[str, Value], gradients: Mapping[str, Value]
) -> tuple[list[Node], list[Value]]:
    """Nodes that no gradient goes into, and values of those that gradients are made with."""
    behind: set[Value] = set(values.values())
    wanted: set[Value] = set(gradients.values())
    order = list(joint.nodes)
    for node in order:
        if any(operand in behind for operand in node.operands):
            behind.update(node.results)
    for node in reversed(order):
        if any(value in wanted and value in behind for value in node.results):
            wanted.update(node.operands)
    ahead = [node for node in order if node.results[0] not in behind]
    return ahead, [value for node in ahead for value in node.results if value in wanted]


def _reached(results: Iterable[Value], chosen: Sequence[Value]) -> list[Value]:
    """Those of the chosen values that results are made of."""
    ends, seen, stack = set(chosen), set[Value](), list(results)
    while stack:
        value = stack.pop()
        if value not in seen:
            seen.add(value)
            if value not in ends:
                stack += value.operands
    return [value for value in chosen if value in seen]


def _is_plain(shape: Shape) -> bool:
    """Whether sizes can be told of a shape alone: such inputs come first."""
    return all(isinstance(dim, int) or linear(dim) is not None for dim in shape)


def _untold(backward: Graph) -> str | None:
    """A symbol of the backward whose size no shape of its inputs tells."""
    told = told_symbols(value.shape for value in backward.inputs.values())
    used = {symbol.name for node in backward.nodes for symbol in node.symbols()}
    return min(used - told, default=None)


def _tells(joint: Graph, symbol: str, sizes: Mapping[str, int]) -> str:
    """The smallest input whose shape tells the size of a symbol."""
    found = []
    for name, value in joint.inputs.items():
        linears = [linear(dim) for dim in value.shape]
        if any(one is not None and one[0].name == symbol for one in linears):
            size = substitute(value.type.size, sizes)
            found.append((size if isinstance(size, int) else 1 << 60, name))
    if not found:
        raise DerivativeError(f"graph {joint.name}: no shape of an input tells the size of {symbol!r}")
    return min(found)[1]


def _unused(name: str, used: set[str]) -> str:
    wanted, number = name, 1
    while wanted in used:
        number += 1
        wanted = f"{name} {number}"
    used.add(wanted)
    return wanted
