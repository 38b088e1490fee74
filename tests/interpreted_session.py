"""Triton's interpreter in the tests: sessions of it, and what both folders of kernels' tests do in one.

`triton.jit` reads TRITON_INTERPRET when it decorates, so one process has one or the other: `run_interpreted` starts a
session of pytest for some files, in which the kernels run on the CPU. `RUNNABLE` and `mark` are for the conftest of a
folder whose tests run in such a session or on a GPU, and are not collected elsewhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

try:
    from triton.knobs import runtime
except ImportError:  # no Triton on this platform
    INTERPRETED = False
    RUNNABLE = False
else:
    INTERPRETED = bool(runtime.interpret)
    RUNNABLE = INTERPRETED or torch.cuda.is_available()

if INTERPRETED:
    from kernels_hub.compiler.runtime.triton_versions import mend_interpreter

    mend_interpreter()

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 900

# NumPy, on which the interpreter runs, speaks up where a GPU goes to inf or NaN without a word.
SILENT_ON_A_GPU = "ignore:.*(overflow|underflow|divide by zero|invalid value) encountered:RuntimeWarning"


def run_interpreted(files: Sequence[Path], folder: Path) -> None:
    """Run tests under the interpreter; the report goes into the folder. Fails where none of a file's tests ran."""
    report = folder / "report.xml"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # The interpreter is Python over small NumPy arrays: threads cost it time and gain it none.
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    options = ("-q", "-p", "no:cacheprovider", f"--junitxml={report}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *map(str, files)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    output = done.stdout[-20_000:]
    assert done.returncode == 0, output
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    assert not any(one.find(found) is not None for one in cases for found in ("failure", "error")), output
    ran = {str(one.get("classname")).rpartition(".")[2] for one in cases if one.find("skipped") is None}
    without = [file.name for file in files if file.stem not in ran]
    assert not without, f"no test ran of {', '.join(without)}\n{output}"


def mark(items: Iterable[pytest.Item], folder: Path) -> None:
    """Mark the tests of a folder: `gpu` on a GPU; under the interpreter those that were marked so are skipped."""
    for item in items:
        if not item.path.is_relative_to(folder):
            continue
        if not INTERPRETED:
            item.add_marker(pytest.mark.gpu)
            continue
        item.add_marker(pytest.mark.filterwarnings(SILENT_ON_A_GPU))
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU: too large for the interpreter"))
