"""Serializes a graph with its weights, for engines that rebuild their plans from the graph.

The bytes are a `container`: in its header the engine, the device's type, the knobs and the graph's text; a section
for each weight and each large constant. Arrays that are read back lie in the payload. No pickle: reading runs no code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels_hub.compiler.engines.container import AGAIN, Bytes, Header, read_container, write_container
from kernels_hub.compiler.engines.engine import Device, KnobValue
from kernels_hub.compiler.errors import CompilerError, PlanError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.parser import parse_graph
from kernels_hub.compiler.ir.printer import large_constants, print_graph
from kernels_hub.compiler.ir.types import Array
from kernels_hub.parsing import Struct, Text

_KIND = "graph"


@dataclass(frozen=True)
class Unpacked:
    """What a payload holds."""

    graph: Graph
    knobs: Mapping[str, KnobValue]


def pack_graph(graph: Graph, engine: str, device: Device, knobs: Mapping[str, KnobValue]) -> bytes:
    """A graph, its weights and what an engine was told, as bytes."""
    weights = {name: graph.weight(name) for name in graph.parameters}
    constants = large_constants(graph)
    header = {
        "kind": _KIND,
        "engine": engine,
        "device": device.type,
        "knobs": dict(knobs),
        "graph": print_graph(graph),
        "weights": {name: _described(array) for name, array in weights.items()},
        "constants": {digest: _described(array) for digest, array in constants.items()},
    }
    sections = {f"weight {name}": _bytes(array) for name, array in weights.items()}
    sections |= {f"constant {digest}": _bytes(array) for digest, array in constants.items()}
    return write_container(header, sections)


class ArrayRow(Struct, frozen=True):
    """The type of an array."""

    dtype: Text
    shape: tuple[Bytes, ...]


class GraphHeader(Header, frozen=True, kw_only=True):
    """The header of a payload."""

    engine: Text
    device: Text
    knobs: dict[str, bool | int | float | str]
    graph: str
    weights: dict[str, ArrayRow]
    constants: dict[str, ArrayRow]


def unpack_graph(payload: bytes, engine: str, device: Device) -> Unpacked:
    """What `pack_graph` packed. Raises PlanError where it is damaged, or of another engine or device."""
    what = f"this plan of engine {engine}"
    container = read_container(payload, what)
    header = container.header(GraphHeader)
    if header.kind != _KIND or header.engine != engine:
        raise PlanError(f"this plan is of engine {header.engine!r}; engine {engine!r} cannot run it")
    if header.device != device.type:
        raise PlanError(f"{what} is for {header.device}, not for {device}: compile the graph there")
    try:
        weights = {
            name: _array(container.section(f"weight {name}"), row, f"{what}: the weight {name!r}")
            for name, row in header.weights.items()
        }
        constants = {
            name: _array(container.section(f"constant {name}"), row, f"{what}: the constant {name!r}")
            for name, row in header.constants.items()
        }
        graph = parse_graph(header.graph, constants=constants, weights=weights)
    except PlanError:
        raise
    except CompilerError as error:
        raise PlanError(f"{what} is of another version of the compiler ({error}); {AGAIN}") from error
    for name, value in graph.parameters.items():
        array = weights.get(name)
        given = "not given" if array is None else f"{types.dtype(array.dtype)}{list(array.shape)}"
        if array is None or types.dtype(array.dtype) is not value.dtype or array.shape != value.shape:
            raise PlanError(f"{what}: the weight {name!r} is {given}, its parameter is {value.type}; {AGAIN}")
    if unknown := sorted(weights.keys() - graph.parameters.keys()):
        raise PlanError(f"{what}: no parameter is called {unknown[0]!r}, of which it has a weight; {AGAIN}")
    return Unpacked(graph, header.knobs)


def _described(array: Array) -> dict[str, Any]:
    return {"dtype": types.dtype(array.dtype).name, "shape": list(array.shape)}


def _bytes(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def _array(data: memoryview, row: ArrayRow, what: str) -> Array:
    of = types.dtype(row.dtype)
    count = math.prod(row.shape)
    if len(data) != count * of.numpy.itemsize:
        raise PlanError(f"{what} has {len(data)} bytes, which are no {of}{list(row.shape)}; {AGAIN}")
    flat: Array = np.frombuffer(data, of.numpy, count) if count else np.empty(0, of.numpy)
    return flat.reshape(row.shape)
