"""import_onnx: structure, symbolic dims, weights, functions, control flow; and every kind of bad file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from kernels_hub.compiler.errors import DimError, ImportFailure, ShapeError
from kernels_hub.compiler.importers.onnx import OnnxImportError, check_onnx, import_onnx
from kernels_hub.compiler.ir.dims import symbol
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.verify import verify


def parse(text: str, opset: int = 18, extra: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}{extra}]>\n{text}')


def ops(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.live()]


def agrees(model: onnx.ModelProto, *inputs: np.ndarray, **options: Any) -> Graph:
    """The graph, after it gave what ONNX's reference gives."""
    graph = verify(import_onnx(model, **options))
    feeds = dict(zip([one.name for one in model.graph.input], inputs, strict=True))
    wanted = ReferenceEvaluator(model).run(None, feeds)
    got = evaluate(graph, {name: feeds[name] for name in graph.inputs})
    for mine, theirs in zip(got.values(), wanted, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    return graph


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_agrees_rejects_wrong_numbers(monkeypatch: pytest.MonkeyPatch):
    model = parse("g (float[3] x) => (float[3] y) { y = Sin(x) }")
    agrees(model, random(3))
    monkeypatch.setattr(ReferenceEvaluator, "run", lambda *_: [np.zeros(3, np.float32)])
    with pytest.raises(AssertionError):
        agrees(model, random(3))


# -- shapes


HEADS = """
g (float[batch, length, 12] x) => (float[a, b] y) {
    shape = Shape(x)
    zero = Constant<value_int = 0>()
    one = Constant<value_int = 1>()
    first = Constant<value_ints = [0]>()
    batch = Gather(shape, zero)
    length = Gather(shape, one)
    b = Unsqueeze(batch, first)
    l = Unsqueeze(length, first)
    heads = Constant<value_ints = [3]>()
    rest = Constant<value_ints = [-1]>()
    wanted = Concat<axis = 0>(b, l, heads, rest)
    split = Reshape(x, wanted)
    turned = Transpose<perm = [0, 2, 1, 3]>(split)
    two = Constant<value_int = 2>()
    half = Div(length, two)
    h = Unsqueeze(half, first)
    axis = Constant<value_ints = [2]>()
    y = Slice(turned, first, h, axis)
}
"""


def without_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    for one in model.graph.output:
        one.type.tensor_type.ClearField("shape")
    return model


def test_shape_computations_become_symbolic_dims():
    graph = verify(import_onnx(without_shapes(parse(HEADS))))
    batch, length = symbol("batch", 1), symbol("length", 1)
    assert graph.outputs["y"].shape == (batch, 3, length // 2, 4)
    assert set(ops(graph)) == {"input", "reshape", "permute", "slice"}
    for b, n in ((2, 4), (1, 7)):
        x = random(b, n, 12)
        wanted = x.reshape(b, n, 3, 4).transpose(0, 2, 1, 3)[:, :, : n // 2]
        np.testing.assert_array_equal(evaluate(graph, [x])["y"], wanted)


def test_named_axes_are_bound():
    graph = import_onnx(without_shapes(parse(HEADS)), dims={"batch": 2})
    assert graph.outputs["y"].shape[:2] == (2, 3)
    assert list(graph.symbols) == ["length"]
    graph = import_onnx(without_shapes(parse(HEADS)), dims={"batch": 2, "length": 8})
    assert graph.outputs["y"].shape == (2, 3, 4, 4)
    graph = import_onnx(without_shapes(parse(HEADS)), dims={"length": (4, 64)})
    assert graph.symbols["length"] == symbol("length", 4, 64)
    with pytest.raises(ImportFailure, match="dims binds 'bach'; the named axes of g are 'batch', 'length'"):
        import_onnx(parse(HEADS), dims={"bach": 2})


def test_shapes_of_inputs_are_forced():
    graph = import_onnx(without_shapes(parse(HEADS)), shapes={"x": (5, "n", 12)})
    assert graph.inputs["x"].shape == (5, symbol("n"), 12)
    with pytest.raises(ImportFailure, match="shapes names the input 'z'; g has 'x'"):
        import_onnx(parse(HEADS), shapes={"z": (1,)})


def test_a_shape_that_is_an_input_is_named_and_can_be_fixed():
    model = without_shapes(
        parse("g (float[6] x, int64[2] shape) => (float[a, b] y) { y = Reshape(x, shape) }")
    )
    with pytest.raises(
        OnnxImportError, match=r"depends on 'shape': give the value \(values={'shape': …}\)"
    ) as error:
        import_onnx(model)
    assert error.value.wanted == ("shape",)
    graph = import_onnx(model, values={"shape": np.array([2, 3])})
    assert (list(graph.inputs), graph.outputs["y"].shape) == (["x"], (2, 3))
    with pytest.raises(OnnxImportError, match="given for input 'shape' is float64, declared is int64"):
        import_onnx(model, values={"shape": np.array([2.0, 3.0])})


def test_symbolic_range_and_expand():
    model = without_shapes(
        parse("""
        g (float[n, 4] x) => (float[m] y) {
            shape = Shape(x)
            zero = Constant<value_int = 0>()
            one = Constant<value_int = 1>()
            n = Gather(shape, zero)
            places = Range(zero, n, one)
            f = Cast<to = 1>(places)
            first = Constant<value_ints = [1]>()
            column = Unsqueeze(f, first)
            y = Add(x, column)
        }""")
    )
    graph = import_onnx(model)
    assert graph.outputs["y"].shape == (symbol("n", 1), 4)
    x = random(3, 4)
    np.testing.assert_array_equal(evaluate(graph, [x])["y"], x + np.arange(3, dtype=np.float32)[:, None])


def test_data_dependent_sizes_are_symbols():
    model = without_shapes(parse("g (float[n] x) => (int64[k, m] y) { y = NonZero(x) }"))
    graph = verify(import_onnx(model))
    for x in ([0, 1, 2], [0, 0, 0], [1, 1, 1]):
        x = np.array(x, np.float32)
        np.testing.assert_array_equal(evaluate(graph, [x])["y"], np.array(np.nonzero(x)))


def test_scalars_and_empty_tensors():
    agrees(parse("g (float x) => (float y) { y = Exp(x) }"), np.float32(0.5))
    model = parse(
        "g (float[0, 3] x) => (float[0, 3] y, float[3] s) { y = Relu(x) \n s = ReduceSum<keepdims = 0>(x, axes) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axes"))
    agrees(model, np.zeros((0, 3), np.float32))


POSITIONS = """
g (float[batch, length, 4] x, float[1, 16, 4] table) => (float[a, b, c] y) {
    shape = Shape<start = 1, end = 2>(x)
    zero = Constant<value_ints = [0]>()
    one = Constant<value_ints = [1]>()
    part = Slice(table, zero, shape, one)
    y = Add(x, part)
}"""


def test_an_axis_that_slices_a_table_is_at_most_as_long():
    model = without_shapes(parse(POSITIONS))
    graph = verify(import_onnx(model))
    assert graph.symbols["length"] == symbol("length", 1, 16)
    x, table = random(2, 5, 4), random(1, 16, 4)
    np.testing.assert_array_equal(evaluate(graph, [x, table])["y"], x + table[:, :5])
    with pytest.raises(DimError, match="length = 17 contradicts"):
        evaluate(graph, [random(2, 17, 4), table])
    assert import_onnx(model, dims={"length": (1, 8)}).symbols["length"] == symbol("length", 1, 8)
    cut = parse(POSITIONS.replace("y = Add(x, part)", "y = Identity(part)"))
    assert import_onnx(without_shapes(cut)).symbols["length"] == symbol("length", 1), "only where it must be"


# -- versions


def test_the_version_of_an_op_is_respected():
    text = "g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Softmax(x) }"
    x = random(2, 3, 4)
    old, new = (evaluate(import_onnx(parse(text, opset)), [x])["y"] for opset in (12, 13))
    np.testing.assert_allclose(old.reshape(2, -1).sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(new.sum(-1), 1, rtol=1e-5)
    text = "g (float[5] x) => (float[2] y) { y = Slice<starts = [1], ends = [3]>(x) }"
    np.testing.assert_array_equal(
        evaluate(import_onnx(parse(text, 9)), [np.arange(5, dtype=np.float32)])["y"], [1, 2]
    )
    with pytest.raises(OnnxImportError, match="Slice.*opset 13.*input 1 .the starts. is missing"):
        import_onnx(parse(text, 13))


def test_an_opset_that_is_not_known():
    with pytest.raises(
        ImportFailure, match=f"of opset 99; 1 to {onnx.defs.onnx_opset_version()}, the newest"
    ):
        import_onnx(parse("g (float[1] x) => (float[1] y) { y = Abs(x) }", 99))


# -- functions


def test_functions_of_the_model_are_written_out():
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18, "own" : 1]>
        g (float[3] x) => (float[3] y) { y = own.twice <alpha = 0.5> (x) }
        <domain: "own", opset_import: ["" : 18, "own" : 1]>
        twice <alpha> (a) => (c) { b = own.once <alpha: float = @alpha> (a) \n c = own.once <alpha: float = @alpha> (b) }
        <domain: "own", opset_import: ["" : 18]>
        once <alpha> (a) => (b) { b = LeakyRelu <alpha: float = @alpha> (a) }
        """)
    x = np.array([-4, 0, 4], np.float32)
    graph = import_onnx(model)
    np.testing.assert_array_equal(evaluate(graph, [x])["y"], [-1, 0, 4])
    assert "-> y/-> c/-> b" in {node.origin for node in graph.nodes}


def test_a_function_that_contains_itself():
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18, "own" : 1]>
        g (float[3] x) => (float[3] y) { y = own.f (x) }
        <domain: "own", opset_import: ["" : 18, "own" : 1]>
        f (a) => (b) { b = own.f (a) }
        """)
    with pytest.raises(OnnxImportError, match="one contains itself"):
        import_onnx(model)


def test_ops_without_an_importer_are_expanded_by_onnx_itself():
    from kernels_hub.compiler.importers.onnx_node import importer_of

    assert importer_of("", "CenterCropPad", 18) is None
    model = parse("""g (float[1, h, 6] x) => (float[1, 4, 4] y) {
        size = Constant<value_ints = [4, 4]>()
        y = CenterCropPad<axes = [1, 2]>(x, size)
    }""")
    for height in (3, 4, 7):
        agrees(model, random(1, height, 6), dims={"h": height})


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("aligned", [0, 1])
def test_affine_grid_of_any_batch(batch: int, aligned: int):
    model = parse(
        f"""g (float[{batch}, 2, 3] theta) => (float[{batch}, 4, 5, 2] grid) {{
        size = Constant<value_ints = [{batch}, 1, 4, 5]>()
        grid = AffineGrid<align_corners = {aligned}>(theta, size)
    }}""",
        20,
    )
    agrees(model, random(batch, 2, 3))


# -- control flow


BRANCHES = """
g (float[3] x, bool c) => (float[3] y) {
    two = Constant<value_float = 2.0>()
    y = If (c) <
        then_branch = a () => (float[3] p) { p = Mul(x, two) },
        else_branch = b () => (float[3] q) { q = Sub(x, two) }
    >
}"""


def test_if_becomes_an_op_or_one_branch():
    x = random(3)
    for c in (True, False):
        graph = agrees(parse(BRANCHES), x, np.array(c))
        assert "if" in ops(graph)
        graph = agrees(parse(BRANCHES), x, np.array(c), values={"c": np.array(c)})
        assert ops(graph).count("if") == 0
        assert ("mul" in ops(graph)) == c


SCAN = """
g (float[2] first, float[n, 2] run) => (float[2] last, float[n, 2] sums) {
    last, sums = Scan <num_scan_inputs = 1,
        body = b (float[2] s, float[2] x) => (float[2] t, float[2] shown) { t = Add(s, x) \n shown = Mul(t, first) }
    > (first, run)
}"""


@pytest.mark.parametrize("length", [1, 5, 50])
def test_scans(length: int):
    graph = agrees(parse(SCAN), random(2), random(length, 2))
    assert "scan" in ops(graph)
    graph = agrees(parse(SCAN), random(2), random(length, 2), dims={"n": length})
    assert ("scan" in ops(graph)) == (length > 32)


def test_recurrent_over_a_long_and_a_symbolic_sequence():
    model = parse(
        "g (float[n, 2, 4] x, float[1, 12, 4] w, float[1, 12, 3] r) => (float[n, 1, 2, 3] y) { y = LSTM<hidden_size = 3>(x, w, r) }"
    )
    w, r = random(1, 12, 4), random(1, 12, 3)
    for n in (2, 20):
        graph = agrees(model, random(n, 2, 4), w, r)
        assert "recurrent" in ops(graph)
        agrees(model, random(n, 2, 4), w, r, dims={"n": n})


# -- weights


def weighted(array: np.ndarray, name: str = "w") -> onnx.ModelProto:
    model = parse("g (float[2, 64] x) => (float[2, 32] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def test_weights_are_parameters_and_not_copied():
    array = random(64, 32)
    model = weighted(array)
    graph = import_onnx(model)
    assert list(graph.parameters) == ["w"]
    weight = graph.weight("w")
    assert not weight.flags.owndata
    assert weight.base is not None
    np.testing.assert_array_equal(weight, array)
    agrees(model, random(2, 64))


def saved(tmp_path: Path, location: str = "weights.bin") -> Path:
    """A model whose weight lies at 4096 of a file beside it."""
    model = weighted(random(64, 32))
    tensor = model.graph.initializer[0]
    data = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "4096"), ("length", str(len(data)))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(bytes(4096) + data)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def test_external_data_are_mapped(tmp_path: Path):
    graph = import_onnx(saved(tmp_path))
    weight = graph.weight("w")
    base: Any = weight
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    np.testing.assert_array_equal(weight, random(64, 32))


@pytest.mark.parametrize(
    "location",
    [
        "../outside.bin",
        "/etc/passwd",
        "a/../../outside.bin",
        "C:\\outside.bin",
        "link.bin",
        "..\\outside.bin",
        "",
    ],
)
def test_external_data_stay_in_the_models_folder(tmp_path: Path, location: str):
    path = saved(tmp_path, location)
    (tmp_path / "outside.bin").write_bytes(bytes(20000))
    (path.parent / "link.bin").symlink_to(tmp_path / "outside.bin")
    with pytest.raises(OnnxImportError, match="'w': its external data .* lie outside of the model's folder"):
        import_onnx(path)


def test_external_data_that_are_missing_or_cut_off(tmp_path: Path):
    path = saved(tmp_path)
    weights = path.parent / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(
        OnnxImportError, match=r"'w' lies at 4096\.\.12288 of 'weights\.bin', which has 12287 bytes"
    ):
        import_onnx(path)
    weights.unlink()
    with pytest.raises(OnnxImportError, match=r"its external data 'weights\.bin' are missing"):
        import_onnx(path)
    with pytest.raises(OnnxImportError, match="the model is not a file: give its path"):
        import_onnx(path.read_bytes())
    assert check_onnx(path) == ()
    first, again, other = (import_onnx(path, random_weights=seed).weight("w") for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
    assert 0.5 < first.std() * np.sqrt(32) < 1.5


def test_nan_weights_are_taken_as_they_are():
    array = random(64, 32)
    array[3, 4] = np.nan
    assert np.isnan(evaluate(import_onnx(weighted(array)), [random(2, 64)])["y"][:, 4]).all()


def test_packed_weights():
    from kernels_hub.compiler.importers.external_data import unpacked
    from kernels_hub.compiler.ir import types

    packed = np.array([0x8F, 0x07], np.uint8)
    np.testing.assert_array_equal(unpacked(packed, types.INT4, (3,)).astype(int), [-1, -8, 7])
    np.testing.assert_array_equal(unpacked(packed, types.UINT4, (3,)).astype(int), [15, 8, 7])
    np.testing.assert_array_equal(unpacked(packed, types.INT2, (5,)).astype(int), [-1, -1, 0, -2, -1])


# -- everything wrong, at once


def test_everything_unsupported_is_listed_at_once():
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18, "com.example" : 1]>
        g (float[2, 3] x, string[1] s) => (float[2, 3] y) {
            a = Relu(x)
            b = com.example.Magic(a)
            c = Add(b, a)
            d = StringNormalizer(s)
            e = Unknown(c)
            f = nowhere.Thing(x)
            h = MatMul(x, x)
            y = Add(c, e)
        }""")
    found = {one.op: one for one in check_onnx(model)}
    assert list(found) == ["input", "Magic", "StringNormalizer", "Unknown", "Thing", "MatMul"]
    magic = found["Magic"]
    assert (magic.domain, magic.opset, magic.inputs) == ("com.example", 1, ("float32[2, 3]",))
    assert found["StringNormalizer"].reason == "strings have no place in the IR"
    assert (found["Unknown"].inputs, found["Unknown"].opset) == (("?",), 18)
    assert "'nowhere' is not among those that the model imports" in found["Thing"].reason
    assert "dim 1 of operand 0 [2, 3] is 3, but dim 0 of operand 1 [2, 3] is 2" in found["MatMul"].reason
    with pytest.raises(OnnxImportError, match="6 nodes cannot be imported") as error:
        import_onnx(model)
    assert all(str(one) in str(error.value) for one in found.values())


def test_what_is_no_model(tmp_path: Path):
    path = tmp_path / "m.onnx"
    for data in (b"", b"not a model at all", bytes(range(256))):
        path.write_bytes(data)
        with pytest.raises(ImportFailure, match=r"m\.onnx is no ONNX model|m is no ONNX model"):
            import_onnx(path)
    whole = weighted(random(64, 32)).SerializeToString()
    for cut in (len(whole) // 2, len(whole) - 1, 100):
        path.write_bytes(whole[:cut])
        with pytest.raises(ImportFailure):
            import_onnx(path)
    with pytest.raises(FileNotFoundError):
        import_onnx(tmp_path / "missing.onnx")


def test_cycles_and_names():
    model = parse("g (float[1] x) => (float[1] y) { a = Add(x, b) \n b = Relu(a) \n y = Abs(b) }")
    with pytest.raises(ImportFailure, match="a cycle of nodes: -> a, -> b"):
        import_onnx(model)
    model = parse("g (float[1] x) => (float[1] y) { y = Abs(nothing) }")
    with pytest.raises(OnnxImportError, match=r"-> y: Abs\(\?\), opset 18: nothing gives 'nothing'"):
        import_onnx(model)
    model = parse("g (float[1] x) => (float[1] y) { y = Abs(x) \n y = Neg(x) }")
    with pytest.raises(ImportFailure, match="node -> y gives 'y', which there is already"):
        import_onnx(model)
    model = parse("g (float[1] x) => (float[1] z) { y = Abs(x) }")
    with pytest.raises(OnnxImportError, match="nothing gives 'z'"):
        import_onnx(model)


def test_nodes_in_any_order():
    model = parse("g (float[3] x) => (float[3] y) { a = Sin(x) \n y = Exp(a) }")
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes[::-1])
    assert ops(import_onnx(model)) == ["input", "sin", "exp"]


def test_declarations_that_contradict_what_is(caplog: pytest.LogCaptureFixture):
    import_onnx(parse("g (float[3] x) => (float[4] y) { y = Abs(x) }"))  # the graph is right
    assert "'y' is declared with shape [4], but it is float32[3] (made by -> y)" in caplog.text
    model = parse("g (float[3] x) => (float[3] y) { y = Abs(x) }")
    model.graph.value_info.append(helper.make_tensor_value_info("gone", TensorProto.FLOAT, [3]))
    import_onnx(model)
    with pytest.raises(OnnxImportError, match=r"declared as int32, but it is float32\[3\]"):
        import_onnx(parse("g (float[3] x) => (int32[3] y) { y = Abs(x) }"))
    with pytest.raises(OnnxImportError, match="do not broadcast: 3 against 4"):
        import_onnx(parse("g (float[3] x, float[4] z) => (float[4] y) { y = Add(x, z) }"))
    with pytest.raises(OnnxImportError, match="operand 0 is float32 and operand 1 is float64"):
        import_onnx(parse("g (float[3] x, double[3] z) => (float[3] y) { y = Add(x, z) }"))


def test_an_axis_in_two_sizes():
    graph = import_onnx(parse("g (float[n] x, float[n] z) => (float[n] y) { y = Add(x, z) }"))
    with pytest.raises(ShapeError):
        evaluate(graph, [np.ones(3, np.float32), np.ones(4, np.float32)])


def test_a_tensor_of_another_size_than_its_shape():
    model = weighted(random(64, 32))
    model.graph.initializer[0].raw_data = bytes(100)
    with pytest.raises(
        OnnxImportError, match=r"'w' is float32\[64, 32\] by its type, its data are of another size"
    ):
        import_onnx(model)


def test_many_nodes_deep_and_wide():
    nodes = [helper.make_node("Add", [f"v{i}", f"v{i // 2}"], [f"v{i + 1}"]) for i in range(5000)]
    model = helper.make_model(
        helper.make_graph(
            nodes[::-1], "deep", [helper.make_tensor_value_info("v0", TensorProto.FLOAT, [2])],
            [helper.make_tensor_value_info("v5000", TensorProto.FLOAT, [2])],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
    )  # fmt: skip
    assert len(import_onnx(model).nodes) == 5001
