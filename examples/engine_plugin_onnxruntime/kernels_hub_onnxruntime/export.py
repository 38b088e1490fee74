"""A graph of the compiler as an ONNX model.

`refusal(node)` is why a node cannot be written, or None; `to_onnx(graph)` the model of a graph whose dims are all
numbers. Each op is a row of `WRITERS`: which dtypes ONNX Runtime has a CPU kernel for that computes what the op
table says, and a function that writes nodes. What is not there (integer division, whose zeros end the process;
casts of floats to integers, which overflow otherwise; float8) is declined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.proofs import proves_le

OPSET, IR_VERSION = 20, 10
LARGEST = 1 << 31
"""Protobuf ends at 2 GiB; models whose weights are larger are declined."""

FLOATS = frozenset({"float32", "float64"})
INTS = frozenset({"int32", "int64"})
BOOL = frozenset({"bool"})
SINGLE = frozenset({"float32"})
ANY = FLOATS | INTS | BOOL
ELEMENT = {
    "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "int32": TensorProto.INT32,
    "int64": TensorProto.INT64, "bool": TensorProto.BOOL,
}  # fmt: skip


@dataclass
class ModelWriter:
    """A model being written: its nodes and initializers, and names that are not taken."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    count: int = 0

    def name(self) -> str:
        """A new one."""
        self.count += 1
        return f"t{self.count}"

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        """A node of one output, whose name it is."""
        output = self.name()
        self.nodes.append(helper.make_node(op, list(inputs), [output], **attrs))
        return output

    def array(self, array: Any) -> str:
        """An initializer."""
        name = self.name()
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def numbers(self, *numbers: int) -> str:
        """An initializer of int64."""
        return self.array(np.array(numbers, np.int64))


Write = Callable[[ModelWriter, Node, list[str]], str]


@dataclass(frozen=True)
class Writer:
    """dtypes: of every operand. write: the nodes; gives the name of the result. declines: what else is in the way."""

    dtypes: frozenset[str]
    write: Write
    declines: Callable[[Node], str | None] = lambda _: None


def _plain(op: str, dtypes: frozenset[str], **attrs: Any) -> Writer:
    return Writer(dtypes, lambda model, _, inputs: model.add(op, *inputs, **attrs))


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(int(dim) for dim in node.results[0].shape)


def _ints(values: Any) -> list[int]:
    return [int(one) for one in values]


def _reshape(model: ModelWriter, node: Node, inputs: list[str]) -> str:
    return model.add("Reshape", inputs[0], model.numbers(*_shape(node)), allowzero=1)


def _broadcast(model: ModelWriter, node: Node, inputs: list[str]) -> str:
    shape, placed = _shape(node), [1] * len(node.results[0].shape)
    for dim, axis in zip(node.operands[0].shape, node.attrs["axes"], strict=True):
        placed[axis] = int(dim)
    return model.add(
        "Expand", model.add("Reshape", inputs[0], model.numbers(*placed), allowzero=1), model.numbers(*shape)
    )


def _slice(model: ModelWriter, node: Node, inputs: list[str]) -> str:
    bounds = [model.numbers(*_ints(node.attrs[name])) for name in ("starts", "stops")]
    axes = model.numbers(*range(node.operands[0].rank))
    return model.add("Slice", inputs[0], *bounds, axes, model.numbers(*node.attrs["steps"]))


def _flip(model: ModelWriter, node: Node, inputs: list[str]) -> str:
    axes = node.attrs["axes"]
    each = [model.numbers(*[number] * len(axes)) for number in (-1, np.iinfo(np.int64).min + 1)]
    return model.add("Slice", inputs[0], *each, model.numbers(*axes), each[0]) if axes else inputs[0]


def _pad(model: ModelWriter, node: Node, inputs: list[str]) -> str:
    pairs = node.attrs["padding"]
    pads = model.numbers(*(int(low) for low, _ in pairs), *(int(high) for _, high in pairs))
    return model.add("Pad", inputs[0], pads, *inputs[1:], mode=node.attrs["mode"])


def _reduce(op: str) -> Write:
    def write(model: ModelWriter, node: Node, inputs: list[str]) -> str:
        axes = node.attrs["axes"]
        return model.add(op, inputs[0], model.numbers(*axes), keepdims=0) if axes else inputs[0]

    return write


def _empty(node: Node) -> str | None:
    return None if all(proves_le(1, dim) for dim in node.operands[0].shape) else "of dims that may be 0"


def _spatial(op: str, **fixed: Any) -> Write:
    def write(model: ModelWriter, node: Node, inputs: list[str]) -> str:
        attrs: dict[str, Any] = dict(fixed)
        pairs = node.attrs["padding"]
        attrs["pads"] = [*(int(low) for low, _ in pairs), *(int(high) for _, high in pairs)]
        attrs["strides"], attrs["dilations"] = node.attrs["strides"], node.attrs["dilations"]
        renamed = {"groups": "group", "kernel": "kernel_shape", "output_padding": "output_padding"}
        attrs |= {new: node.attrs[old] for old, new in renamed.items() if old in node.attrs}
        if node.attrs.get("count") == "padded":
            attrs["count_include_pad"] = 1
        return model.add(op, *inputs, **attrs)

    return write


def _plain_product(node: Node) -> str | None:
    first, second = (operand.dtype for operand in node.operands)
    result, sums = node.attrs["dtype"] or first, node.attrs["accumulate"] or first
    if not first is second is result is sums:
        return f"that multiplies {first} and {second}, sums in {sums}, and gives {result}"
    return None


def _declines_conv(node: Node) -> str | None:
    if node.operands[0].rank > 5:
        return "of more than three spatial dims"
    if any(isinstance(dim, int) and dim == 0 for one in (*node.operands, *node.results) for dim in one.shape):
        return "of no elements"
    more = node.attrs.get("output_padding", ())
    if any(extra >= stride for extra, stride in zip(more, node.attrs["strides"], strict=False)):
        return "with an output padding of a stride or more"
    return _plain_product(node)


def _declines_pool(node: Node) -> str | None:
    if node.attrs["ceil"] or node.operands[0].rank > 5:
        return "with windows that are cut off, or of more than three spatial dims"
    if any(
        low >= kernel or high >= kernel
        for (low, high), kernel in zip(node.attrs["padding"], node.attrs["kernel"], strict=True)
    ):
        return "with windows that see padding alone"
    return _empty(node)


def _declines_cast(node: Node) -> str | None:
    source, to = node.operands[0].dtype, node.results[0].dtype
    if to.name not in ANY:
        return f"to {to}"
    if source.is_float and to.is_integer:
        return f"from {source} to {to}, which overflows otherwise"
    return None


def _declines_pad(node: Node) -> str | None:
    if node.attrs["mode"] not in {"constant", "edge"}:
        return f"by {node.attrs['mode']}"
    return _empty(node) if node.attrs["mode"] == "edge" else None


_UNARY = {
    "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos", "tanh": "Tanh", "sigmoid": "Sigmoid",
    "erf": "Erf", "floor": "Floor", "ceil": "Ceil", "round": "Round",
}  # fmt: skip

WRITERS: dict[str, Writer] = {
    **{name: _plain(op, SINGLE) for name, op in _UNARY.items()},
    "neg": _plain("Neg", FLOATS | INTS),
    "abs": _plain("Abs", FLOATS | INTS),
    "add": _plain("Add", FLOATS | INTS),
    "sub": _plain("Sub", FLOATS | INTS),
    "mul": _plain("Mul", FLOATS | INTS),
    "div": _plain("Div", FLOATS),
    "pow": _plain("Pow", FLOATS),
    "maximum": _plain("Max", FLOATS | INTS),
    "minimum": _plain("Min", FLOATS | INTS),
    "rsqrt": Writer(SINGLE, lambda model, _, inputs: model.add("Reciprocal", model.add("Sqrt", *inputs))),
    "fmod": _plain("Mod", FLOATS, fmod=1),
    "eq": _plain("Equal", ANY),
    "ne": Writer(ANY, lambda model, _, inputs: model.add("Not", model.add("Equal", *inputs))),
    "lt": _plain("Less", FLOATS | INTS),
    "le": _plain("LessOrEqual", FLOATS | INTS),
    "isnan": _plain("IsNaN", FLOATS),
    "isinf": _plain("IsInf", FLOATS),
    "bitnot": _plain("Not", BOOL),
    "bitand": _plain("And", BOOL),
    "bitor": _plain("Or", BOOL),
    "bitxor": _plain("Xor", BOOL),
    "select": _plain("Where", FLOATS | INTS),
    "cast": Writer(
        ANY,
        lambda model, node, inputs: model.add("Cast", *inputs, to=ELEMENT[node.results[0].dtype.name]),
        _declines_cast,
    ),
    "reshape": Writer(ANY, _reshape),
    "broadcast": Writer(ANY, _broadcast),
    "permute": Writer(
        ANY, lambda model, node, inputs: model.add("Transpose", *inputs, perm=node.attrs["order"])
    ),
    "slice": Writer(ANY, _slice),
    "flip": Writer(ANY, _flip),
    "pad": Writer(ANY, _pad, _declines_pad),
    "concat": Writer(ANY, lambda model, node, inputs: model.add("Concat", *inputs, axis=node.attrs["axis"])),
    "reduce_sum": Writer(FLOATS | INTS, _reduce("ReduceSum")),
    "reduce_mean": Writer(FLOATS, _reduce("ReduceMean"), _empty),
    "reduce_max": Writer(FLOATS | INTS, _reduce("ReduceMax"), _empty),
    "reduce_min": Writer(FLOATS | INTS, _reduce("ReduceMin"), _empty),
    "softmax": Writer(
        FLOATS, lambda model, node, inputs: model.add("Softmax", *inputs, axis=node.attrs["axis"])
    ),
    "log_softmax": Writer(
        FLOATS, lambda model, node, inputs: model.add("LogSoftmax", *inputs, axis=node.attrs["axis"])
    ),
    "matmul": Writer(FLOATS, lambda model, _, inputs: model.add("MatMul", *inputs), _plain_product),
    "conv": Writer(SINGLE, _spatial("Conv"), _declines_conv),
    "conv_transpose": Writer(SINGLE, _spatial("ConvTranspose"), _declines_conv),
    "max_pool": Writer(SINGLE, _spatial("MaxPool"), _declines_pool),
    "avg_pool": Writer(SINGLE, _spatial("AveragePool"), _declines_pool),
    "gather": Writer(ANY, lambda model, node, inputs: model.add("Gather", *inputs, axis=node.attrs["axis"])),
    "gather_elements": Writer(
        ANY, lambda model, node, inputs: model.add("GatherElements", *inputs, axis=node.attrs["axis"])
    ),
}
_LEAVES = frozenset({"input", "parameter", "constant", "iota", "size"})


def refusal(node: Node) -> str | None:
    """Why a node cannot be written; None if it can."""
    for value in (*node.operands, *node.results):
        if value.dtype.name not in ANY:
            return f"{node.op.name} of {value.dtype}"
    if node.op.name in _LEAVES:
        return None
    if node.op.name == "call":
        inner = (refusal(one) for one in node.attrs["callee"].live())
        return next((f"in {node.attrs['callee'].name}: {one}" for one in inner if one), None)
    writer = WRITERS.get(node.op.name)
    if writer is None:
        return f"{node.op.name} is not written"
    for operand in node.operands:
        if operand.dtype.name not in writer.dtypes and not (
            operand.dtype.name in INTS | BOOL and _is_index(node, operand)
        ):
            return f"{node.op.name} of {operand.dtype}"
    reason = writer.declines(node)
    return f"{node.op.name} {reason}" if reason else None


def _is_index(node: Node, operand: Value) -> bool:
    """Whether an operand chooses, as indices and conditions do."""
    place = {"gather": 1, "gather_elements": 1, "select": 0}.get(node.op.name)
    return place is not None and node.operands[place] is operand


def to_onnx(graph: Graph) -> onnx.ModelProto:
    """The model of a graph whose dims are numbers: inputs in0, in1, …, outputs out0, out1, …"""
    model = ModelWriter()
    names = {value: f"in{place}" for place, value in enumerate(graph.inputs.values())}
    _write(model, graph, names, graph)
    inputs = [_described(f"in{place}", value) for place, value in enumerate(graph.inputs.values())]
    outputs = []
    for place, value in enumerate(graph.outputs.values()):
        model.nodes.append(helper.make_node("Identity", [names[value]], [f"out{place}"]))
        outputs.append(_described(f"out{place}", value))
    made = helper.make_graph(model.nodes, "graph", inputs, outputs, model.initializers)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def _write(model: ModelWriter, graph: Graph, names: dict[Value, str], weights: Graph) -> None:
    for node in graph.live():
        if node.op.name == "input":
            continue
        inputs = [names[operand] for operand in node.operands]
        if node.op.name == "call":
            callee: Graph = node.attrs["callee"]
            inner = dict(zip(callee.inputs.values(), inputs, strict=True))
            _write(model, callee, inner, weights)
            for value, result in zip(node.results, callee.outputs.values(), strict=True):
                names[value] = inner[result]
        elif node.op.name in _LEAVES:
            names[node.results[0]] = model.array(_leaf(node, weights))
        else:
            names[node.results[0]] = WRITERS[node.op.name].write(model, node, inputs)


def _leaf(node: Node, weights: Graph) -> Any:
    if node.op.name == "parameter":
        return weights.weight(node.attrs["name"])
    if node.op.name == "constant":
        return node.attrs["value"].array
    dtype = node.results[0].dtype.numpy
    if node.op.name == "iota":
        return np.arange(int(node.attrs["size"])).astype(dtype)
    return np.asarray(int(node.attrs["value"]), dtype)


def _described(name: str, value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, ELEMENT[value.dtype.name], [int(dim) for dim in value.shape])
