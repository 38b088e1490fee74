"""A graph as text that a person reads and `parser` reads back.

    graph "mlp" {
      symbols batch >= 1
      %0: float32[batch, 8] = input(name="x")
      %1: float32[8, 4] = parameter(name="w")
      %2: float32[batch, 4] = matmul(%0, %1) @"layers.0"
      %3: float32[] = constant(value=[0.0])
      %4: float32[batch, 4] = broadcast(%3, axes=[])
      %5: float32[batch, 4] = maximum(%2, %4)
      return "y" = %5
    }

Attributes at their defaults are left out, and so are a required `shape` and `dtype` that the type states.
Small constants stand inline; of large ones there is the digest, and on request the bytes in a table below.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Expr
from kernels_hub.compiler.ir.graph import Graph, Node
from kernels_hub.compiler.ir.op import REQUIRED, Literal
from kernels_hub.compiler.ir.types import Array, DType
from kernels_hub.escaping import quoted

INLINE = 8
"""Constants of at most so many elements are written out."""


def print_graph(graph: Graph, *, data: bool = False) -> str:
    """The text of a graph. data: with the bytes of large constants, so that the text is all there is to it.

    >>> graph = Graph("double")
    >>> x = graph.input("x", ("n", 4))
    >>> y = graph.output("y", x * 2.0)
    >>> print(print_graph(graph))
    graph "double" {
      symbols n >= 0
      %0: float32[n, 4] = input(name="x")
      %1: float32[] = constant(value=[2.0])
      %2: float32[n, 4] = broadcast(%1, axes=[])
      %3: float32[n, 4] = mul(%0, %2)
      return "y" = %3
    }
    """
    lines = list(_block(graph, ""))
    lines[0] = f"graph {quoted(graph.name)} {lines[0]}"
    if data:
        lines += [f'data @{digest} "{_bytes(array)}"' for digest, array in large_constants(graph).items()]
    return "\n".join(lines)


def large_constants(graph: Graph) -> dict[str, Array]:
    """Digest -> array of the constants that the text names by digest, regions included."""
    found: dict[str, Array] = {}
    for node in graph.nodes:
        for value in node.attrs.values():
            if isinstance(value, Literal) and value.array.size > INLINE:
                found[value.digest] = value.array
            elif isinstance(value, Graph):
                found |= large_constants(value)
    return found


def _block(graph: Graph, indent: str) -> Iterator[str]:
    yield "{"
    inner = indent + "  "
    if graph.symbols:
        facts = (one.only_symbol.facts for _, one in sorted(graph.symbols.items()) if one.only_symbol)
        yield f"{inner}symbols {', '.join(facts)}"
    for node in graph.nodes:
        yield f"{inner}{_node(node, inner)}"
    returned = ", ".join(f"{quoted(name)} = %{value.id}" for name, value in graph.outputs.items())
    yield f"{inner}return {returned}".rstrip()
    yield f"{indent}}}"


def _node(node: Node, indent: str) -> str:
    results = ", ".join(f"%{value.id}: {value.type}" for value in node.results)
    inside = [f"%{value.id}" for value in node.operands]
    for attr in node.op.attrs:
        value = node.attrs[attr.name]
        if value == attr.default or implied(node, attr.name, attr.default) == value:
            continue
        inside.append(f"{attr.name}={_attribute(value, indent)}")
    origin = f" @{quoted(node.origin)}" if node.origin else ""
    return f"{results} = {node.op.name}({', '.join(inside)}){origin}"


def implied(node: Node, name: str, default: Any) -> Any:
    """What the type of the only result says of a required attribute; None of all others."""
    if default is not REQUIRED or len(node.results) != 1:
        return None
    return {"shape": node.results[0].shape, "dtype": node.results[0].dtype}.get(name)


def _attribute(value: Any, indent: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, (int, Expr, DType)):
        return str(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, tuple):
        return f"[{', '.join(_attribute(item, indent) for item in value)}]"
    if isinstance(value, Graph):
        return f"{quoted(value.name)} " + "\n".join(_block(value, indent))
    return _literal(value)


def _literal(value: Literal) -> str:
    if value.array.size > INLINE:
        return f"@{value.digest}"
    row = types.dtype(value.array.dtype)
    if row.kind != "complex":
        numbers = [item.item() if row.module == "numpy" else float(item) for item in value.array.reshape(-1)]
        again = (
            np.array(numbers, np.float64 if row.is_float else None)
            .astype(row.numpy)
            .reshape(value.array.shape)
        )
        if Literal.of(again) == value:
            shown = (int(number) if row.is_integer else number for number in numbers)
            return f"[{', '.join(_attribute(one, '') for one in shown)}]"
    return f'"{_bytes(value.array)}"'


def _float(value: float) -> str:
    return repr(float(value))


def _bytes(array: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
