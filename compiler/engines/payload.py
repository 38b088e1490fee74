"""A graph with its weights as bytes, and back: what engines serialize whose plans are made of a graph in no time.

The bytes are a `container`: in its header the engine, the device's type, the knobs and the graph's text; a section
for each weight and each large constant. Arrays that are read back lie in the payload. No pickle: reading runs no code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels_hub.compiler.container import read_container, write_container
from kernels_hub.compiler.engines.engine import Device, KnobValue
from kernels_hub.compiler.errors import CompilerError, PlanError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.parser import parse_graph
from kernels_hub.compiler.ir.printer import large_constants, print_graph
from kernels_hub.compiler.ir.types import Array

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


def unpack_graph(payload: bytes, engine: str, device: Device) -> Unpacked:
    """What `pack_graph` packed. Raises PlanError where it is damaged, or of another engine or device."""
    found = read_container(payload, f"this plan of engine {engine}")
    header = found.header
    try:
        if header["kind"] != _KIND or header["engine"] != engine:
            raise PlanError(f"this plan is of engine {header['engine']!r}; engine {engine!r} cannot run it")
        if header["device"] != device.type:
            raise PlanError(
                f"this plan of engine {engine} is for {header['device']}, not for {device}: compile the graph there"
            )
        arrays = {
            kind: {
                name: _array(found.sections[f"{kind} {name}"], row)
                for name, row in header[f"{kind}s"].items()
            }
            for kind in ("weight", "constant")
        }
        graph = parse_graph(header["graph"], constants=arrays["constant"], weights=arrays["weight"])
        return Unpacked(graph, header["knobs"])
    except PlanError:
        raise
    except (KeyError, TypeError, ValueError, CompilerError) as error:
        raise PlanError(
            f"this plan of engine {engine} is of another version of the compiler ({error}); compile the graph again"
        ) from error


def _described(array: Array) -> dict[str, Any]:
    return {"dtype": types.dtype(array.dtype).name, "shape": list(array.shape)}


def _bytes(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def _array(data: memoryview, row: Mapping[str, Any]) -> Array:
    of, shape = types.dtype(row["dtype"]), tuple(row["shape"])
    flat: Array = np.frombuffer(data, of.numpy, math.prod(shape)) if len(data) else np.empty(0, of.numpy)
    return flat.reshape(shape)
