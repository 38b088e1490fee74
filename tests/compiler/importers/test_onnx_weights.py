"""Weights that are read apart from a model's file: the same numbers, and files that are laid out in odd ways."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from kernels_hub.compiler import import_onnx
from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.importers.onnx_file import read_onnx
from kernels_hub.compiler.importers.onnx_weights import LEAST, MOST_FIELDS, read_apart

LARGE = np.arange(3 * LEAST, dtype=np.float32).reshape(3, LEAST)
SMALL = np.arange(8, dtype=np.float32)


def model(*tensors: TensorProto) -> onnx.ModelProto:
    """A model that gives its initializers."""
    outputs = [
        helper.make_tensor_value_info(f"{one.name}_out", one.data_type, list(one.dims)) for one in tensors
    ]
    nodes = [helper.make_node("Identity", [one.name], [f"{one.name}_out"]) for one in tensors]
    graph = helper.make_graph(nodes, "weights", [], outputs, initializer=list(tensors))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def written(tmp_path, data: bytes):
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    return path


def usual() -> onnx.ModelProto:
    return model(
        numpy_helper.from_array(SMALL, "small"),
        numpy_helper.from_array(LARGE, "large"),
        helper.make_tensor("typed", TensorProto.FLOAT, [2 * LEAST], LARGE.reshape(-1)[: 2 * LEAST]),
        numpy_helper.from_array(LARGE[:, ::-1].astype(np.float16), "half"),
    )


def test_large_weights_are_read_apart_and_once(tmp_path):
    made = usual()
    apart = read_apart(written(tmp_path, made.SerializeToString()))
    assert sorted(apart.weights) == [1, 3]
    assert all(not one.flags.writeable and one.ctypes.data % 16 == 0 for one in apart.weights.values())
    rest = onnx.ModelProto.FromString(apart.text)
    assert not rest.graph.initializer[1].raw_data
    for place, weight in apart.weights.items():
        rest.graph.initializer[place].raw_data = weight.tobytes()
    assert rest == made


def test_graphs_have_the_same_weights_as_of_bytes(tmp_path):
    data = usual().SerializeToString()
    ours, theirs = import_onnx(written(tmp_path, data)), import_onnx(data)
    assert list(ours.weights) == list(theirs.weights) == ["small", "large", "typed", "half"]
    for name in ours.weights:
        np.testing.assert_array_equal(ours.weight(name), theirs.weight(name))
    assert not np.array_equal(ours.weight("large"), ours.weight("large")[:, ::-1])


def test_a_graph_in_two_parts_is_read_whole(tmp_path):
    made = usual()
    second = onnx.ModelProto()
    second.graph.initializer.add().CopyFrom(numpy_helper.from_array(LARGE + 1, "more"))
    data = made.SerializeToString() + second.SerializeToString()
    path = written(tmp_path, data)
    assert read_apart(path).weights == {}
    assert [one.name for one in read_onnx(path).model.graph.initializer][-1] == "more"


def test_data_that_stand_twice_are_what_protobuf_takes(tmp_path):
    tensor = numpy_helper.from_array(LARGE, "large")
    again = TensorProto(raw_data=(LARGE + 1).tobytes())
    tensor_bytes = tensor.SerializeToString() + again.SerializeToString()
    made = model(numpy_helper.from_array(SMALL, "large"))
    graph = made.graph
    del graph.initializer[:]
    graph.output[0].type.tensor_type.shape.CopyFrom(
        helper.make_tensor_value_info("", 1, LARGE.shape).type.tensor_type.shape
    )
    text = graph.SerializeToString() + b"\x2a" + _varint(len(tensor_bytes)) + tensor_bytes
    made.ClearField("graph")
    path = written(tmp_path, made.SerializeToString() + b"\x3a" + _varint(len(text)) + text)
    assert read_apart(path).weights == {}
    np.testing.assert_array_equal(import_onnx(path).weight("large"), LARGE + 1)


@pytest.mark.parametrize("length", [1, 40, 5000, -1, -LEAST])
def test_a_file_that_is_cut_off_is_refused(tmp_path, length):
    path = written(tmp_path, usual().SerializeToString()[:length])
    with pytest.raises(ImportFailure, match="is no ONNX model"):
        import_onnx(path)


def test_data_of_another_size_than_the_shape_are_refused(tmp_path):
    made = usual()
    made.graph.initializer[1].raw_data += b"\0\0\0\0"
    with pytest.raises(ImportFailure, match="'large' is float32.*of another size"):
        import_onnx(written(tmp_path, made.SerializeToString()))


def test_a_file_of_nothing_but_fields_is_left_to_protobuf(tmp_path):
    made = usual()
    fields = b"\x08" + bytes([made.ir_version])
    path = written(tmp_path, made.SerializeToString() + fields * MOST_FIELDS)
    assert read_apart(path).weights == {}
    np.testing.assert_array_equal(import_onnx(path).weight("large"), LARGE)


def _varint(value: int) -> bytes:
    made = b""
    while value > 127:
        made += bytes([value & 127 | 128])
        value >>= 7
    return made + bytes([value])
