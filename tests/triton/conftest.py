"""Triton kernels run under the interpreter (TRITON_INTERPRET=1) or on a GPU; elsewhere nothing is collected.

`tests/test_triton_interpreted.py` starts a session of the interpreter for each file of this folder.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interpreted_session import INTERPRETED, RUNNABLE, mark

collect_ignore_glob = [] if RUNNABLE else ["test_*.py"]


@pytest.fixture(scope="session")
def device() -> str:
    """Where the kernels' tensors live: "cpu" under the interpreter, "cuda" on a GPU."""
    return "cpu" if INTERPRETED else "cuda"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, Path(__file__).parent)
