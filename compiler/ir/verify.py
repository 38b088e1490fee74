"""Verifies every invariant of the IR: a pass that breaks one is found by name, not by what breaks later."""

from __future__ import annotations

import bisect

from kernels_hub.compiler.errors import CompilerError, VerifyError
from kernels_hub.compiler.ir import ops, types
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Literal


def verify(graph: Graph) -> Graph:
    """The graph, if all holds; linear in its nodes. Raises VerifyError, which names the value and the op.

    1. ids count nodes and values; each node and value belongs to this graph
    2. operands come before, and know their users
    3. the op is the table's row, its attributes canonical, and the types are those that its rules give
    4. no two nodes are the same op on the same operands
    5. inputs, parameters and outputs are named once, and are what the names say
    6. symbols are declared, each with one set of facts, and defined before they are used
    7. constants are read-only; regions are frozen, closed, and hold all this themselves
    8. weights belong to parameters

    >>> graph = Graph("double")
    >>> x = graph.input("x", ("n", 4))
    >>> y = graph.output("y", x * 2.0)
    >>> verify(graph)
    <Graph double: 4 nodes>
    """
    seen: dict[tuple[object, ...], Node] = {}
    count = 0
    for position, node in enumerate(graph.nodes):
        if node.id != position or node.graph is not graph:
            raise _broken(node, f"stands at {position} of graph {graph.name}, but has id {node.id}")
        _check_operands(graph, node)
        for index, value in enumerate(node.results):
            if (
                value.node is not node
                or value.place != index
                or value.id != count
                or graph.values[count] is not value
            ):
                raise _broken(node, f"result {index} is numbered wrongly")
            count += 1
        _check_rules(node)
        key = (node.op.name, *node.operands, *node.attrs.values())
        if (other := seen.setdefault(key, node)) is not node:
            raise _broken(node, f"is the same as {other!r}")
        _check_symbols(graph, node)
        _check_attributes(node)
    if count != len(graph.values):
        raise VerifyError(f"graph {graph.name} lists {len(graph.values)} values, its nodes have {count}")
    _check_signature(graph)
    return graph


def _broken(node: Node, what: str) -> VerifyError:
    origin = f" (from {node.origin})" if node.origin else ""
    return VerifyError(f"{node!r}{origin}: {what}")


def _check_operands(graph: Graph, node: Node) -> None:
    for operand in node.operands:
        if not isinstance(operand, Value) or operand.node.graph is not graph:
            raise _broken(node, f"operand {operand!r} is no value of graph {graph.name}")
        if operand.node.id >= node.id:
            raise _broken(node, f"operand {operand!r} does not come before it")
        place = bisect.bisect_left(operand.users, node.id, key=lambda user: user.id)
        if place == len(operand.users) or operand.users[place] is not node:
            raise _broken(node, f"operand {operand!r} does not list it as a user")


def _check_rules(node: Node) -> None:
    if ops.OPS.get(node.op.name) is not node.op:
        raise _broken(node, f"{node.op.name!r} is no row of the op table")
    try:
        if (canonical := node.op.normalise(node.attrs)) != node.attrs:
            raise _broken(node, f"attributes are {node.attrs}, canonical {canonical}")
        inferred = node.op.infer([operand.type for operand in node.operands], node.attrs)
    except VerifyError:
        raise
    except CompilerError as error:
        raise _broken(node, f"the op's rules refuse it: {error}") from error
    stated = tuple(value.type for value in node.results)
    if inferred != stated:
        raise _broken(
            node, f"its type is {', '.join(map(str, stated))}, the rules give {', '.join(map(str, inferred))}"
        )


def _check_symbols(graph: Graph, node: Node) -> None:
    for symbol in node.symbols():
        declared = graph.symbols.get(symbol.name)
        known = None if declared is None else declared.only_symbol
        if known != symbol:
            raise _broken(node, f"the symbol {symbol!r} is declared as {known!r}")
        definer = graph.definers.get(symbol.name)
        if definer is not None and definer.id > node.id:
            raise _broken(node, f"the symbol {symbol!r} is defined later, by {definer!r}")


def _check_attributes(node: Node) -> None:
    for value in node.attrs.values():
        if isinstance(value, Literal) and value.array.flags.writeable:
            raise _broken(node, "its array can be written to")
        if isinstance(value, Graph):
            if not value.frozen:
                raise _broken(node, f"its region {value.name} is not frozen")
            if value.parameters:
                raise _broken(node, f"its region {value.name} has parameters {', '.join(value.parameters)}")
            verify(value)


def _check_signature(graph: Graph) -> None:
    tables = (("input", graph.inputs), ("parameter", graph.parameters))
    for kind, table in tables:
        for name, value in table.items():
            if value.op_name != kind or value.attrs["name"] != name or value.node.graph is not graph:
                raise VerifyError(
                    f"{kind} {name!r} of graph {graph.name} is {value!r}, made by {value.node!r}"
                )
    for node in graph.nodes:
        for kind, table in tables:
            if node.op.name == kind and table.get(node.attrs["name"]) is not node.results[0]:
                live = any(one is node for one in graph.live())
                if kind == "input" or live:
                    raise _broken(node, f"the {kind} {node.attrs['name']!r} is not in the signature")
    for name, value in graph.outputs.items():
        if value.node.graph is not graph or graph.values[value.id] is not value:
            raise VerifyError(f"output {name!r} of graph {graph.name} is {value!r} of another graph")
    for name, weight in graph.weights.items():
        if name not in graph.parameters:
            raise VerifyError(f"graph {graph.name} has an array for {name!r}, which is no parameter")
        if not callable(weight) and types.dtype(weight.dtype) is not graph.parameters[name].dtype:
            raise VerifyError(
                f"parameter {name!r} is {graph.parameters[name].type}, its array {weight.dtype}"
            )
