"""Native code that came along with the library: when it serves, and what is said where it cannot."""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels_hub.layers.native import prebuilt

UNIT = b'#include "own.h"\n#include <vector>\nextern "C" int sum() { return OWN; }\n'
HEADERS = {"own.h": b'#include "base.h"\n#define OWN BASE\n', "base.h": b"#define BASE 42\n", "other.h": b"x"}
DIGEST = prebuilt.digest_of(UNIT, HEADERS)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose objects, which say that they run here, hold `sum`: the better one gives 1, the other 2."""
    if (compiler := shutil.which("g++")) is None:
        pytest.skip("needs g++")
    rows = []
    for number, name in ((1, "better"), (2, "lesser")):
        source = tmp_path / f"{name}.cpp"
        source.write_text(
            f'extern "C" {{ int kh_runs_here() {{ return 1; }} int sum() {{ return {number}; }} }}'
        )
        path = tmp_path / f"kernels-{name}.so"
        subprocess.run([compiler, "-shared", "-fPIC", source, "-o", path], check=True)
        rows.append(
            {"name": name, "file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        )
    write_index(tmp_path, levels=rows)
    monkeypatch.setenv("KERNELS_HUB_PREBUILT", str(tmp_path))
    for one in (prebuilt.library, prebuilt._index):
        one.cache_clear()
    return tmp_path


def write_index(folder: Path, **changes: Any) -> None:
    path = folder / prebuilt.INDEX
    index = json.loads(path.read_text()) if path.exists() else {}
    machine = f"{platform.machine()}-{sys.platform}"
    path.write_text(json.dumps({"machine": machine, "units": {"sum.cpp": DIGEST}, **index, **changes}))


def total(unit: bytes = UNIT, headers: dict[str, bytes] = HEADERS) -> int | None:
    library = prebuilt.find("sum.cpp", unit, headers)
    return None if library is None else int(library.sum())


def test_the_best_object_serves():
    assert total() == 1


def test_only_what_is_included_counts():
    assert total(headers={**HEADERS, "other.h": b"changed"}) == 1
    assert total(headers={**HEADERS, "base.h": b"#define BASE 43\n"}) is None, "reached through own.h"
    assert total(unit=UNIT + b"\n") is None


def test_names_and_bytes_of_headers_are_told_apart():
    unit = b'#include "a.h"\n#include "b.h"\n'
    one = prebuilt.digest_of(unit, {"a.h": b"1", "b.h": b"2"})
    assert one != prebuilt.digest_of(unit, {"a.h": b"2", "b.h": b"1"})
    assert one != prebuilt.digest_of(unit, {"a.h": b"1"})
    assert one == prebuilt.digest_of(unit, {"b.h": b"2", "a.h": b"1"})


def test_it_can_be_ignored(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERNELS_HUB_PREBUILT", "ignore")
    assert total() is None


def test_a_damaged_object_is_passed_by(folder: Path):
    with (folder / "kernels-better.so").open("ab") as file:
        file.write(b"x")
    assert total() == 2
    assert "is damaged" in prebuilt.examine(folder)[1][0]


def test_one_that_is_no_library_is_passed_by(folder: Path):
    (folder / "kernels-better.so").write_bytes(b"no library")
    rows = json.loads((folder / prebuilt.INDEX).read_text())["levels"]
    rows[0]["sha256"] = hashlib.sha256(b"no library").hexdigest()
    write_index(folder, levels=rows)
    prebuilt._index.cache_clear()
    assert total() == 2
    assert "does not load" in prebuilt.examine(folder)[1][0]


def test_an_object_that_this_processor_cannot_run_is_passed_by(monkeypatch: pytest.MonkeyPatch, folder: Path):
    load = ctypes.CDLL

    def loaded(path: str) -> Any:
        library = load(path)
        if "better" in path:
            library.kh_runs_here = lambda: 0
        return library

    monkeypatch.setattr(prebuilt.ctypes, "CDLL", loaded)
    assert total() == 2
    assert "lacks an instruction set" in prebuilt.examine(folder)[1][0]


@pytest.mark.parametrize("changes", [{"machine": "pdp11-linux"}, {"levels": []}, {"levels": 3}])
def test_an_index_that_serves_nobody_is_said_once(
    changes: dict[str, Any], folder: Path, caplog: pytest.LogCaptureFixture
):
    write_index(folder, **changes)
    with caplog.at_level(logging.WARNING, "kernels_hub"):
        assert total() is None and total() is None
    assert len(caplog.records) == 1
