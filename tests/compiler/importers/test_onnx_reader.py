"""Files that are read without protobuf: the same messages and numbers, and files that are laid out in odd ways."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from kernels_hub.compiler import import_onnx
from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.importers.onnx_file import read_onnx
from kernels_hub.compiler.importers.onnx_reader import MOST_FIELDS, OddError, read_bytes, read_file

LEAST = 1 << 15
LARGE = (np.arange(3 * LEAST, dtype=np.float32) % 4096).reshape(3, LEAST)
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


def test_large_weights_are_read_once(tmp_path):
    small, large, typed, half = read_file(written(tmp_path, usual().SerializeToString())).graph.initializer
    assert isinstance(small.raw_data, bytes)
    for one in (large, half):
        assert isinstance(one.raw_data, np.ndarray) and not one.raw_data.flags.writeable
        assert one.raw_data.ctypes.data % 16 == 0
    np.testing.assert_array_equal(large.raw_data.view(np.float32).reshape(LARGE.shape), LARGE)
    np.testing.assert_array_equal(typed.float_data, LARGE.reshape(-1)[: 2 * LEAST])


def everything() -> onnx.ModelProto:
    """A model with every field that is read."""
    numbers = [0, 1, -1, 127, 128, -(1 << 63), (1 << 63) - 1, 1 << 40]
    inner = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["z"])], "inner", [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
    )  # fmt: skip
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(SMALL[:2], "sparse"), numpy_helper.from_array(np.array([1, 3]), "places"), [8]
    )
    attributes = {
        "f": 0.1, "i": -5, "s": b"\xff\0", "t": numpy_helper.from_array(SMALL, "t"), "g": inner,
        "floats": [float(one) for one in range(300)], "ints": numbers * 40, "few": [1, 2, 3], "strings": ["a", "ü" * 90],
        "tensors": [numpy_helper.from_array(SMALL)], "graphs": [inner, inner], "sparse_tensor": sparse,
        "tp": helper.make_optional_type_proto(helper.make_tensor_type_proto(1, ["n", 2])),
    }  # fmt: skip
    node = helper.make_node("All", ["x", "", "y"], ["z", ""], "name", domain="other", **attributes)
    reference = node.attribute.add(name="given", ref_attr_name="outer", type=onnx.AttributeProto.INT)
    assert reference.ref_attr_name
    typed = [
        helper.make_tensor(f"typed {kind}", kind, [3], [1, 2, 3])
        for kind in (
            TensorProto.DOUBLE,
            TensorProto.INT8,
            TensorProto.INT64,
            TensorProto.UINT64,
            TensorProto.FLOAT16,
        )
    ]
    texts = helper.make_tensor("texts", TensorProto.STRING, [2], [b"a", b"\xff"])
    outer = TensorProto(name="outer", data_type=1, dims=[1 << 33], data_location=TensorProto.EXTERNAL)
    outer.external_data.add(key="location", value="ü" * 300)
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [3, None, "n"]))
    made = model(*usual().graph.initializer)
    made.graph.node.append(node)
    made.graph.initializer.extend([*typed, texts, outer])
    made.graph.sparse_initializer.append(sparse)
    made.graph.input.append(helper.make_value_info("frames", sequence))
    made.graph.value_info.append(helper.make_tensor_value_info("scalar", TensorProto.INT64, []))
    function = helper.make_function(
        "own",
        "F",
        ["a"],
        ["b"],
        [helper.make_node("Relu", ["a"], ["b"])],
        [helper.make_opsetid("", 17)],
        ["slope"],
    )
    function.attribute_proto.add(name="alpha", f=0.5, type=onnx.AttributeProto.FLOAT)
    made.functions.append(function)
    return made


def test_every_field_is_what_protobuf_reads(tmp_path):
    made = everything()
    assert (
        onnx.ModelProto.FromString(read_file(written(tmp_path, made.SerializeToString())).SerializeToString())
        == made
    )
    again = onnx.ModelProto.FromString(read_bytes(made.SerializeToString()).SerializeToString())
    assert again == made
    made.graph.node[-1].attribute[6].ints[100] += 1
    assert again != made


def test_what_is_not_read_is_passed_over(tmp_path):
    made, data = everything(), everything().SerializeToString()
    made.doc_string = made.graph.doc_string = made.graph.node[0].doc_string = "text " * 20_000
    made.metadata_props.add(key="author", value="nobody")
    made.graph.metadata_props.add(key="k", value="v")
    made.graph.initializer[0].doc_string = "a weight"
    path = written(tmp_path, made.SerializeToString())
    assert read_file(path).SerializeToString() == read_bytes(data).SerializeToString()


def test_long_names_are_cut_as_those_of_protobuf(tmp_path):
    made = model(numpy_helper.from_array(SMALL, "w" * 5000))
    ours, theirs = read_onnx(written(tmp_path, made.SerializeToString())), read_onnx(made)
    assert [one.name for one in ours.model.graph.initializer] == [
        one.name for one in theirs.model.graph.initializer
    ]
    assert list(ours.model.graph.node[0].input) == list(theirs.model.graph.node[0].input)
    assert len(ours.model.graph.node[0].input[0]) == 256


def _varint(value: int) -> bytes:
    made = b""
    while value > 127:
        made += bytes([value & 127 | 128])
        value >>= 7
    return made + bytes([value])


def _part(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


ODD = {
    "a name that is no text": _part(7, _part(2, b"\xff\xfe")),
    "a length as a number": b"\x38\x05",
    "a group": b"\x0b\x0c",
    "field 0": b"\x02\x00",
    "a number without an end": b"\x08" + b"\xff" * 11,
    "two sizes of one dim": _part(7, _part(11, _part(2, _part(1, _part(2, _part(1, b"\x08\x05\x12\x01n")))))),
    "a type that is no 32 bits": _part(7, _part(5, b"\x10\xff\xff\xff\xff\x7f")),
    "half a number": _part(7, _part(5, _part(4, b"\0\0\0"))),
    "part of a message": _part(7, _part(1, b"\x0a\x05ab")),
    "messages in messages": b"",
}


@pytest.mark.parametrize("what", ODD)
def test_what_no_writer_writes_is_left_to_protobuf(what):
    data = ODD[what]
    if not data:
        for _ in range(60):
            data = _part(1, _part(5, _part(6, data)))
        data = _part(7, data)
    with pytest.raises(OddError):
        read_bytes(data)


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
    with pytest.raises(OddError):
        read_file(path)
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
    with pytest.raises(OddError):
        read_file(path)
    np.testing.assert_array_equal(import_onnx(path).weight("large"), LARGE)
