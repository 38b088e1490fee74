"""Damaged and hostile ONNX models: they are imported, or refused by one error; what is imported runs or is refused."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs onnx: pip install 'kernels-hub[onnx]'")

from google.protobuf.message import Message  # noqa: E402
from onnx import TensorProto, helper, numpy_helper, parser  # noqa: E402

from kernels_hub.compiler import evaluate, import_onnx  # noqa: E402
from kernels_hub.compiler.errors import CompilerError, ImportFailure  # noqa: E402
from kernels_hub.compiler.ir.dims import Expr  # noqa: E402
from kernels_hub.compiler.ir.printer import print_graph  # noqa: E402
from tests.compiler.export.emitted_layers import write_onnx  # noqa: E402
from tests.fuzz import harness  # noqa: E402
from tests.fuzz.mutations import HOSTILE_TEXTS, mutate_bytes  # noqa: E402

_LARGEST = 1 << 14  # elements of a value of a model that is run
_NUMBERS = (0, 1, -1, 2, 7, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 10**6)
_OPS = (
    "Add",
    "Loop",
    "If",
    "Scan",
    "Reshape",
    "Slice",
    "Conv",
    "Gather",
    "Split",
    "Resize",
    "Pad",
    "TopK",
    "Identity",
)

_FUNCTION = """
<ir_version: 9, opset_import: ["" : 17, "local" : 1]>
branches (float[n, 4] x, bool c, int64[2] axes) => (float[n, m] y, float[k] z) {
    half = local.scaled <by = 0.5> (x)
    y0 = If (c) <
        then_branch = yes () => (float[n, 4] a) { a = Relu(half) },
        else_branch = no () => (float[n, 4] b) { b = Neg(half) }
    >
    y = Concat <axis = 1> (y0, x)
    flat = Constant <value = int64[1] {-1}> ()
    z = Reshape(x, flat)
}
<domain: "local", opset_import: ["" : 17]>
scaled <by> (x) => (y) { f = Constant <value_float: float = @by> ()  y = Mul(x, f) }
"""


@pytest.fixture(autouse=True)
def _little_memory():
    """A variant that asks for gigabytes gets a MemoryError, and the machine lives."""
    resource = pytest.importorskip("resource", reason="needs POSIX")
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def _convolution() -> bytes:
    weight = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "weight")
    shape = numpy_helper.from_array(np.array([0, -1], np.int64), "shape")
    nodes = [
        helper.make_node("Conv", ["image", "weight"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[1, 1]),
        helper.make_node("Pad", ["p", "pads"], ["q"]),
        helper.make_node("Slice", ["q", "starts", "ends"], ["s"]),
        helper.make_node("Reshape", ["s", "shape"], ["flat"]),
        helper.make_node("TopK", ["flat", "three"], ["best", "where"], axis=1),
        helper.make_node("Split", ["flat"], ["left", "right"], axis=1, num_outputs=2),
        helper.make_node("Cast", ["left"], ["cast"], to=TensorProto.FLOAT16),
    ]
    tensors = {"pads": [0, 0, 1, 1, 0, 0, 1, 1], "starts": [0, 0, 0, 0], "ends": [99, 99, 4, 4], "three": [3]}
    given = [numpy_helper.from_array(np.array(data, np.int64), name) for name, data in tensors.items()]
    graph = helper.make_graph(
        nodes,
        "convolution",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [
            helper.make_tensor_value_info(name, kind, None)
            for name, kind in (("best", 1), ("where", 7), ("cast", 10), ("right", 1))
        ],
        [weight, shape, *given],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return model.SerializeToString()


@pytest.fixture(scope="module")
def seeds(tmp_path_factory) -> list[bytes]:
    path: Path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    write_onnx(path)
    return [path.read_bytes(), _convolution(), parser.parse_model(_FUNCTION).SerializeToString()]


def _messages(message: Message) -> list[Message]:
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in value if field.is_repeated else [value]:
                found += _messages(one)
    return found


def _mutate_message(message: Message, chance: random.Random) -> None:
    """Change one field of a message, set or not."""
    field = chance.choice(message.DESCRIPTOR.fields)
    name = field.name
    if chance.random() < 0.25:
        message.ClearField(name)
        return
    if field.message_type is not None:
        if field.is_repeated and (held := getattr(message, name)):
            match chance.randrange(3):
                case 0:
                    held.add().CopyFrom(chance.choice(held))
                case 1:
                    del held[chance.randrange(len(held))]
                case _:
                    held.add()
        return
    value: Any
    if field.type == field.TYPE_STRING:
        value = chance.choice((*HOSTILE_TEXTS[:-1], *_OPS, "x", "image", "input_ids"))
    elif field.type == field.TYPE_BYTES:
        value = mutate_bytes(b"".join([getattr(message, name)] if not field.is_repeated else []), chance)
    elif field.type in {field.TYPE_FLOAT, field.TYPE_DOUBLE}:
        value = chance.choice((0.0, -0.0, float("nan"), float("inf"), 1e30, 0.5))
    else:
        value = chance.choice(_NUMBERS)
    with contextlib.suppress(ValueError, TypeError):  # numbers out of the field's range, unknown enumerators
        if field.is_repeated:
            held = getattr(message, name)
            held.append(value)
            if chance.random() < 0.5:
                held[chance.randrange(len(held))] = value
        else:
            setattr(message, name, value)


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Damage the bytes, or fields of the messages in them."""
    if chance.random() < 0.1:
        return mutate_bytes(data, chance)
    model = onnx.ModelProto()
    model.ParseFromString(data)
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        _mutate_message(chance.choice(_messages(model)), chance)
    return bytes(model.SerializeToString())


def _least(dim: Any) -> int:
    if isinstance(dim, int):
        return dim
    return _LARGEST if dim.only_symbol is None else max(dim.only_symbol.min, 1)


def import_and_run(data: bytes) -> None:
    """Import a model, print it, and run it where that is little work."""
    try:
        graph = import_onnx(data)
    except ImportFailure as error:
        if "MemoryError" in str(error):
            raise MemoryError("more than a gigabyte was asked for") from error
        raise
    printed = print_graph(graph)
    assert all(line.isprintable() for line in printed.split("\n"))
    if any(np.prod([float(_least(dim)) for dim in value.shape]) > _LARGEST for value in graph.values):
        return
    inputs = {}
    for name, value in graph.inputs.items():
        if any(isinstance(dim, Expr) and dim.only_symbol is None for dim in value.shape):
            return
        inputs[name] = np.zeros([_least(dim) for dim in value.shape], value.dtype.numpy)
    if len(data) % 4 == 0 and not any(node.op.name in {"loop", "scan"} for node in graph.nodes):
        with contextlib.suppress(CompilerError):
            evaluate(graph, inputs)


def test_variants_are_imported_or_refused(seeds):
    for seed in seeds:
        import_and_run(seed)
    harness.run("onnx", seeds, mutate, import_and_run, (ImportFailure,), count=harness.budget(400))
