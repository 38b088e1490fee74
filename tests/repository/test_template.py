"""What `kernels-hub init` writes works: its test, its benchmark, its build, and kernelize with it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from kernels_hub import LocalLayerRepository, Mode, kernelize, report, use_kernel_mapping
from kernels_hub.errors import BuildError
from kernels_hub.repository.build import build_repository
from kernels_hub.repository.card import CardInput, read_benchmarks, write_card
from kernels_hub.repository.interface import read_interface
from kernels_hub.repository.template import FILES, write_template
from tests.warm_process import run_script

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def template(tmp_path: Path) -> Path:
    write_template("my-relu", tmp_path / "my-relu")
    return tmp_path / "my-relu"


SCRIPT = """
import runpy, sys
sys.argv, program = sys.argv[1:], sys.argv[1]
(runpy.run_path if program.endswith(".py") else runpy.run_module)(program, run_name="__main__")
"""


def _run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(folder / ".hf")}
    done = run_script(SCRIPT, *command, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_its_own_test_passes(template: Path):
    out = _run(template, "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert "21 passed" in out


def test_its_own_test_can_fail(template: Path):
    kernels = template / "cpu" / "kernels.py"
    kernels.write_text(kernels.read_text().replace("mul_(2)", "mul_(3)"))
    command = ("pytest", "-q", "-p", "no:cacheprovider", "tests", "-k", "gradients")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = run_script(SCRIPT, *command, cwd=template, env=environment)
    assert done.returncode == 1
    assert int(done.stdout.rpartition(" failed")[0].split()[-1]) >= 9, done.stdout[-2000:]


INTERPRETED = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("kernels_under_test", sys.argv[1])
kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernels)
for shape in ((0,), (1,), (3, 5), (2, 1025)):
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)):
        x, grad = torch.randn(shape).to(dtype), torch.randn(shape[::-1]).to(dtype).T
        wide = x.double().relu()
        close = dict(rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(kernels.forward(x).double(), wide.square(), **close)
        torch.testing.assert_close(kernels.backward(grad, x).double(), 2 * wide * grad.double(), **close)
print("right")
"""


@pytest.mark.parametrize(("old", "new", "right"), [("", "", True), ("2.0 * wide", "3.0 * wide", False)])
def test_its_triton_kernels_under_the_interpreter(
    template: Path, old: str, new: str, right: bool, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("triton", reason="needs Triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    kernels = template / "triton" / "kernels.py"
    kernels.write_text(kernels.read_text().replace(old, new))
    done = run_script(INTERPRETED, str(kernels), cwd=template)
    assert (done.returncode == 0) is right, done.stderr[-3000:]
    assert right or "Tensor-likes are not close" in done.stderr


def test_its_benchmark_makes_the_cards_tables(template: Path):
    _run(template, str(template / "benchmark.py"), "--device", "cpu", "--seconds", "0.001", "--rounds", "1")
    (benchmark,) = read_benchmarks(template)
    assert "torch" in benchmark.where
    assert len(benchmark.cases) == 6
    card = write_card(read_interface(template), CardInput("org/my-relu", "0.1.0", benchmarks=(benchmark,)))
    assert "| SquaredReLU 512x4096 bfloat16 |" in card


def test_it_builds_and_kernelizes(template: Path, tmp_path: Path):
    build_repository(template, tmp_path / "out", check=True)
    assert sorted(path.name for path in (tmp_path / "out" / "build").iterdir()) == [
        "torch-cpu", "torch-cuda", "torch-rocm",
    ]  # fmt: skip

    class Act(nn.Module):
        kernel_layer_name = "SquaredReLU"

        def forward(self, x):
            return torch.relu(x) ** 2

    model, x = nn.Sequential(nn.Linear(4, 4), Act()), torch.randn(5, 4)
    expected = model(x)
    layer = LocalLayerRepository(tmp_path / "out", layer_name="SquaredReLU")
    with use_kernel_mapping({"SquaredReLU": {"cpu": layer}}, inherit_mapping=False):
        kernelize(model, mode=Mode.TRAINING, device="cpu", use_fallback=False)
    assert [row.path for row in report(model).rows if row.swapped] == ["1"]
    y = model(x)
    torch.testing.assert_close(y, expected)
    y.sum().backward()
    assert model[0].weight.grad is not None


EARLIER = """\
# my-relu

Squared ReLU.

To make it your own: write the formula into `package/layers.py` (the signature of `forward` has to be
that of the module it replaces), the kernels into `cpu/kernels.py`.

    python -m pytest tests             the kernels against the formula
    kernels-hub publish . --repo ORG/my-relu --version 0.1.0 --dry-run

What the author added.
"""


@pytest.mark.parametrize("earlier", [False, True])
def test_what_is_said_to_the_author_is_not_published(template: Path, earlier: bool):
    readme = EARLIER if earlier else (template / "README.md").read_text()
    card = write_card(read_interface(template), CardInput("org/my-relu", "0.1.0", readme=readme))
    assert "Squared ReLU" in card and ("What the author added." in card) == earlier
    assert not [words for words in ("your own", "Write the formula", "pytest", "--dry-run") if words in card]


def test_names(template: Path):
    assert 'name = "my-relu"' in (template / "kernel.toml").read_text()
    assert '"my_relu"' in (template / "package" / "operators.py").read_text()
    assert not any("@" in path.read_text() for path in template.rglob("*.toml"))
    assert {path.relative_to(template).as_posix() for path in template.rglob("*") if path.is_file()} == set(
        FILES
    )


@pytest.mark.parametrize("name", ["My", "a", "a_b", "-a", "a-", "../a", "a b", ""])
def test_a_bad_name(name: str, tmp_path: Path):
    with pytest.raises(BuildError, match="cannot be a kernel's name"):
        write_template(name, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_nothing_is_overwritten(template: Path, tmp_path: Path):
    (template / "kernel.toml").write_text("mine")
    with pytest.raises(BuildError, match="is not empty"):
        write_template("my-relu", template)
    assert (template / "kernel.toml").read_text() == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="is not empty"):
        write_template("my-relu", tmp_path / "file")


def test_results_of_the_house_benchmark_are_read(tmp_path: Path):
    (tmp_path / "benchmark-a.json").write_text(json.dumps({"cases": {"x": {"median_ms": {"eager": 1.5}}}}))
    assert read_benchmarks(tmp_path)[0].where == "a machine that it does not name"
