"""Triton kernels run under the interpreter (TRITON_INTERPRET=1) or on a GPU; elsewhere nothing is collected.

`triton.jit` reads TRITON_INTERPRET when it decorates, so one process has one or the other:
`tests/test_triton_interpreted.py` starts a session with it for each file of this folder.

On a GPU every test here carries the mark `gpu`. Under the interpreter a test that its author marked
`gpu` (too large to interpret) is skipped.
"""

from __future__ import annotations

from pathlib import Path

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

# NumPy, on which the interpreter runs, speaks up where a GPU goes to inf or NaN without a word.
SILENT_ON_A_GPU = "ignore:.*(overflow|underflow|divide by zero|invalid value) encountered:RuntimeWarning"

collect_ignore_glob = [] if RUNNABLE else ["test_*.py"]


@pytest.fixture(scope="session")
def device() -> str:
    """Where the kernels' tensors live: "cpu" under the interpreter, "cuda" on a GPU."""
    return "cpu" if INTERPRETED else "cuda"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        if not INTERPRETED:
            item.add_marker(pytest.mark.gpu)
            continue
        item.add_marker(pytest.mark.filterwarnings(SILENT_ON_A_GPU))
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU: too large for the interpreter"))
