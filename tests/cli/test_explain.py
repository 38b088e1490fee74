"""`kernels-hub explain`: what kernelize would do to the model that a factory returns."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run

MODELS = """
import torch
from torch import nn

print("noise on stdout")

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 64)

    def forward(self, x):
        return self.fc(x)

def model():
    return nn.Sequential(Block(), Block())

def bare():
    return nn.Sequential(nn.Linear(1, 1, device="meta"))

def broken():
    raise ValueError("no weights")

def wrong():
    return {"a": 1}

ready = model()
number = 3

class nested:
    factory = model
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with modules; what they put into the process is taken back."""
    (tmp_path / "my_models.py").write_text(MODELS)
    (tmp_path / "my_broken.py").write_text("1 / 0")
    (tmp_path / "my_needy.py").write_text("import a_package_that_is_missing")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("my_models", "my_broken", "my_needy"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["model", "ready", "nested.factory"])
def test_json_has_a_row_for_every_module(name: str, run: Run, folder: Path):
    result = run("explain", f"my_models:{name}", "--json")
    assert result.code == 0
    report = json.loads(result.out)  # the module printed to stderr instead
    assert "noise" in result.err
    assert [row["path"] for row in report["rows"]] == ["", "0", "0.fc", "1", "1.fc"]
    assert all(row["swapped"] or row["reason"] for row in report["rows"])


def test_the_mode_and_the_device_reach_the_engine(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch):
    from kernels_hub import CUDAProperties, Device, Mode
    from kernels_hub.kernelization.report import Report

    seen: list[tuple[object, object]] = []

    def explain(model: object, *, mode: Mode, device: object) -> Report:
        seen.append((mode, device))
        return Report(())

    monkeypatch.setattr("kernels_hub.kernelization.apply.explain", explain)
    compiled = Mode.TRAINING | Mode.TORCH_COMPILE
    for options, expected in {
        (): (Mode.INFERENCE, None),
        ("--mode", "training|torch_compile", "--device", "cuda:1"): (compiled, "cuda:1"),
        ("--device", "cuda", "--capability", "90"): (Mode.INFERENCE, Device("cuda", CUDAProperties(90, 90))),
        ("--device", "cuda", "--capability", "12.0"): (
            Mode.INFERENCE,
            Device("cuda", CUDAProperties(120, 120)),
        ),
    }.items():
        assert run("explain", "my_models:model", *options).code == 0
        assert seen.pop() == expected


def test_text_for_a_gpu_that_is_not_here(run: Run, folder: Path):
    result = run("explain", "my_models:model", "--device", "cuda", "--capability", "9.0")
    assert result.code == 0
    assert "without a tag" in result.out.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("my_models",), 2, "expected package.module:factory, got 'my_models'"),
        ((":model",), 2, "expected package.module:factory"),
        (("not_there:model",), 2, "no module 'not_there' in"),
        (("my_models.sub:model",), 2, "no module 'my_models.sub' in"),
        (("my_models:modle",), 2, "has no 'modle'; the nearest of what it has: model"),
        (("my_models:wrong",), 2, "gives no torch.nn.Module but a dict"),
        (("my_models:number",), 2, "gives no torch.nn.Module but a int"),
        (("my_broken:model",), 1, "module 'my_broken' raised ZeroDivisionError on import: division by zero"),
        (("my_needy:model",), 1, "No module named 'a_package_that_is_missing'"),
        (("my_models:broken",), 1, "my_models:broken() raised ValueError: no weights"),
        (("my_models:bare",), 1, "lies on the meta device: pass device="),
        (("my_models:model", "--mode", "fast"), 1, "unknown mode 'fast'"),
        (("my_models:model", "--mode", "fallback"), 1, "can only be used to register"),
        (("my_models:model", "--device", "gpu"), 1, "unknown device type 'gpu'; known: cpu, cuda"),
        (("my_models:model", "--capability", "90"), 2, "goes with --device cuda or --device rocm"),
        (("my_models:model", "--device", "cuda", "--capability", "sm90"), 2, "write 90 or 9.0"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], code: int, expected: str, run: Run, folder: Path):
    result = run("explain", *arguments)
    assert (result.code, result.out) == (code, "")
    assert expected in result.err
    assert "Traceback" not in result.err
