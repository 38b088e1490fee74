"""`kernels-hub variants`: ranked, with reasons, for this machine or another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.mark.parametrize("form", ["source_repository", "built_repository"])
@pytest.mark.parametrize(("device", "other"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_json(form: str, device: str, other: str, run: Run, request: pytest.FixtureRequest):
    path = request.getfixturevalue(form)
    result = run("variants", path, "--device", device, "--json")
    assert (result.code, result.err) == (0, "")
    found = json.loads(result.out)
    assert found["system"]["backend"] == device
    assert found["variants"] == [
        {"variant": f"torch-{device}", "accepted": True, "reason": None},
        {
            "variant": f"torch-{other}",
            "accepted": False,
            "reason": f"it is for backend {other}, not {device}",
        },
    ]


def test_text(run: Run, built_repository: Path):
    (built_repository / "build" / "notes").mkdir()
    lines = run("variants", built_repository, "--device", "rocm").out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["notes", "rejected"],
        ["torch-cpu", "rejected"],
        ["torch-cuda", "rejected"],
        ["none", "runs"],
    ]
    assert "--device NAME" in lines[3]
    assert "none runs" not in run("variants", built_repository, "--device", "cpu").out
    assert "'notes' does not name a variant" in lines[0]


def test_a_package_without_a_variants_name(run: Run, built_repository: Path):
    (built_repository / "build" / "torch-cpu").rename(built_repository / "mine")
    assert "taken as it is" in run("variants", built_repository / "mine").out


def test_bad_input(run: Run, tmp_path: Path, built_repository: Path):
    missing = run("variants", tmp_path / "nope")
    assert (missing.code, missing.out) == (1, "")
    assert "it does not exist; check the path" in missing.err
    device = run("variants", built_repository, "--device", "gpu")
    assert (device.code, device.out) == (1, "")
    assert "unknown backend 'gpu'; known: cpu, cuda" in device.err


def test_an_absolute_path_is_no_repository_of_a_hub(run: Run):
    result = run("variants", "/nonexistent")
    assert result.code == 1 and "no kernel repository at /nonexistent" in result.err
