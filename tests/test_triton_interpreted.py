"""Run the tests of the Triton kernels under Triton's interpreter, each file in a session of its own.

No GPU is needed, and `triton.jit` stays real in this process, for the tests that compile.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("triton", reason="needs Triton")

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "tests" / "triton").glob("test_*.py"))
TIMEOUT_S = 900


def test_every_repository_with_triton_kernels_has_a_file_here():
    with_kernels = {folder.parent.name for folder in (ROOT / "layers").glob("*/triton") if folder.is_dir()}
    assert with_kernels == {file.stem.removeprefix("test_") for file in FILES}


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_interpreted(file: Path, tmp_path: Path):
    report = tmp_path / "report.xml"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # The interpreter is Python over small NumPy arrays: threads cost it time and gain it none.
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        str(file),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    output = done.stdout[-20_000:]
    assert done.returncode == 0, output
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    count = {
        key: sum(int(suite.get(key, 0)) for suite in suites)
        for key in ("tests", "failures", "errors", "skipped")
    }
    assert count["failures"] == count["errors"] == 0, output
    assert count["tests"] > count["skipped"], f"no test ran\n{output}"
