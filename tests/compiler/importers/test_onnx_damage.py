"""Damaged files: whatever bytes are changed, there is a graph or one of the compiler's own errors."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from kernels_hub.compiler.errors import CompilerError, ImportFailure
from kernels_hub.compiler.importers.onnx import OnnxImportError, import_onnx

MODELS = {
    "convolution": """g (float[n, 3, 8, 8] x, float[4, 3, 3, 3] w, float[4] b) => (float[n, 4, 4, 4] y) {
        c = Conv<pads = [1, 1, 1, 1], strides = [2, 2], group = 1>(x, w, b)
        y = LRN<size = 3>(c) }""",
    "recurrent": """g (float[n, 2, 4] x, float[1, 12, 4] w, float[1, 12, 3] r) => (float[n, 1, 2, 3] y) {
        y = LSTM<hidden_size = 3, direction = "forward">(x, w, r) }""",
    "shapes": """g (float[a, 6] x) => (float[a, 3, 2] y) {
        s = Constant<value_ints = [0, 3, 2]>()
        r = Reshape(x, s)
        p, q = Split<axis = 1, num_outputs = 2>(r)
        y = Concat<axis = 1>(p, q) }""",
    "einsum": 'g (float[2, 3] x, float[3, 4] z) => (float[4, 2] y) { y = Einsum<equation = "ij,jk->ki">(x, z) }',
    "loop": """g (float[3] x) => (float[3] y) {
        n = Constant<value_int = 3>()
        t = Constant<value = bool {1}>()
        y = Loop (n, t, x) < body = b (int64 i, bool c, float[3] s) => (bool d, float[3] u) {
            d = Identity(c)
            u = Add(s, x)
        } > }""",
    "function": """g (float[2, 3] x, float[3] w) => (float[2, 3] y) { y = RMSNormalization<axis = -1>(x, w) }""",
}


@pytest.mark.parametrize("name", MODELS)
def test_changed_bytes(name: str):
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 23]> {MODELS[name]}')
    data = model.SerializeToString()
    import_onnx(data)
    source = random.Random(name)
    refused = 0
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(source.randint(1, 3)):
            damaged[source.randrange(len(damaged))] = source.choice(
                [0, 1, 2, 127, 255, source.randrange(256)]
            )
        try:
            import_onnx(bytes(damaged))
        except CompilerError:
            refused += 1
    assert refused > 100


def test_attributes_of_wrong_kinds_are_findings_with_their_node():
    node = helper.make_node("DepthToSpace", ["x"], ["y"], name="wide", blocksize="two")
    x = helper.make_tensor_value_info("x", 1, [1, 4, 2, 2])
    y = helper.make_tensor_value_info("y", 1, None)
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 18)]
    )
    with pytest.raises(
        OnnxImportError, match=r"wide: DepthToSpace\(.*\), opset 18: its attributes or operands"
    ) as error:
        import_onnx(model)
    assert isinstance(error.value.__cause__, TypeError)


def test_names_that_are_no_text():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (float[1] xxxx) => (float[1] y) { y = Abs(xxxx) }'
    )
    data = model.SerializeToString().replace(b"xxxx", b"\xff\xfe\xfd\xfc")
    with pytest.raises(ImportFailure, match="is damaged|is no ONNX model"):
        import_onnx(data)


def test_a_negative_dim():
    tensor = numpy_helper.from_array(np.ones(3, np.float32), "w")
    tensor.dims[0] = -3
    y = helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph([helper.make_node("Abs", ["w"], ["y"])], "g", [], [y], [tensor])
    with pytest.raises(OnnxImportError, match=r"'w' has the shape \[-3\]"):
        import_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
