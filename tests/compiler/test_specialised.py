"""`compile` of ONNX models that only a call's sizes and values make sense of."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

from kernels_hub.compiler import compile as compile_model
from kernels_hub.compiler.errors import CompilerError, ImportFailure, PlanError, ShapeError
from kernels_hub.compiler.executable import load_executable
from kernels_hub.compiler.specialised import SpecialisedExecutable
from tests.compiler.importers.test_onnx_variants import CHOSEN, HALVED, parse


def halved(x: np.ndarray) -> np.ndarray:
    return x + np.repeat(x[..., ::2], 2, -1)


def compiled(model: onnx.ModelProto, **options) -> SpecialisedExecutable:
    run = compile_model(model, "cpu", engines=("library",), **options)
    assert isinstance(run, SpecialisedExecutable)
    return run


def test_a_call_compiles_and_others_like_it_do_not():
    run = compiled(parse(HALVED))
    with pytest.raises(PlanError, match="call it first"):
        _ = run.plan
    for size in (8, 2, 100, 8):
        x = np.random.default_rng(size).standard_normal((1, 1, size)).astype(np.float32)
        np.testing.assert_array_equal(run(x), halved(x))
        np.testing.assert_array_equal(run(torch.from_numpy(x)).numpy(), halved(x))
        np.testing.assert_array_equal(run.arrays({"x": x})["y"], halved(x))
    assert len(run.variants) == 1
    with pytest.raises(ImportFailure, match="do not broadcast"):
        run(np.zeros((1, 1, 7), np.float32))
    assert len(run.variants) == 1


def test_the_first_call_may_be_one_for_arrays():
    run = compiled(parse(HALVED))
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 8)
    assert isinstance(run.arrays([torch.from_numpy(x)])["y"], np.ndarray)
    np.testing.assert_array_equal(run.arrays({"x": x})["y"], halved(x))


def test_values_are_looked_at_in_each_call():
    run = compiled(parse(CHOSEN))
    x = np.array([-1.0, 2.0], np.float32)
    for rate, expected in ((3, -x), (4, np.abs(x)), (3, -x), (5, np.abs(x))):
        np.testing.assert_array_equal(run(x, np.array(rate)), expected)
        np.testing.assert_array_equal(run(x=x, rate=torch.tensor(rate)), expected)
    assert len(run.variants) == 3
    with pytest.raises(PlanError, match="each for some calls"):
        run.save("never")


def test_no_more_variants_than_asked_for():
    run = compiled(parse(CHOSEN), max_shapes=2)
    x = np.ones(2, np.float32)
    for rate in range(5):
        run(x, np.array(rate))
    assert (len(run.variants), run.evicted) == (2, 3)


def test_arguments_are_checked():
    run = compiled(parse(CHOSEN))
    x = np.ones(2, np.float32)
    with pytest.raises(PlanError, match="missing are \\['rate'\\]"):
        run(x=x)
    with pytest.raises(PlanError, match="takes 2 inputs"):
        run.execute([x])
    with pytest.raises(ShapeError, match="input 'x'"):
        run(np.ones((2, 2), np.float32), np.array(3))


def test_the_only_variant_is_saved(tmp_path):
    run = compiled(parse(HALVED))
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
    run(x)
    run.save(tmp_path / "model.khplan")
    np.testing.assert_array_equal(load_executable(tmp_path / "model.khplan")(x), halved(x))


def test_what_no_call_would_mend_raises_at_once():
    with pytest.raises(ImportFailure, match="no importer for this op"):
        compile_model(parse("g (float[n] x) => (float[n] y) { y = Nothing(x) }"), "cpu")
    with pytest.raises(ImportFailure, match="do not broadcast: 3 against 4"):
        compile_model(parse("g (float[n, 3] x, float[4] z) => (float[n, 4] y) { y = Add(x, z) }"), "cpu")


def test_a_model_for_all_sizes_stays_one_plan():
    run = compile_model(parse("g (float[n] x) => (float[n] y) { y = Neg(x) }"), "cpu", engines=("library",))
    assert not isinstance(run, SpecialisedExecutable)


def test_shapes_and_values_that_are_given():
    x = np.array([-1.0, 2.0, -3.0], np.float32)
    run = compile_model(parse(CHOSEN), "cpu", engines=("library",), values={"rate": 3}, shapes={"x": (3,)})
    np.testing.assert_array_equal(run(x), -x)
    assert {name: one.shape for name, one in run.signature.inputs.items()} == {"x": (3,)}
    with pytest.raises(PlanError, match="got 2 values"):
        compile_model(parse(CHOSEN), "cpu", engines=("library",), values={"rate": 3})(x, np.array(3))
    with pytest.raises(ImportFailure, match="the value given for input 'rate' is float64"):
        compile_model(parse(CHOSEN), "cpu", values={"rate": 3.5})


def test_axes_of_given_shapes_are_found_at_calls():
    run = compiled(parse(HALVED), shapes={"x": (1, 1, "width")})
    for size in (8, 2, 6):
        x = np.random.default_rng(size).standard_normal((1, 1, size)).astype(np.float32)
        np.testing.assert_array_equal(run(x), halved(x))
    assert len(run.variants) == 1
    fixed = compile_model(parse(HALVED), "cpu", engines=("library",), shapes={"x": (1, 1, 6)})
    assert not isinstance(fixed, SpecialisedExecutable)
    np.testing.assert_array_equal(fixed(x), halved(x))


def test_shapes_and_values_are_for_onnx_files():
    with pytest.raises(CompilerError, match="values are of an ONNX file's inputs"):
        compile_model((torch.nn.ReLU(), (torch.ones(2),)), "cpu", values={"input": 1})


def test_an_open_axis_that_is_squeezed_is_1():
    """ONNX Runtime takes such a model; it was refused, though its calls have one image."""
    text = "g (float[n, m] x) => (float[k] y) { axis = Constant<value_ints = [0]>() z = Neg(x) y = Squeeze(z, axis) }"
    run = compiled(parse(text))
    for size in (3, 5, 1):
        x = np.random.default_rng(size).standard_normal((1, size)).astype(np.float32)
        np.testing.assert_array_equal(run(x), -x[0])
    assert len(run.variants) == 1, "one for all sizes of the other axis"
    with pytest.raises(CompilerError, match="not all 1"):
        run(np.ones((2, 3), np.float32))


def test_an_open_axis_may_be_empty():
    """A graph without edges, say: it was refused, as sizes of open axes are 1 at least for a plan of all sizes."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    model = parse(
        "g (float[n, 3] x, float[m, 3] z) => (float[k, 3] y, float[l] s) { y = Concat<axis = 0>(x, z)"
        " a = Constant<value_ints = [0]>() t = ReduceSum<keepdims = 0>(x, a) s = Exp(t) }"
    )
    model.ir_version, model.opset_import[0].version = 9, 17
    session = onnxruntime.InferenceSession(model.SerializeToString())
    run = compile_model(model, "cpu", wait=True)
    for n, m in ((2, 3), (0, 3), (0, 2), (4, 0), (0, 0), (1, 5)):
        given = {"x": np.ones((n, 3), np.float32), "z": np.full((m, 3), 2, np.float32)}
        for found, expected in zip(run(*given.values()), session.run(None, given), strict=True):
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-6)
