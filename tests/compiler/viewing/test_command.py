"""`kernels-hub view`: what it writes, and what it refuses."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from kernels_hub.cli.view import view
from kernels_hub.compiler import CompilerError, print_graph
from tests.compiler.viewing.graphs import encoder

APP = typer.Typer()
APP.command()(view)


@pytest.fixture
def printed(tmp_path):
    path = tmp_path / "encoder.txt"
    path.write_text(print_graph(encoder(2), data=True), encoding="utf-8")
    return path


def run(*args):
    return CliRunner().invoke(APP, [str(arg) for arg in args])


@pytest.mark.parametrize(
    ("suffix", "start"), [(".html", "<!doctype html>"), (".svg", "<svg "), (".dot", "digraph ")]
)
def test_formats(printed, suffix, start):
    target = printed.with_suffix(suffix)
    done = run(printed, "-o", target)
    assert done.exit_code == 0, done.output
    assert target.read_text(encoding="utf-8").startswith(start)
    assert "encoder" in done.output and "nodes" in done.output


def test_optimized(printed):
    target = printed.with_suffix(".html")
    assert run(printed, "-o", target, "--optimized", "--size", "seq=128").exit_code == 0
    text = target.read_text(encoding="utf-8")
    assert text.count('"counts":') == 2 and '"seq":128' in text


def test_an_onnx_file(tmp_path):
    onnx = pytest.importorskip("onnx", reason="needs onnx (pip install 'kernels-hub[onnx]')")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> mlp (float[N, 4] x, float[4, 4] w) => (float[N, 4] y) '
        "{ h = MatMul(x, w) y = Relu(h) }"
    )
    onnx.save(model, tmp_path / "mlp.onnx")
    done = run(tmp_path / "mlp.onnx", "-o", tmp_path / "mlp.svg")
    assert done.exit_code == 0, done.output
    assert "matmul" in (tmp_path / "mlp.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["{here}/encoder.txt", "-o", "{here}/page.png"], "ends in none of"),
        (["{here}/nothing.onnx"], "no file is there"),
        (["{here}/encoder.txt", "-o", "{here}/no/page.html"], "no folder is there"),
        (["{here}/encoder.txt", "-o", "{here}/page.html", "--size", "seq"], "NAME=SIZE"),
        (["{here}/page.svg", "-o", "{here}/page.svg"], "the file that is read"),
    ],
)
def test_bad_arguments(printed, args, message):
    (printed.parent / "page.svg").write_text("graph ")
    done = run(*(arg.format(here=printed.parent) for arg in args))
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize("content", [b"graph \xff", b"graph nonsense", b"", b"\x00\x01no model"])
def test_bad_files(tmp_path, content):
    bad = tmp_path / "bad"
    bad.write_bytes(content)
    done = run(bad, "-o", tmp_path / "page.html")
    assert isinstance(done.exception, CompilerError), done.exception
    assert not (tmp_path / "page.html").exists()
