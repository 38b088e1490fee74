"""Nothing that comes from a file or a Hub reaches the terminal as a control character, or as a line of its own."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from kernels_hub.cli import output
from tests.cli.conftest import Run
from tests.compiler.hostile_names import hostile_texts

CLI = Path(output.__file__).parent
TEXTS = [one for one in hostile_texts() if len(one) < 1 << 17]
OWN = {"output.py", "demo.py", "demo_onnx.py", "demo_published.py"}
"""Files that print by themselves: the functions for all others, and the demo, which shows models of its own."""


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: path.name)
def test_commands_print_through_output_alone(path: Path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    called = {
        ast.unparse(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute))
    }
    raw = {one for one in called if one in {"print", "typer.echo", "click.echo", "typer.secho"}}
    raw |= {one for one in called if one.startswith(("sys.stdout", "sys.stderr"))}
    assert not raw or path.name in OWN


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_what_is_printed_is_printable(capsys: pytest.CaptureFixture[str], text: str):
    output.echo(f"published {text}")
    output.print_fields({"summary": f"x{text}", "layers": (text, "b"), "none": None})
    output.print_columns([("a", text), (text, "b")])
    output.echo(text, err=True)
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 5 and len(err.splitlines()) == 1
    assert all(line.isprintable() for line in (*out.split("\n"), *err.split("\n")))
    output.print_json({text[:100]: text})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {text[:100]: text}
    assert all(line.isprintable() for line in printed.split("\n"))
    printed.encode()
    output.echo_lines(f"{text}\nend", err=True)
    assert all(line.isprintable() for line in capsys.readouterr().err.split("\n"))


ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\u2066\x85\u2028"


def test_metadata_that_holds_escapes(run: Run, source_repository: Path):
    manifest = source_repository / "kernel.toml"
    written = json.dumps(f"Doubles.{ESCAPES}\nlicense  MIT").replace("\x7f", "")
    manifest.write_text(
        manifest.read_text(encoding="utf-8").replace('"Doubles what it is given."', written), encoding="utf-8"
    )
    shown = run("info", source_repository)
    assert (shown.code, shown.err) == (0, "")
    assert "Doubles." in shown.out and r"\x1b[2J" in shown.out
    assert all(line.isprintable() for line in shown.out.split("\n"))
    assert not any(line.startswith("license  MIT") for line in shown.out.split("\n"))
    data = run("info", source_repository, "--json")
    assert json.loads(data.out)["summary"].startswith(f"Doubles.{ESCAPES}")
    assert all(line.isprintable() for line in data.out.split("\n"))


def test_errors_that_name_what_is_hostile(run: Run, tmp_path: Path):
    missing = tmp_path / f"no{ESCAPES}"
    failed = run("info", missing)
    assert failed.code != 0
    assert all(line.isprintable() for line in (failed.err + failed.out).split("\n"))


def test_an_onnx_file_with_escapes(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("onnx", reason="needs onnx: pip install 'kernels-hub[onnx]'")
    from tests.compiler.export.test_hostile import hostile_onnx

    monkeypatch.chdir(tmp_path)
    hostile_onnx(tmp_path / "model.onnx", [one for one in TEXTS if "\ud800" not in one and len(one) < 999])
    for command in (
        ("onnx", "check", "model.onnx"), ("engines", "check", "model.onnx"), ("view", "model.onnx", "-o", "x.html"),
    ):  # fmt: skip
        shown = run(*command)
        assert all(line.isprintable() for line in (shown.out + shown.err).split("\n")), command
