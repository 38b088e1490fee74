"""Run the tests of generated Triton under Triton's interpreter, in a session of its own: no GPU is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("triton", reason="needs Triton")

HERE = Path(__file__).resolve().parent
FILES = sorted((HERE / "interpreted").glob("test_*.py"))
TIMEOUT_S = 900


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
        cwd=HERE.parents[3],
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
        key: sum(int(one.get(key, 0)) for one in suites) for key in ("tests", "failures", "errors", "skipped")
    }
    assert count["failures"] == count["errors"] == 0, output
    assert count["tests"] > count["skipped"], f"no test ran\n{output}"
