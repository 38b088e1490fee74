"""The kernels run under the interpreter (TRITON_INTERPRET=1) or on a GPU; elsewhere nothing is collected.

`../test_interpreted.py` starts a session of the interpreter for each file of this folder.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels_hub.compiler.engines.engine import Device
from tests.interpreted_session import INTERPRETED, RUNNABLE, mark

collect_ignore_glob = [] if RUNNABLE else ["test_*.py"]


@pytest.fixture(scope="session")
def device() -> Device:
    """Where the kernels run."""
    if INTERPRETED:
        return Device("cpu")
    from kernels_hub.compiler.engines.devices import find_device

    return find_device("cuda")


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELS_HUB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, Path(__file__).parent)
