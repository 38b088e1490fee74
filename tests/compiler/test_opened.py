"""The cache of opened files: the next process runs the plans that are kept; what is no entry is compiled again."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from kernels_hub.compiler import compile as compile_model
from kernels_hub.compiler import load_executable, opened
from kernels_hub.compiler.engines.devices import find_device
from kernels_hub.compiler.errors import PlanError
from kernels_hub.compiler.plan import file as plan_file
from kernels_hub.compiler.reopened import OpenedExecutable
from kernels_hub.compiler.settings import Settings
from kernels_hub.compiler.specialised import SpecialisedExecutable
from kernels_hub.cxx_compiler import find_compiler
from kernels_hub.files import cache_folder
from tests.combinations import first
from tests.compiler.importers.test_onnx_variants import CHOSEN, HALVED, parse
from tests.runtime_objects import share_runtime_objects
from tests.warm_process import StartedScript

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")

WEIGHT = np.linspace(-1, 1, 64 * 32, dtype=np.float32).reshape(64, 32)


def product(weight: np.ndarray = WEIGHT, *, name: str = "product") -> onnx.ModelProto:
    return helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Tanh", ["p"], ["y"])],
            name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 32])],
            [onnx.numpy_helper.from_array(weight, "w")],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
    )


def example(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder whose "product.onnx" is there; the cache is new but for the runtime, and lies below, too."""
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(share_runtime_objects(tmp_path / "cache")))
    onnx.save(product(), tmp_path / "product.onnx")
    return tmp_path


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "opened").rglob("*.khplan"))


def open_twice(path: Path, *calls, **options) -> OpenedExecutable:
    """What another process would get, after one that made these calls."""
    first = compile_model(path, "cpu", **options)
    assert not isinstance(first, OpenedExecutable)
    for call in calls:
        first(*call)
        assert first.wait(120)
    assert first.wait(120)
    again = compile_model(path, "cpu", **options)
    assert isinstance(again, OpenedExecutable)
    return again


def test_the_next_process_runs_what_is_kept_and_imports_nothing_that_compiles(folder):
    path = folder / "product.onnx"
    first = compile_model(path, "cpu", wait=True)
    np.save(folder / "expected.npy", first(example(3)))
    code = """
        import sys, numpy as np
        from kernels_hub.compiler import compile
        run = compile(sys.argv[1] + "/product.onnx", "cpu")
        x = np.random.default_rng(3).standard_normal((3, 64)).astype(np.float32)
        assert (run(x) == np.load(sys.argv[1] + "/expected.npy")).all()
        assert (run.arrays({"x": x})["y"] == np.load(sys.argv[1] + "/expected.npy")).all()
        print(type(run).__name__, run.name, run.plan.engines, run.wait(0), *run.signature.outputs)
        parts = ("codegen", "importers.onnx", "rewrite", "schedule")
        print([one for one in sys.modules if one == "onnx" or any(f"compiler.{part}" in one for part in parts)])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["OpenedExecutable product ('cpp',) True y", "[]"]


def test_two_processes_at_once(folder):
    code = """
        import sys, numpy as np
        from kernels_hub.compiler import compile
        x = np.random.default_rng(3).standard_normal((3, 64)).astype(np.float32)
        run = compile(sys.argv[1] + "/product.onnx", "cpu")
        run(x), run.wait(), np.save(sys.argv[2], run(x))
    """
    script = textwrap.dedent(code)
    both = [StartedScript(script, str(folder), str(folder / f"{number}.npy")) for number in range(2)]
    assert [one.communicate(120).returncode for one in both] == [0, 0]
    assert len(kept(folder)) == 1 and not list((folder / "cache" / "opened").rglob("*.tmp"))
    np.testing.assert_array_equal(np.load(folder / "0.npy"), np.load(folder / "1.npy"))
    np.testing.assert_allclose(np.load(folder / "0.npy"), np.tanh(example(3) @ WEIGHT), rtol=1e-5, atol=1e-5)


def test_it_is_as_the_executable_that_was_compiled(folder, tmp_path):
    run = open_twice(folder / "product.onnx")
    expected = np.tanh(example(5) @ WEIGHT)
    for given in (example(5), torch.from_numpy(example(5))):
        np.testing.assert_allclose(run(given), expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(run(x=given), expected, rtol=1e-5, atol=1e-5)
    out = np.empty((5, 32), np.float32)
    run.execute([example(5)], outputs=[out])
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(PlanError, match="missing are \\['x'\\], unknown \\['z'\\]"):
        run(z=out)
    with pytest.raises(PlanError, match="takes 1 inputs"):
        run.execute([out, out])
    assert {step.engine for step in run.profile(example(5), repeats=1).steps} == {"cpp"}
    run.save(tmp_path / "saved.khplan")
    np.testing.assert_allclose(
        load_executable(tmp_path / "saved.khplan")(example(5)), expected, rtol=1e-5, atol=1e-5
    )


def test_shapes_that_no_plan_is_for_are_compiled_and_kept(folder):
    onnx.save(parse(HALVED), folder / "halved.onnx")
    x = {
        size: np.random.default_rng(size).standard_normal((1, 1, size)).astype(np.float32)
        for size in (8, 6, 7)
    }
    run = open_twice(folder / "halved.onnx", [x[8]])
    for size in (8, 6):
        np.testing.assert_allclose(run(x[size]), x[size] + np.repeat(x[size][..., ::2], 2, -1), rtol=1e-6)
    assert run._compiled is None
    with pytest.raises(Exception, match="do not broadcast: 7 against 8"):
        run(x[7])
    assert isinstance(run._compiled, SpecialisedExecutable)


def test_values_are_looked_at_in_each_call(folder):
    onnx.save(parse(CHOSEN), folder / "chosen.onnx")
    x = np.array([-1.0, 2.0], np.float32)
    run = open_twice(folder / "chosen.onnx", [x, np.array(3)])
    np.testing.assert_array_equal(run(x, np.array(3)), -x)
    assert run._compiled is None
    np.testing.assert_array_equal(run(x, np.array(4)), np.abs(x))
    np.testing.assert_array_equal(run(x, torch.tensor(3)), -x)
    assert run.wait(120) and len(run.variants) == 1
    assert len(kept(folder)) == 2
    again = compile_model(folder / "chosen.onnx", "cpu")
    for rate, expected in ((3, -x), (4, np.abs(x))):
        np.testing.assert_array_equal(again(x, np.array(rate)), expected)
    assert again._compiled is None


def test_options_are_part_of_the_key(folder):
    path = folder / "product.onnx"
    run = open_twice(path)
    assert run.signature.inputs["x"].shape[0] != 3
    bound = compile_model(path, "cpu", dims={"n": 3}, wait=True)
    assert not isinstance(bound, OpenedExecutable)
    assert compile_model(path, "cpu", dims={"n": 3}).signature.inputs["x"].shape == (3, 64)
    for options in (
        {"engines": ("cpp",)},
        {"exclude_engines": ("library",)},
        {"knobs": {"cpp": {"split": "never"}}},
    ):
        assert not isinstance(compile_model(path, "cpu", wait=True, **options), OpenedExecutable)
    assert len(kept(folder)) == 2


def test_another_file_at_the_same_path_is_another_model(folder):
    path = folder / "product.onnx"
    run = open_twice(path)
    onnx.save(product(-WEIGHT), path)
    other = compile_model(path, "cpu", wait=True)
    assert not isinstance(other, OpenedExecutable)
    np.testing.assert_allclose(other(example(2)), np.tanh(example(2) @ -WEIGHT), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(run(example(2)), np.tanh(example(2) @ WEIGHT), rtol=1e-5, atol=1e-5)
    with pytest.raises(PlanError, match="not the file any more that was opened"):
        run.profile(example(2))


@pytest.mark.parametrize("tick_ns", [opened._TICK_NS, 0])
def test_a_file_that_changes_while_it_is_compiled_is_not_kept(folder, monkeypatch, tick_ns):
    monkeypatch.setattr(opened, "_TICK_NS", tick_ns)
    path = folder / "product.onnx"
    of = opened.opened_file(path, Settings(find_device("cpu")), None, None, None, rewrite=True)
    run = compile_model(path, "cpu", wait=True)
    onnx.save(product(-WEIGHT), path)
    calls = opened.Calls(run.signature.inputs, {}, (0,), run.signature.outputs)
    assert not opened.keep(of, run.plan, calls, run.signature)


def test_an_old_file_is_read_for_its_digest_once_a_plan_is_kept(folder, monkeypatch):
    monkeypatch.setattr(opened, "_TICK_NS", 0)
    read, found = opened._read, []
    monkeypatch.setattr(opened, "_read", lambda path: found.append(path) or read(path))
    path = folder / "product.onnx"
    run = compile_model(path, "cpu")
    run(example(2))
    assert found == []
    assert run.wait(120)
    assert isinstance(compile_model(path, "cpu"), OpenedExecutable)
    assert found == [path, path]
    onnx.save(product(-WEIGHT), path)  # of the same size
    other = compile_model(path, "cpu", wait=True)
    assert not isinstance(other, OpenedExecutable)
    np.testing.assert_allclose(other(example(2)), np.tanh(example(2) @ -WEIGHT), rtol=1e-5, atol=1e-5)


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "cut":
        del data[len(data) // 2 :]
    elif how == "empty":
        data.clear()
    else:
        data[{"header": 60, "weights": -100}[how]] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("how",),
    first(
        1, [(how,) for how in ("weights", "others write", "version", "header", "cut", "empty", "no library")]
    ),
)
def test_what_is_no_entry_is_compiled_again(folder, monkeypatch, how):
    path = folder / "product.onnx"
    open_twice(path)
    (entry,) = kept(folder)
    if how == "others write":
        entry.chmod(0o666)
    elif how == "no library":
        for library in cache_folder("compiled").glob("product*.so"):
            library.unlink()
    elif how == "version":
        monkeypatch.setattr(plan_file, "versions", lambda: {"kernels_hub": "0", "torch": torch.__version__})
    else:
        damage(entry, how)
    run = compile_model(path, "cpu")
    np.testing.assert_allclose(run(example(4)), np.tanh(example(4) @ WEIGHT), rtol=1e-5, atol=1e-5)
    assert run.wait(120)
    assert not isinstance(run, OpenedExecutable) or run._compiled is not None
    monkeypatch.undo()
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(folder / "cache"))
    if how != "version":
        again = compile_model(path, "cpu")
        again(example(4))
        assert isinstance(again, OpenedExecutable) and again._compiled is None


def test_an_entry_is_no_file_to_load(folder):
    open_twice(folder / "product.onnx")
    with pytest.raises(PlanError, match="opened plan file"):
        load_executable(kept(folder)[0])


def test_no_compiler_no_entry(folder, monkeypatch):
    open_twice(folder / "product.onnx")
    monkeypatch.setenv("KERNELS_HUB_CXX", "none")
    run = compile_model(folder / "product.onnx", "cpu")
    assert run.wait(120)  # else it goes on compiling beside the tests that follow, and finds a compiler there
    assert run.plan.engines == ("library",)


def test_weights_in_other_files_are_not_kept(folder):
    path = folder / "external.onnx"
    onnx.save(product(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    compile_model(path, "cpu", wait=True)
    assert not kept(folder)


def test_what_was_used_longest_ago_makes_room(folder, monkeypatch):
    paths = [folder / f"{number}.onnx" for number in range(3)]
    for number, path in enumerate(paths):
        onnx.save(product(WEIGHT * (number + 1)), path)
        compile_model(path, "cpu", wait=True)
        os.utime(kept(folder)[0], (1, 1)) if number == 0 else None
    oldest = min(kept(folder), key=lambda one: one.stat().st_mtime)
    size = oldest.stat().st_size
    monkeypatch.setattr(opened, "MOST_BYTES", 4 * size)
    onnx.save(product(WEIGHT * 4), folder / "3.onnx")
    compile_model(folder / "3.onnx", "cpu", wait=True)
    assert len(kept(folder)) == 4
    onnx.save(product(WEIGHT * 5), folder / "4.onnx")
    compile_model(folder / "4.onnx", "cpu", wait=True)
    assert len(kept(folder)) == 4 and not oldest.exists()
    monkeypatch.setattr(opened, "MOST_BYTES", size)
    onnx.save(product(WEIGHT * 6), folder / "5.onnx")
    before = kept(folder)
    compile_model(folder / "5.onnx", "cpu", wait=True)
    assert kept(folder) == before


def test_what_another_engine_serialized(folder):
    text = """
        g (float[n, 8] x) => (int64[2, k] places, float[n, 8] y) {
            y = Tanh(x)
            places = NonZero(y)
        }
    """
    onnx.save(parse(text), folder / "places.onnx")
    x = np.zeros((2, 8), np.float32)
    x[1, 3] = 1
    run = open_twice(folder / "places.onnx", [x])
    places, y = run(x)
    np.testing.assert_array_equal(places, [[1], [3]])
    np.testing.assert_allclose(y, np.tanh(x), rtol=1e-6)
    assert "library" in run.plan.engines and run._compiled is None
