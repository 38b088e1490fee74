"""Graphs, devices and knobs as messages carry them."""

from __future__ import annotations

from kernels_hub.compiler.engines.engine import Device, Knob
from kernels_hub.compiler.engines.payload import pack_graph
from kernels_hub.compiler.engines.plugins.wire import Json
from kernels_hub.compiler.ir.dummy import dummy_weights
from kernels_hub.compiler.ir.graph import Graph, Value

TRIAL = "trial"
"""The engine that graphs are packed for, on their way to a child."""
DEVICES = ("cpu", "cuda", "rocm")
"""Types of devices that engines are asked about."""


def packed(graph: Graph, device: Device | None = None) -> bytes:
    """A graph with its weights; made-up ones for those that have no array."""
    if any(name not in graph.weights for name in graph.parameters):
        from kernels_hub.compiler.ir.transform import rebuild

        graph = rebuild(graph).graph
        graph.weights.update(dummy_weights(graph))
    return pack_graph(graph, TRIAL, device or Device("cpu"), {})


def probes() -> tuple[Graph, ...]:
    """Graphs that an engine takes if it takes anything: x + x, and a product with what often follows it."""
    simple = Graph("probe")
    x = simple.input("x", (8,))
    simple.output("y", x + x)
    product = Graph("probe")
    x, weight = product.input("x", (8, 16)), product.input("weight", (16, 8))
    product.output("y", (x @ weight).relu())
    return simple, product


def values_of(graph: Graph) -> list[Value]:
    """The values of a graph in the order in which it is printed."""
    return [value for node in graph.live() for value in node.results]


def device_row(device: Device) -> list[object]:
    """A device in a request."""
    return [device.type, device.index, device.arch]


def device_of(request: Json) -> Device:
    """The device of a request."""
    kind, index, arch = request["device"]
    return Device(kind, index, arch)


def knob_row(knob: Knob) -> Json:
    """A knob in an answer."""
    return {"name": knob.name, "values": list(knob.values), "doc": knob.doc}
