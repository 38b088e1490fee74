"""Slice 2: the tests that need a GPU."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.gpu.target import Case, Result, Target

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("tests/triton", "tests/compiler")


def cases(target: Target) -> Iterator[Case]:
    """One for each file with such tests, so that a crash in one leaves the others."""
    files = [
        path for place in PLACES for path in sorted((ROOT / place).rglob("test_*.py")) if _needs_gpu(path)
    ]
    if target.rehearsal:
        files = [path for path in files if path.name == "test_cuda_graph.py"]  # of which a part needs no GPU
    for path in files:
        name = str(path.relative_to(ROOT))
        yield Case(name, partial(run, name))


def _needs_gpu(path: Path) -> bool:
    interpreted = (
        ROOT / "tests" / "triton",
        ROOT / "tests" / "compiler" / "codegen" / "triton" / "interpreted",
    )
    return any(folder in path.parents for folder in interpreted) or "mark.gpu" in path.read_text(
        encoding="utf-8"
    )


def run(file: str) -> Result:
    """Counts of a session. Raises AssertionError with the end of its output where a test fails or none ran."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", file],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        found = list(ElementTree.parse(report).getroot().iter("testsuite")) if report.is_file() else []  # noqa: S314  (pytest's)
    count = {
        key: sum(int(one.get(key, 0)) for one in found) for key in ("tests", "failures", "errors", "skipped")
    }
    ran = count["tests"] > count["skipped"]
    assert done.returncode == 0 and ran, f"{count}: {(done.stdout + done.stderr)[-1500:]}"
    return count
