"""`kernels-hub benchmark`: what runs, what differs, what fails, and what is saved."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kernels_hub.cli.app import app
from kernels_hub.errors import BenchmarkError

KERNEL = "def double(out, x):\n    out.copy_(x * 2)\n"
SCRIPT = """
import torch
from {package} import Benchmark

class Doubling(Benchmark):
    seed = 1
    def setup(self):
        self.x = torch.randn(64, device=self.device)
        self.out = torch.empty(64, device=self.device)
    def benchmark_double(self):
        self.kernel.double(self.out, self.x)
    def verify_double(self):
        return self.x + self.x
    def setup_free(self):
        self.setup()
    def benchmark_free(self):
        self.kernel.double(self.out, self.x)
"""
WRONG = """
    def benchmark_wrong(self):
        self.kernel.double(self.out, self.x)
    def verify_wrong(self):
        return self.x * 3
    def benchmark_raises(self):
        raise RuntimeError("no device")
"""


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "doubling" / "build" / "torch-cpu"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(KERNEL)
    metadata = {
        "name": "doubling", "id": "_doubling_cpu", "version": 1, "license": "Apache-2.0", "python-depends": [],
        "backend": {"type": "cpu"},
    }  # fmt: skip
    (folder / "metadata.json").write_text(json.dumps(metadata))
    return tmp_path / "doubling"


def run(repository, *arguments):
    more = ["--iterations", "3", "--warmup", "1", "--backend", "cpu", *map(str, arguments)]
    return CliRunner().invoke(app, ["benchmark", str(repository), *more])


def write(repository, text):
    (repository / "benchmarks").mkdir(exist_ok=True)
    (repository / "benchmarks" / "benchmark.py").write_text(text)


@pytest.mark.parametrize("package", ["kernels_hub", "kernels.benchmark"])
def test_a_table_and_a_result(repository, tmp_path, package):
    if package.startswith("kernels."):
        pytest.importorskip("kernels", reason="needs the package kernels")
    write(repository, SCRIPT.format(package=package))
    result = run(repository, "--output", tmp_path / "result.json")
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line for line in result.output.splitlines()}
    assert lines["Doubling.double"].split()[-1] == "right" and lines["Doubling.free"].endswith("no reference")
    saved = json.loads((tmp_path / "result.json").read_text())
    rows = {row["name"]: row for row in saved["workloads"]}
    assert rows["Doubling.double"]["verified"] is True and rows["Doubling.double"]["error"] == 0.0
    assert rows["Doubling.double"]["iterations"] == 3 and rows["Doubling.double"]["speedup"] > 0
    assert rows["Doubling.free"]["verified"] is None and len(saved["script_sha256"]) == 64


def test_what_is_wrong_is_a_row_and_exit_1(repository):
    write(repository, SCRIPT.format(package="kernels_hub") + WRONG)
    result = run(repository, "--json")
    assert result.exit_code == 1
    rows = {row["name"]: row for row in json.loads(result.output)["workloads"]}
    assert rows["Doubling.wrong"]["verified"] is False
    assert rows["Doubling.wrong"]["reason"].startswith("it differs from its reference by")
    assert rows["Doubling.raises"]["reason"] == "RuntimeError: no device"
    assert rows["Doubling.double"]["verified"] is True


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, r"has no benchmarks: expected benchmarks/benchmark\*.py"),
        ("x = 1", "defines no Benchmark"),
        ("import surely_not_here", "needs the package 'surely_not_here', which is not here"),
        ("1 / 0", "does not load: ZeroDivisionError"),
        ("from kernels_hub import Benchmark\nclass B(Benchmark): ...", "has no method benchmark_<name>"),
    ],
)
def test_bad_repositories(repository, text, words):
    if text is not None:
        write(repository, text)
    result = run(repository)
    assert isinstance(result.exception, BenchmarkError)
    with pytest.raises(BenchmarkError, match=words):
        raise result.exception
