"""`kernels-hub compile`: what it writes and prints, and what it says of sources that it cannot compile."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

from kernels_hub.compiler.runtime.toolchain import find_compiler
from tests.cli.conftest import Run

FACTORIES = """
import torch
from torch import nn
from torch.export import Dim


class Shifted(nn.Module):
    def forward(self, x):
        return x * 2 + 1


class Spread(nn.Module):
    def forward(self, x):
        first, second = (nn.functional.conv_transpose1d(x, one, stride=2, dilation=2) for one in (x[:, :1], x[:, 1:2]))
        return first + second


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.idle = Shifted(), Shifted()

    def forward(self, x):
        return self.first(torch.relu(x))


class Named(nn.Module):
    def forward(self, x, how=torch.float32):
        return x.to(how)


class Record:
    pass


class Strange(nn.Module):
    def forward(self, x, record):
        return x


def shifted():
    return Shifted(), torch.ones(3, 4), {"x": {0: Dim("rows")}}


def model():
    return Model(), {"x": torch.ones(3, 4)}, {"x": {0: Dim("rows")}}


def spread():
    return Spread(), (torch.ones(4, 4, 3),)


def typo():
    return Shifted(), (torch.ones(3, 4),), {"y": {0: Dim("rows")}}


def default():
    return Named(), (torch.ones(3),)


def strange():
    return Strange(), (torch.ones(3), Record())


def raises():
    raise KeyError("no weights here")


def alone():
    return Shifted()


def three():
    return 1, 2, 3, 4


def number():
    return Shifted(), 4
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "factories.py").write_text(textwrap.dedent(FACTORIES))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "factories", raising=False)
    return tmp_path


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
def test_a_module(here: Path, run: Run):
    result = run("compile", "factories:shifted", "--layer", "Shifted", "-o", "out", "--no-benchmark")
    assert result.code == 0, result.err
    assert "Shifted: 1 C++ kernels" in result.out and "rows = 1" in result.out
    assert "next: kernels-hub build out" in result.out
    assert run("build", "out").code == 0
    card = (here / "out" / "README.md").read_text()
    assert "float32 | `[rows, 4]`" in card and "## Errors" in card and "## Speed" not in card
    # Again, over what was emitted; one layer of a model.
    arguments = (
        "factories:model",
        "--submodule",
        "first",
        "--layer",
        "Shifted",
        "--name",
        "other",
        "--version",
        "2.0.0",
    )
    result = run("compile", *arguments, "-o", "out", "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["name"] == "other" and found["cases"][0]["sizes"] == {"rows": 3}
    assert all(
        case["error"] == 0 and (case["times_faster"] is None or case["times_faster"] > 0)
        for case in found["cases"]
    )
    assert 'version = "2.0.0"' in (here / "out" / "kernel.toml").read_text()
    # What fails leaves what was there.
    before = {one: one.read_bytes() for one in (here / "out").rglob("*") if one.is_file()}
    result = run("compile", "factories:shifted", "--layer", "Shifted", "-o", "out", "--version", "2")
    assert result.code == 1 and "'version' must read major.minor.patch" in result.err
    assert {one: one.read_bytes() for one in (here / "out").rglob("*") if one.is_file()} == before
    assert sorted(one.name for one in here.iterdir() if "former" in one.name) == []


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
def test_an_onnx_file_is_compared_with_another_runtime(here: Path, run: Run):
    import onnx

    text = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[n, 4] x, float scale) => (float[n, 4] y) { z = Tanh(x) \n y = Mul(z, scale) }"""
    onnx.save(onnx.parser.parse_model(text), "m.onnx")
    arguments = ("m.onnx", "--layer", "Scaled", "-o", "out", "--value", "scale=2", "--shape", "x=n,4")
    result = run("compile", *arguments, "--no-triton", "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["original"] in {"ONNX Runtime", "PyTorch's kernels"}
    assert found["cases"][0]["sizes"] == {"n": 2}
    assert all(case["error"] < 1e-5 for case in found["cases"])
    assert (
        "against ONNX Runtime" in (here / "out" / "README.md").read_text()
        or found["original"] != "ONNX Runtime"
    )


BAD = {
    "no such module": (["nothing:x"], "no module 'nothing'"),
    "no such factory": (["factories:shift"], "has no 'shift'; the nearest of what it has: shifted"),
    "no factory": (["factories"], "expected package.module:factory, got 'factories'"),
    "raises": (["factories:raises"], "factories:raises() raised KeyError: 'no weights here'"),
    "no arguments": (["factories:alone"], "returns a Shifted; expected (module, args) or"),
    "too many": (["factories:three"], "returns a tuple of 4; expected (module, args) or"),
    "odd arguments": (["factories:number"], "args is a int; expected a tuple, or a dict"),
    "no file": (["missing.onnx"], "there is no file missing.onnx"),
    "dims of a module": (["factories:shifted", "--dim", "a=1"], "--dim is for ONNX files"),
    "ops": (
        ["factories:spread"],
        "has 2 values that no C++ kernel computes: conv_transpose: conv_transpose has no loop form; from",
    ),
    "all ops": (["factories:spread"], "conv_transpose: conv_transpose has no loop form; from"),
    "dynamic shapes": (["factories:typo"], "dynamic shapes are given for 'y'; the arguments are x"),
    "a default": (["factories:default"], "the default of how is a dtype"),
    "an argument": (["factories:strange"], "argument record is a Record; a layer is compiled for tensors"),
    "no such layer": (
        ["factories:model", "--submodule", "second"],
        "Model has no module 'second'; it has first, idle",
    ),
    "an idle layer": (["factories:model", "--submodule", "idle"], "the model does not call its idle"),
    "a kernel's name": (["factories:shifted", "--name", "Not so"], "'Not so' cannot be a kernel's name"),
    "a keyword": (["factories:shifted", "--layer", "class"], "'class' cannot be a layer's name"),
    "a name": (["factories:shifted", "--layer", "not a name"], "'not a name' cannot be a layer's name"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(here: Path, run: Run, case: str):
    arguments, message = BAD[case]
    layer = [] if "--layer" in arguments else ["--layer", "Shifted"]
    result = run("compile", *arguments, *layer, "-o", "out")
    assert result.code != 0
    text = " ".join(result.err.replace("│", " ").split())
    assert message in text and "Traceback" not in text, result.err
    assert not (here / "out").exists()


def test_a_folder_with_something_else(here: Path, run: Run):
    (here / "out").mkdir()
    (here / "out" / "thesis.tex").touch()
    result = run("compile", "factories:shifted", "--layer", "Shifted", "-o", "out")
    assert result.code == 1 and "out holds something else than an emitted layer" in result.err
    assert [one.name for one in (here / "out").iterdir()] == ["thesis.tex"]


def test_without_a_compiler(here: Path, run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERNELS_HUB_CXX", "none")
    monkeypatch.setenv("KERNELS_HUB_PREBUILT", "ignore")
    result = run("compile", "factories:shifted", "--layer", "Shifted", "-o", "out")
    assert result.code == 1 and "no C++ compiler found" in result.err
    assert not (here / "out").exists()
