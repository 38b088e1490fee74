"""Outlining: replaces a recognized part of a graph by a `call` of a graph that contains it, under its name.

The callee is the very nodes that were there, in their spelling, so that recognition changes no number and the oracle
still runs it; its inputs are the operands that the rule lists, by name. An engine that knows the name may put its
own kernel there: `composite(value)` is the name, and the operands are read by `operand(value, "eps")`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence

from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.printer import print_graph
from kernels_hub.compiler.rewrite.rule import Match

_KNOWN: weakref.WeakValueDictionary[str, Graph] = weakref.WeakValueDictionary()
"""Text of a callee -> the callee: regions are compared by identity, and equal ones shall be one."""

_SPELLED: weakref.WeakValueDictionary[tuple[object, ...], Graph] = weakref.WeakValueDictionary()
"""Inputs and nodes of a callee, as `_spelling` has them -> the callee: what is there already is not built again."""

MOST_NODES = 256

Spelled = Mapping[Value, Callable[[Mapping[str, Value]], Value]]
"""Values between operands and root that are made otherwise inside: of the callee's inputs, by name."""


def outline(match: Match, name: str, operands: Sequence[str]) -> Value:
    """The root as a call of the graph between these operands and it. Operands that did not match are left out."""
    return outline_between(
        match.root, name, {operand: match[operand] for operand in operands if operand in match}
    )


def outline_between(
    root: Value, name: str, given: Mapping[str, Value], spelled: Spelled | None = None
) -> Value:
    """The same of operands by name; one that is not among what the root is made of needs an entry in `spelled`."""
    region = _region(root, name, given, spelled or {})
    assert region is not None
    return root.graph.apply("call", *given.values(), callee=region)


def composed(
    graph: Graph, name: str, given: Mapping[str, Value], build: Callable[[Mapping[str, Value]], Value]
) -> Value:
    """A call of a graph that `build` makes of its inputs, on these operands by name."""
    region = Graph(name)
    region.output("y", build({key: region.input(key, one.shape, one.dtype) for key, one in given.items()}))
    return graph.apply("call", *given.values(), callee=_shared(region))


def closed(match: Match, operands: Sequence[str]) -> str | None:
    """Why the part between the operands and the root is no graph of its own; None if it is one."""
    return closed_between(match.root, {operand: match[operand] for operand in operands if operand in match})


def closed_between(root: Value, given: Mapping[str, Value]) -> str | None:
    """The same of operands by name."""
    if len(set(given.values())) < len(given):
        return "two operands are the same value"
    if _between(root, set(given.values())) is None:
        return f"more than {', '.join(given)} goes into {root}"
    return None


def _between(root: Value, ends: set[Value]) -> list[Value] | None:
    """Values between, operands first; None where an input, a parameter or a region is needed."""
    found: dict[Value, None] = {}
    stack: list[tuple[Value, bool]] = [(root, False)]
    while stack:
        value, done = stack.pop()
        if done:
            found[value] = None
        elif value not in found and value not in ends:
            if (
                value.op_name in {"input", "parameter"}
                or (Trait.REGION in value.op.traits and value.op_name != "call")
                or value.op.defines is not None
                or len(value.node.results) != 1
                or len(found) > MOST_NODES
            ):
                return None
            stack.append((value, True))
            stack.extend((operand, False) for operand in value.operands)
    return list(found)


def _region(root: Value, name: str, values: Mapping[str, Value], spelled: Spelled) -> Graph | None:
    nodes = _between(root, {*values.values(), *spelled})
    if nodes is None:
        return None
    if spelled:
        return _built(root, name, values, spelled, nodes)
    spelling = _spelling(name, values, nodes)
    region = _SPELLED.get(spelling)
    if region is None:
        region = _SPELLED[spelling] = _built(root, name, values, spelled, nodes)
    return region


def _spelling(name: str, values: Mapping[str, Value], nodes: Sequence[Value]) -> tuple[object, ...]:
    """The callee of such a name, inputs and nodes, told from all others: types, and ops with operands by place."""
    places = {value: place for place, value in enumerate((*values.values(), *nodes))}
    inputs = [(key, value.type) for key, value in values.items()]
    ops = [
        (value.op_name, *[places[operand] for operand in value.operands], *value.attrs.values())
        for value in nodes
    ]
    return (name, len(inputs), *inputs, *ops)


def _built(
    root: Value, name: str, values: Mapping[str, Value], spelled: Spelled, nodes: Sequence[Value]
) -> Graph:
    region = Graph(name)
    mapped = {value: region.input(key, value.shape, value.dtype) for key, value in values.items()}
    inputs = dict(region.inputs)
    mapped |= {value: made(inputs) for value, made in spelled.items()}
    for value in nodes:
        operands = [mapped[operand] for operand in value.operands]
        if value.op_name == "call":
            (mapped[value],) = region.call(value.attrs["callee"], *operands)
        else:
            mapped[value] = region.apply(value.op, *operands, **value.attrs)
    region.output("y", mapped[root])
    return _shared(region)


def _shared(region: Graph) -> Graph:
    return _KNOWN.setdefault(print_graph(region, data=True), region)


def recognised(*names: str) -> Callable[[Value], str | None]:
    """A condition: a value recognised under one of these names."""

    def test(value: Value) -> str | None:
        return None if composite(value) in names else f"{value} is no {' or '.join(names)}"

    return test


def composite(value: Value) -> str | None:
    """The name under which a value was recognised ("layer_norm" …); None of all others."""
    return str(value.attrs["callee"].name) if value.op_name == "call" else None


def operand(value: Value, name: str) -> Value | None:
    """An operand of a composite by name; None where it has none of that name."""
    names = list(value.attrs["callee"].inputs)
    return value.operands[names.index(name)] if name in names else None
