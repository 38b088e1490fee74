"""What is drawn of an ONNX model that does not become a graph: its nodes as they are, those that stop it marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernels_hub.compiler.ir.cost import FREE, Cost
from kernels_hub.compiler.viewing.drawing import Box, Drawing, OperandRow, short

if TYPE_CHECKING:
    from onnx import AttributeProto, ModelProto, TypeProto

Names = tuple[str, ...]
Attributes = tuple[tuple[str, str], ...]

MARK = "⚠ "
"""Before the titles of nodes that cannot be imported."""


def draw_onnx(model: ModelProto, reasons: Mapping[str, str]) -> Drawing:
    """model: a ModelProto. reasons: what a node gives first, or its name -> why it cannot be imported."""
    graph = model.graph
    types = {one.name: _type(one.type) for one in (*graph.input, *graph.value_info, *graph.output)}
    weights = {
        one.name: f"{_element(one.data_type)}[{', '.join(map(str, one.dims))}]" for one in graph.initializer
    }
    numbers: dict[str, int] = {}
    made_by: dict[int, int] = {}
    boxes: list[Box] = []
    counts: dict[str, int] = {}

    def enter(
        op: str, kind: str, title: str, inputs: Names, outputs: Names, attrs: Attributes, origin: str
    ) -> None:
        read = tuple(numbers[name] for name in inputs if name in numbers)
        rows = tuple(
            OperandRow(place, short(name), weights[name], (), "")
            for place, name in enumerate(inputs)
            if name in weights
        )
        mine = []
        for name in filter(None, outputs):
            numbers[name] = len(numbers)
            made_by[numbers[name]] = len(boxes)
            mine.append(numbers[name])
        shown = tuple(types.get(name, "?") for name in (outputs or inputs) if name)
        structure = (op, *(attr for attr in attrs if attr[0] != "cannot be imported"), *shown)
        boxes.append(
            Box(
                op,
                kind,
                short(title),
                shown,
                short(origin),
                read,
                tuple(mine),
                attrs,
                rows,
                FREE,
                structure,
                flows=True,
            )
        )
        counts[op] = counts.get(op, 0) + 1

    for one in graph.input:
        if one.name not in weights:
            enter("input", "input", one.name, (), (one.name,), (), "")
    for node in graph.node:
        op = f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        reason = next((reasons[name] for name in (node.name, *node.output) if name in reasons), None)
        attrs = tuple((one.name, short(_attribute(one))) for one in node.attribute)
        if reason is not None:
            attrs = (("cannot be imported", short(reason)), *attrs)
        title = op if reason is None else f"{MARK}{op}"
        kind = "other" if reason is None else "region"
        enter(op, kind, title, tuple(node.input), tuple(node.output), attrs, node.name)
    for one in graph.output:
        enter("output", "output", one.name, (one.name,), (), (), "")
    ordered = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return Drawing(short(graph.name or "model"), tuple(boxes), ordered, 0, {}, Cost(None, None), made_by)


def _element(number: int) -> str:
    from onnx import helper

    try:
        return str(helper.tensor_dtype_to_np_dtype(number).name)
    except (KeyError, ValueError):
        return f"type {number}"


def _type(declared: TypeProto) -> str:
    kind = declared.WhichOneof("value")
    if kind != "tensor_type":
        return str(kind or "?").removesuffix("_type")
    tensor = declared.tensor_type
    if not tensor.HasField("shape"):
        return _element(tensor.elem_type)
    dims = (
        str(dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else "?"))
        for dim in tensor.shape.dim
    )
    return f"{_element(tensor.elem_type)}[{', '.join(dims)}]"


def _attribute(one: AttributeProto) -> str:
    if one.HasField("g"):
        return f"graph of {len(one.g.node)} nodes"
    if one.HasField("t"):
        return f"{_element(one.t.data_type)}[{', '.join(map(str, one.t.dims))}]"
    for name in ("ints", "floats", "strings"):
        if values := getattr(one, name):
            return str(
                [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values]
            )
    for name in ("i", "f", "s"):
        if one.HasField(name):
            value = getattr(one, name)
            return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return ""
