"""Commands of the compiler with what is missing, wrong or damaged: one line, exit status 1 or 2, nothing is written."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kernels_hub.compiler.engines import registry
from tests.cli.conftest import Run

onnx = pytest.importorskip("onnx", reason="needs onnx: pip install 'kernels-hub[onnx]'")

FACTORIES = """
import torch
from torch import nn

def nothing(): return None
def no_arguments(): return nn.Linear(2, 2)
def too_many(): return nn.Linear(2, 2), 1, 2, 3
def misfit(): return nn.Linear(2, 2), (torch.zeros(3),)
def a_number(): return nn.Linear(2, 2), 7
def fails(): raise KeyError("boom")
def no_such_argument(): return nn.Linear(2, 2), (torch.zeros(3, 2),), {"nope": {0: 1}}
def right(): return nn.Linear(2, 2), (torch.zeros(3, 2),)

class Branches(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x

def branches(): return Branches(), (torch.zeros(3),)
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with models, plugins and factories, most of them broken."""
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x) => (float[n, 4] y) { y = %s(x) }'
    onnx.save(onnx.parser.parse_model(text % "Relu"), tmp_path / "good.onnx")
    onnx.save(onnx.parser.parse_model(text % "NoSuchOp"), tmp_path / "unknown.onnx")
    whole = (tmp_path / "good.onnx").read_bytes()
    for name, data in {
        "half.onnx": whole[: len(whole) // 2],
        "empty.onnx": b"",
        "garbage.onnx": bytes(range(256)) * 8,
        "text.onnx": b"hello\n",
        "graph.txt": b'graph "x" {\n  %0: float32[2',
        "bytes.txt": b"graph \xff\xfe\x00",
        "bad_input_factories.py": FACTORIES.encode(),
        "bad_input_syntax.py": b"def (\n",
        "plan.khplan": b"KHPLAN\r\n",
        "file": b"x",
    }.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "folder.onnx").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    registry.set_plugin_paths([])


def content(folder: Path) -> dict[str, str]:
    files = [one for one in folder.rglob("*") if "__pycache__" not in one.parts]
    return {str(one): hashlib.sha256(one.read_bytes()).hexdigest() if one.is_file() else "" for one in files}


DAMAGED = {"half.onnx": "is cut off", "empty.onnx": "empty.onnx is no ONNX model", "garbage.onnx": "is cut off",
           "text.onnx": "is no ONNX model"}  # fmt: skip
READERS = (
    "view {}",
    "onnx check {}",
    "onnx explain-rule {} gelu",
    "engines check {}",
    "compile {} --layer Lay -o out",
)

CASES: dict[str, tuple[int, str]] = {
    **{reader.format(file): (1, what) for reader in READERS for file, what in DAMAGED.items()},
    **{reader.format("none.onnx"): (2, "none.onnx") for reader in READERS},
    **{reader.format("folder.onnx"): (2, "folder.onnx") for reader in READERS},
    **{reader.format("unknown.onnx"): (1, "NoSuchOp") for reader in READERS if not reader.startswith("view")},
    "view graph.txt": (1, "graph.txt: line 2"),
    "view plan.khplan": (2, "is a compiled plan"),
    "view bytes.txt": (1, "bytes.txt is no UTF-8 text"),
    "view good.onnx -o page.png": (2, "ends in none of .html"),
    "view good.onnx -o none/page.html": (2, "no folder is there"),
    "view good.onnx -o page.html --size n": (2, "write NAME=SIZE"),
    "view good.onnx -o page.html --size q=3": (1, "no symbol 'q'"),
    "onnx check good.onnx --dim n=-3": (2, "NAME=SIZE"),
    "onnx check good.onnx --dim q=3": (1, "binds 'q'"),
    "onnx explain-rule good.onnx nope": (2, "there is no rule 'nope'"),
    "engines check good.onnx --device nope": (2, "cpu, cuda, rocm"),
    "engines check good.onnx --device cuda:x": (2, "cuda:x"),
    "engines check good.onnx --dim z=1": (1, "binds 'z'"),
    "engines list --plugin none": (2, "there is no file or folder none"),
    "compile good.onnx -o out": (2, "--layer"),
    "compile good.onnx --layer Lay": (2, "--out"),
    "compile good.onnx --layer class -o out": (1, "name of a class"),
    "compile good.onnx --layer Lay -o file": (1, "something else than an emitted layer"),
    "compile good.onnx --layer Lay -o file/out": (1, "file is no folder"),
    "compile good.onnx --layer Lay -o out --dim q=2": (1, "binds 'q'"),
    "compile good.onnx --layer Lay -o out --submodule x": (1, "has no module 'x'"),
    "compile good.onnx --layer Lay -o out --version abc": (1, "major.minor.patch"),
    "compile good.onnx --layer Lay -o out --name A/B": (1, "cannot be a kernel's name"),
    "compile good.onnx --layer Lay -o out --aot sm_1": (1, "sm_1"),
    "compile bad_input_factories --layer Lay -o out": (2, "package.module:factory"),
    "compile bad_input_factories:none --layer Lay -o out": (2, "has no 'none'"),
    "compile no_such_module_here:x --layer Lay -o out": (2, "no module 'no_such_module_here'"),
    "compile bad_input_syntax:x --layer Lay -o out": (1, "SyntaxError"),
    "compile bad_input_factories:nothing --layer Lay -o out": (2, "returns a NoneType"),
    "compile bad_input_factories:no_arguments --layer Lay -o out": (2, "expected (module, args)"),
    "compile bad_input_factories:too_many --layer Lay -o out": (2, "a tuple of 4"),
    "compile bad_input_factories:a_number --layer Lay -o out": (2, "args is a int"),
    "compile bad_input_factories:fails --layer Lay -o out": (1, "KeyError: 'boom'"),
    "compile bad_input_factories:misfit --layer Lay -o out": (1, "torch.export cannot trace Linear"),
    "compile bad_input_factories:branches --layer Lay -o out": (1, "torch.export cannot trace Branches"),
    "compile bad_input_factories:no_such_argument --layer Lay -o out": (1, "'nope'"),
    "compile bad_input_factories:right --layer Lay -o out --dim a=3": (2, "--dim is for ONNX files"),
    "compile bad_input_factories:right --layer Lay -o out --submodule no": (1, "has no module 'no'; it has none inside"),
    "compile bad_input_factories:right --layer Lay -o out --dtypes float8_e4m3fn": (1, "float8_e4m3fn"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # torch.export's own
@pytest.mark.parametrize("line", CASES)
def test_bad_input(line: str, run: Run, work: Path):
    code, told = CASES[line]
    before = content(work)
    result = run(*line.split())
    assert result.code == code
    assert told in result.out + result.err
    assert "Traceback" not in result.err
    assert "shows where" not in result.err, "an error that nobody thought of"
    assert "def forward" not in result.err
    assert content(work) == before
    if code == 1 and not result.out:
        first, *rest = result.err.strip().splitlines()
        assert first.startswith("kernels-hub: ")
        assert all(line.startswith("  ") for line in rest), "a list, at most"


def test_plugins_that_do_not_load_are_told(run: Run, work: Path):
    (work / "broken.py").write_text("raise SystemExit('out of luck')\n")
    result = run("engines", "list", "--plugin", work / "broken.py")
    assert result.code == 0
    assert "out of luck" in result.out.partition("not loaded:")[2]
