"""Programs of torch.export.save from disk: what they compute, and that nothing in a file runs."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from kernels_hub import get_local_kernel
from kernels_hub.cli.app import app
from kernels_hub.compiler import compile, emit_layer
from kernels_hub.compiler.errors import CompilerError, ImportFailure
from kernels_hub.compiler.importers.torch_file import read_program

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export's own

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


class Model(nn.Module):
    """A branch, a buffer, tied weights, a constant, sizes that change, and nested arguments and results."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.linear.weight
        self.register_buffer("shift", torch.arange(8.0)[2:6])

    def forward(self, x, pair, *, scale=2.0, mask=None):
        result = torch.cond(x.sum() > 0, lambda x: self.linear(x).relu(), lambda x: x - self.shift, (x,))
        result = self.tied(result) * scale + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return {"result": result.reshape(-1, 2)[: 2 * x.shape[0] - 1], "sum": (pair["a"] + pair["b"], None)}


def arguments(rows: int, sign: int = 1) -> tuple[tuple[Any, ...], dict[str, Any]]:
    pair = {"a": torch.rand(2), "b": torch.rand(2)}
    return (sign * torch.rand(rows, 4), pair), {"scale": 2.0, "mask": None}


def export(model: nn.Module) -> torch.export.ExportedProgram:
    args, kwargs = arguments(3)
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = {"x": {0: batch}, "pair": {"a": None, "b": None}, "scale": None, "mask": None}
    return torch.export.export(model, args, kwargs, dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture(scope="module")
def saved(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model.pt2"
    torch.export.save(export(model), path)
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of one op, which the next tests write otherwise."""
    path = tmp_path_factory.mktemp("plain") / "plain.pt2"
    batch = torch.export.Dim("batch", min=2, max=64)
    torch.export.save(
        torch.export.export(nn.Linear(4, 2), (torch.ones(3, 4),), dynamic_shapes=[{0: batch}]), path
    )
    return path


def written(source: Path, target: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A file with other records; `change` gets them without the archive's name."""
    with zipfile.ZipFile(source) as archive:
        records = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    change(records)
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in records.items():
            archive.writestr(f"{target.stem}/{name}", data)
    return target


def in_json(record: str, change: Callable[[Any], None]) -> Callable[[dict[str, bytes]], None]:
    def changed(records: dict[str, bytes]) -> None:
        document = json.loads(records[record])
        change(document)
        records[record] = json.dumps(document).encode()

    return changed


def test_it_computes_what_the_module_does(model, saved):
    run = compile(saved, "cpu", engines=("library",))
    for rows, sign in ((2, 1), (5, -1)):
        args, kwargs = arguments(rows, sign)
        with torch.no_grad():
            expected = model(*args, **kwargs)
        found = run(*args, **kwargs)
        torch.testing.assert_close(found["result"], expected["result"])
        torch.testing.assert_close(found["sum"][0], expected["sum"][0])
        assert found.keys() == expected.keys()
        assert found["sum"][1] is None
    with pytest.raises(CompilerError, match="scale"):
        run(*args, scale=3.0, mask=None)
    with pytest.raises(CompilerError, match="dynamic_shapes"):
        compile(str(saved), "cpu", dims={"batch": 4})


def test_weights_lie_in_the_mapped_file(saved):
    program = read_program(saved)
    linear, tied = program.state_dict["linear.weight"], program.state_dict["tied.weight"]
    assert linear.data_ptr() == tied.data_ptr()
    torch.testing.assert_close(program.state_dict["shift"], torch.arange(2.0, 6.0))
    before = saved.read_bytes()
    with torch.no_grad():
        linear.zero_()
    assert saved.read_bytes() == before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64], ids=str)
def test_dtypes(dtype, tmp_path):
    class Added(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("held", torch.arange(3).to(dtype))
            self.register_buffer("empty", torch.zeros(0, 2, dtype=dtype))

        def forward(self, x):
            return x + self.held, torch.cat([self.empty, x.reshape(1, 3)[:, :2]])

    path, x = tmp_path / "added.pt2", torch.ones(3).to(dtype)
    torch.export.save(torch.export.export(Added(), (x,)), path)
    for found, expected in zip(compile(path, "cpu", engines=("library",))(x), Added()(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_program_of_another_device_is_read_for_the_cpu(plain, tmp_path):
    def to_cuda(document: Any) -> None:
        text = json.dumps(document).replace('{"type": "cpu", "index": null}', '{"type": "cuda", "index": 0}')
        document.update(json.loads(text))

    path = written(plain, tmp_path / "cuda.pt2", in_json(MODEL, to_cuda))
    assert b'"cuda"' in path.read_bytes()
    found = compile(path, "cpu", engines=("library",))(torch.ones(2, 4))
    torch.testing.assert_close(found, compile(plain, "cpu", engines=("library",))(torch.ones(2, 4)))


def test_a_layer_is_made_of_it(model, saved, tmp_path):
    """Compared with the program, run by PyTorch, before it is written."""
    made = emit_layer(saved, layer_name="Branch", out=tmp_path / "branch", triton=False, benchmark=False)
    assert made.checked.original == "the exported program"
    assert all(case.original is not None and case.original < 1e-5 for case in made.checked.cases)
    provenance = json.loads((tmp_path / "branch" / "provenance.json").read_text())
    assert "model.pt2" in {one["name"] for one in provenance["inputs"]}
    kernel = get_local_kernel(tmp_path / "branch", backend="cpu")
    args, kwargs = arguments(7)
    with torch.no_grad():
        expected, found = model(*args, **kwargs), kernel.load()(*args, **kwargs)
    torch.testing.assert_close(found["result"], expected["result"])
    with pytest.raises(CompilerError, match="submodule"):
        emit_layer(saved, layer_name="Branch", out=tmp_path / "other", submodule="linear")


def test_command_lines(plain, tmp_path):
    runner, out = CliRunner(), tmp_path / "layer"
    options = ["--no-triton", "--no-benchmark", "--json"]
    made = runner.invoke(app, ["compile", str(plain), "--layer", "Product", "-o", str(out), *options])
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["original"] == "the exported program"
    page = tmp_path / "page.html"
    shown = runner.invoke(app, ["view", str(plain), "-o", str(page), "--optimized"])
    assert shown.exit_code == 0, shown.output
    assert "plain, " in shown.output
    assert "aten" not in page.read_text() or "linear" in page.read_text()
    missing = runner.invoke(app, ["compile", str(tmp_path / "none.pt2"), "--layer", "A", "-o", str(out)])
    assert missing.exit_code == 2
    assert "there is no file" in missing.output


class Ran:
    """Unpickled, it writes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.write_text, (self.marker, "ran")


def _nodes(document: Any) -> Any:
    return document["graph_module"]["graph"]["nodes"]


def _rename(document: Any, old: str, new: str) -> None:
    document.update(json.loads(json.dumps(document).replace(json.dumps(old), json.dumps(new))))


def _set_size(document: Any, text: str) -> None:
    tensor = document["graph_module"]["graph"]["tensor_values"]["linear"]
    tensor["sizes"][0]["as_expr"]["expr_str"] = text


def _set_context(document: Any, spec: str, kind: str, context: str) -> None:
    call = document["graph_module"]["module_call_graph"][0]["signature"]
    call[spec] = json.dumps([1, {"type": kind, "context": context, "children_spec": []}])


HOSTILE: dict[str, Callable[[str], tuple[str, Callable[[Any], None]]]] = {
    "a name": lambda code: (MODEL, lambda one: _rename(one, "linear", f"linear=({code})")),
    "an input's name": lambda code: (MODEL, lambda one: _rename(one, "input", f"x=({code})")),
    "a weight's name": lambda code: (MODEL, lambda one: _rename(one, "weight", f'w"), {code}, ("')),
    "a size": lambda code: (MODEL, lambda one: _set_size(one, code)),
    "a size, by attributes": lambda code: (MODEL, lambda one: _set_size(one, "Integer(1).__class__")),
    "a size that never ends": lambda code: (MODEL, lambda one: _set_size(one, "9**9**9**9")),
    "a symbol": lambda code: (MODEL, lambda one: _set_size(one, f"Symbol('s0', integer={code})")),
    "an op": lambda code: (MODEL, lambda one: _nodes(one)[0].update(target="torch.os.system")),
    "a load": lambda code: (MODEL, lambda one: _nodes(one)[0].update(target="torch.ops.load_library")),
    "a file's op": lambda code: (MODEL, lambda one: _nodes(one)[0].update(target="torch.ops.aten.from_file.default")),
    "an extension": lambda code: (MODEL, lambda one: _nodes(one)[0].update(target="#library:op")),
    "an operator": lambda code: (
        MODEL, lambda one: _nodes(one)[0]["inputs"][0].update(arg={"as_operator": "torch.os.system"})
    ),
    "a guard's kin": lambda code: (MODEL, lambda one: one.update(verifiers=[code])),
    "an enumeration": lambda code: (
        MODEL, lambda one: _set_context(one, "in_spec", "builtins.dict", '[{"__enum__": true, "fqn": "a:b", "name": "c"}]')
    ),
    "a factory": lambda code: (
        MODEL, lambda one: _set_context(one, "out_spec", "collections.defaultdict", '{"default_factory_module": "this"}')
    ),
    "a key": lambda code: (MODEL, lambda one: _set_context(one, "in_spec", "builtins.dict", json.dumps([f"a={code}"]))),
    "an object": lambda code: (
        MODEL, lambda one: _nodes(one)[0]["inputs"][0].update(arg={"as_custom_obj": {"name": "a", "class_fqn": "b"}})
    ),
    "a pickled weight": lambda code: (WEIGHTS, lambda one: one["config"]["weight"].update(use_pickle=True)),
    "a pickled constant": lambda code: (
        CONSTANTS, lambda one: one["config"].update(
            a={"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_nothing_in_a_file_runs(what, plain, tmp_path):
    marker = tmp_path / "ran"
    code = f"__import__('pathlib').Path({str(marker)!r}).write_text('ran')"
    record, change = HOSTILE[what](code)
    path = written(plain, tmp_path / "hostile.pt2", in_json(record, change))
    for use in (
        lambda: compile(path, "cpu"),
        lambda: emit_layer(path, layer_name="Product", out=tmp_path / "a"),
    ):
        with pytest.raises(
            ImportFailure, match=r"could run code|can run any code|not supported in a file"
        ) as raised:
            use()
        assert "torch.export.load" in str(raised.value)
        assert not marker.exists()
    assert not (tmp_path / "a").exists()


def test_the_attack_by_a_size_is_one(plain, tmp_path):
    """PyTorch runs what this library refuses."""
    marker = tmp_path / "ran"
    code = f"__import__('pathlib').Path({str(marker)!r}).write_text('ran')"
    record, change = HOSTILE["a size"](code)
    path = written(plain, tmp_path / "hostile.pt2", in_json(record, change))
    with pytest.raises(Exception):  # noqa: B017 -- whatever comes of the size
        torch.export.load(path)
    assert marker.exists()


def test_what_no_graph_needs_is_not_read(plain, tmp_path):
    """Examples of inputs, which are a pickle, guards, which are code, and metadata."""
    marker = tmp_path / "ran"

    def change(records: dict[str, bytes]) -> None:
        records["data/sample_inputs/model.pt"] = pickle.dumps(Ran(marker))
        document = json.loads(records[MODEL])
        document["guards_code"] = [f"__import__('pathlib').Path({str(marker)!r}).write_text('ran')"]
        document["graph_module"]["metadata"] = {"custom": "no JSON"}
        _nodes(document)[0]["metadata"] = {
            "source_fn_stack": "a,torch.os",
            "from_node": "no JSON",
            "stack_trace": "\r",
        }
        records[MODEL] = json.dumps(document).encode()

    path = written(plain, tmp_path / "more.pt2", change)
    found = compile(path, "cpu", engines=("library",))(torch.ones(2, 4))
    torch.testing.assert_close(found, compile(plain, "cpu", engines=("library",))(torch.ones(2, 4)))
    emit_layer(path, layer_name="Product", out=tmp_path / "a", triton=False, benchmark=False)
    assert not marker.exists()


def _without_bytes(records: dict[str, bytes]) -> None:
    records["data/weights/weight_0"] = b""
    vast = [{"as_int": 1 << 30}, {"as_int": 1 << 30}]
    in_json(WEIGHTS, lambda one: one["config"]["weight"]["tensor_meta"].update(sizes=vast))(records)


DAMAGED: dict[str, tuple[Callable[[dict[str, bytes]], None], str]] = {
    "no weights": (lambda records: records.pop("data/weights/weight_0"), "has no data/weights/weight_0"),
    "short weights": (lambda records: records.update({"data/weights/weight_0": b"\0" * 8}), "out of bounds|'weight'"),
    "vast and empty": (_without_bytes, "no bytes for 1152921504606846976 elements"),
    "no JSON": (lambda records: records.update({MODEL: b"{"}), "no JSON"),
    "deep JSON": (lambda records: records.update({MODEL: b"[" * 200_000}), "no JSON"),
    "a list": (lambda records: records.update({MODEL: b"[]"}), "no JSON object"),
    "no graph": (lambda records: records.update({MODEL: b"{}"}), "describes no graph"),
    "two programs": (lambda records: records.update({"models/b.json": b"{}"}), "2 programs"),
    "another dtype": (in_json(WEIGHTS, lambda one: one["config"]["weight"]["tensor_meta"].update(dtype=999)), "999"),
    "far away": (
        in_json(WEIGHTS, lambda one: one["config"]["weight"]["tensor_meta"].update(storage_offset={"as_int": 9})),
        "out of bounds",
    ),
    "before it": (
        in_json(WEIGHTS, lambda one: one["config"]["weight"]["tensor_meta"].update(storage_offset={"as_int": -4})),
        "'weight'",
    ),
    "another schema": (in_json(MODEL, lambda one: one["schema_version"].update(major=99)), "schema version"),
    "a node without inputs": (in_json(MODEL, lambda one: _nodes(one)[0].pop("inputs")), "cannot be read"),
    "an unknown type": (
        in_json(MODEL, lambda one: _set_context(one, "out_spec", "mine.Result", "null")), "mine.Result.*import"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_files(what, plain, tmp_path):
    change, match = DAMAGED[what]
    path = written(plain, tmp_path / "damaged.pt2", change)
    with pytest.raises(ImportFailure, match=match) as raised:
        compile(path, "cpu")
    assert str(path) in str(raised.value)


def test_files_that_are_cut_off(plain, tmp_path):
    data = plain.read_bytes()
    path = tmp_path / "cut.pt2"
    for length in (0, 1, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(ImportFailure, match="cut off"):
            compile(path, "cpu")
    with pytest.raises(FileNotFoundError, match=r"none\.pt2"):
        compile(tmp_path / "none.pt2", "cpu")


def test_bytes_changed_at_random_are_told_or_compute(plain, tmp_path):
    """A file may compute something else then; it never ends in anything but one of the library's errors."""
    data, random = plain.read_bytes(), np.random.default_rng(0)
    path = tmp_path / "changed.pt2"
    for _ in range(40):
        changed = bytearray(data)
        for place in random.integers(len(data), size=3):
            changed[place] = random.integers(256)
        path.write_bytes(changed)
        try:
            read_program(path)
        except ImportFailure as error:
            assert str(path) in str(error)  # noqa: PT017


def test_other_kinds_of_zip_files(tmp_path):
    path = tmp_path / "model.pt2"
    torch.save({"weight": torch.ones(2)}, path)
    with pytest.raises(ImportFailure, match=r"torch\.save"):
        compile(path, "cpu")
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("serialized_exported_program.json", "{}")
    with pytest.raises(ImportFailure, match=r"before PyTorch 2\.8"):
        compile(path, "cpu")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(ImportFailure, match="a zip file"):
        compile(path, "cpu")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/archive_format", "pt2")
        archive.writestr(f"a/{MODEL}", "{}" * 100)
    with pytest.raises(ImportFailure, match="compressed"):
        compile(path, "cpu")


def test_an_ordered_dict_of_results(tmp_path):
    class Named(nn.Module):
        def forward(self, x):
            return OrderedDict(out=x * 2, aux=x + 1)

    path = tmp_path / "named.pt2"
    torch.export.save(torch.export.export(Named(), (torch.ones(2),)), path)
    found = compile(path, "cpu", engines=("library",))(torch.ones(2))
    assert type(found) is OrderedDict
    torch.testing.assert_close(found["aux"], torch.full((2,), 2.0))
