"""The command line as a whole: help, versions, exit statuses, errors without tracebacks."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kernels_hub
from kernels_hub.cli import TRACEBACK
from tests.cli.conftest import Run

COMMANDS = (
    "demo", "doctor", "explain", "info", "variants", "versions", "diff", "lock", "download", "bundle", "init", "build", "publish",
    "yank", "verify", "benchmark", "trust", "key", "serve", "mirror", "hub", "view", "onnx", "compile", "tune", "calibrate", "engines",
)  # fmt: skip


def test_help_names_every_command(run: Run):
    result = run("--help")
    assert result.code == 0
    assert all(f"  {command} " in result.out for command in COMMANDS)
    assert "..." not in result.out.partition("Commands:")[2]  # no summary is cut off


def test_without_a_command_it_shows_help_and_fails(run: Run):
    result = run()
    assert result.code == 2
    assert "Usage: kernels-hub" in result.out + result.err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, run: Run):
    result = run(command, "--help")
    assert result.code == 0
    assert f"Usage: kernels-hub {command}" in result.out


def test_version(run: Run):
    assert run("--version").out == f"kernels-hub {kernels_hub.__version__}\n"


@pytest.mark.parametrize(
    "arguments", [("nope",), ("info",), ("variants",), ("explain",), ("info", "a", "b"), ("--nope",)]
)
def test_wrong_usage(arguments: tuple[str, ...], run: Run):
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert "Usage: kernels-hub" in result.err
    assert "Traceback" not in result.err


def test_an_error_is_one_line(run: Run, tmp_path):
    result = run("info", tmp_path / "nope")
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        f"kernels-hub: no kernel repository at {tmp_path / 'nope'}: it does not exist; "
        "check the path (kernels-hub init NAME writes a new one)\n"
    )


def test_an_error_comes_with_a_traceback_when_asked_for(run: Run, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(TRACEBACK, "1")
    with pytest.raises(kernels_hub.RepositoryNotFoundError):
        run("info", tmp_path / "nope")


def test_a_bug_is_one_line_too(run: Run, tmp_path, monkeypatch: pytest.MonkeyPatch):
    def broken(path: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("kernels_hub.repository.describe.describe", broken)
    result = run("info", tmp_path)
    assert (result.code, result.out) == (1, "")
    assert result.err == f"kernels-hub: ZeroDivisionError: division by zero ({TRACEBACK}=1 shows where)\n"


def test_the_installed_program():
    code = "from kernels_hub.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "info", "/nope"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)


def test_demo_passes_its_options_on(run: Run, tmp_path, monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[object, ...]] = []
    monkeypatch.setattr("kernels_hub.cli.demo.demo", lambda *options: seen.append(options))
    assert run("demo", "--pairs", "3").code == 0
    assert run("demo", "--folder", tmp_path).code == 0
    assert seen == [(3, None), (15, tmp_path)]
    assert run("demo", "--pairs", "0").code == 2
    (tmp_path / "file").touch()
    assert run("demo", "--folder", tmp_path / "file").code == 2
