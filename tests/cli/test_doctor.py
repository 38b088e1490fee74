"""`kernels-hub doctor`: what it says on machines that lack something, and that it never fails itself."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from kernels_hub.calibration import database
from kernels_hub.cli import doctor_checks
from kernels_hub.cli.doctor_checks import Finding, Status, examine
from kernels_hub.compiler.runtime import toolchain
from tests.cli.conftest import Run

CHECKED = {
    "platform", "locale", "processor", "torch", "triton", "GPU", "compiler", "cache", "downloads", "settings",
    "native code", "prebuilt code", "calibration", "mapping", "Hub",
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "downloads"))
    for variable in (
        "KERNELS_HUB_CALIBRATION",
        "KERNELS_HUB_DEFAULT_MAPPING",
        "HF_HUB_OFFLINE",
        "KERNELS_HUB_CXX",
        "KERNELS_HUB_PREBUILT",
    ):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


CHECK_OF = {
    "compiler": doctor_checks.check_compiler,
    "KERNELS_HUB_CXX": doctor_checks.check_compiler,
    "cache": doctor_checks.check_folders,
    "prebuilt code": doctor_checks.check_prebuilt_code,
    "calibration": doctor_checks.check_calibration,
    "mapping": doctor_checks.check_mapping,
    "Hub": doctor_checks.check_hub,
}


def found(name: str) -> Finding:
    (one,) = (one for one in examine((CHECK_OF[name],)) if one.check == name)
    return one


def test_everything_is_checked_as_text_and_as_json(run: Run, own_folders: Path):
    text = run("doctor")
    document = json.loads(run("doctor", "--json").out)
    assert {one["check"] for one in document["findings"]} == CHECKED
    assert all(
        one["found"] and one["meaning"] and one["status"] in set(Status) for one in document["findings"]
    )
    assert sum(document["counts"].values()) == len(document["findings"])
    for one in document["findings"]:
        assert one["found"] in text.out and one["meaning"] in text.out and one["next_step"] in text.out
    assert text.code == (1 if document["counts"]["problem"] else 0)
    assert list(own_folders.iterdir()) == []  # nothing is left behind


@pytest.mark.parametrize(
    ("wanted", "name", "status", "part"),
    [
        ("none", "compiler", Status.NOTE, "turned off"),
        ("/no/such/compiler", "KERNELS_HUB_CXX", Status.PROBLEM, "is not there"),
        ("false", "compiler", Status.PROBLEM, "false fails"),
    ],
)
def test_compilers_that_do_not_work(
    wanted: str, name: str, status: Status, part: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KERNELS_HUB_CXX", wanted)
    if toolchain.find_compiler() is None and wanted.startswith("/"):
        pytest.skip("needs another C++ compiler")
    one = found(name)
    assert one.status is status and part in one.found and one.next_step


def test_no_compiler(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    one = found("compiler")
    assert (one.status, one.found) == (Status.NOTE, "no C++ compiler") and "g++" in one.next_step


def test_a_compiler_without_openmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = tmp_path / "c++"
    script.write_text('#!/bin/sh\necho "x.cpp:2:10: fatal error: omp.h: No such file" >&2\nexit 1\n')
    script.chmod(0o755)
    monkeypatch.setenv("KERNELS_HUB_CXX", str(script))
    one = found("compiler")
    assert one.status is Status.PROBLEM and "omp.h" in one.found


@pytest.mark.parametrize(
    ("index", "status", "part"),
    [
        (None, Status.PROBLEM, "has no index.json"),
        ({"machine": "pdp11-linux"}, Status.PROBLEM, "it is for pdp11-linux"),
        ({}, Status.PROBLEM, "No such file"),
    ],
)
def test_prebuilt_code_that_does_not_serve(
    index: dict[str, str] | None, status: Status, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KERNELS_HUB_PREBUILT", str(tmp_path))
    if index is not None:
        levels = [{"name": "best", "file": "gone.so", "sha256": "0"}]
        machine = f"{platform.machine()}-{sys.platform}"
        text = json.dumps({"machine": machine, "units": {}, "levels": levels, **index})
        (tmp_path / "index.json").write_text(text)
    one = found("prebuilt code")
    assert one.status is status and part in one.found and one.next_step


@pytest.mark.skipif(toolchain.find_compiler() is None, reason="needs a C++ compiler")
def test_a_compiler_that_works():
    assert found("compiler").status is Status.OK


def test_a_cache_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path / "file" / "inside"))
    one = found("cache")
    assert one.status is Status.PROBLEM and "is not a folder" in one.found
    assert one.next_step.startswith("export KERNELS_HUB_CACHE=")


def test_a_folder_without_the_right_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # for root, every folder can be written to
    assert "cannot be written to" in found("cache").found


def test_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(database, "shipped", lambda _: database.GainTable())
    assert found("calibration").next_step == "kernels-hub calibrate"
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", "ignore")
    assert found("calibration").status is Status.NOTE
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", str(tmp_path / "missing.json"))
    one = found("calibration")
    assert one.status is Status.PROBLEM and "missing.json" in one.found
    table = database.GainTable()
    table.put(database.Shape("Linear", "float32", 512, 512), 64, 1.5)
    database.write(tmp_path / "pinned.json", database.this_machine(), table)
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", str(tmp_path / "pinned.json"))
    assert found("calibration").found.endswith("1 measurements")


def test_settings(monkeypatch: pytest.MonkeyPatch):
    assert found("mapping").found.startswith("default")
    monkeypatch.setenv("KERNELS_HUB_DEFAULT_MAPPING", "none")
    assert found("mapping").status is Status.NOTE
    monkeypatch.setenv("KERNELS_HUB_DEFAULT_MAPPING", "/no/such/mapping.toml")
    assert (
        found("settings").status is Status.PROBLEM
        if "mapping" not in {one.check for one in examine()}
        else True
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # read when huggingface_hub is imported
    assert "HF_HUB_OFFLINE" in found("Hub").found


def test_one_check_that_raises_leaves_the_others(monkeypatch: pytest.MonkeyPatch):
    def check_broken():
        raise RuntimeError("no home")

    first, *others = examine((check_broken, *doctor_checks.CHECKS))
    assert (first.check, first.status) == ("broken", Status.PROBLEM) and "no home" in first.found
    assert {one.check for one in others} == CHECKED


def test_without_home_compiler_network_and_utf8(tmp_path: Path):
    """A machine as bare as it can be had here, in a process of its own."""
    environment = {
        "PATH": "/nonexistent", "HOME": str(tmp_path / "file" / "home"), "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "KERNELS_HUB_DEFAULT_MAPPING": "dépôt.toml",
    }  # fmt: skip
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "kernels_hub", "doctor"]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    said = done.stdout.decode("ascii")  # nothing but ASCII is printed
    assert done.returncode == 1 and b"Traceback" not in done.stderr
    assert "is not a folder" in said and "no C++ compiler" in said and "HF_HUB_OFFLINE is set" in said
    assert "export LC_ALL=C.UTF-8" in said
