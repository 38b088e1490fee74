"""The kernels run under the interpreter (TRITON_INTERPRET=1) or on a GPU; elsewhere nothing is collected.

`triton.jit` reads TRITON_INTERPRET when it decorates, so one process has one or the other: `../test_interpreted.py`
starts a session with it. On a GPU every test here carries the mark `gpu`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels_hub.compiler.engines.engine import Device

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
def device() -> Device:
    """Where the kernels run."""
    if INTERPRETED:
        return Device("cpu")
    from kernels_hub.compiler.devices import find_device

    return find_device("cuda")


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELS_HUB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        if INTERPRETED:
            item.add_marker(pytest.mark.filterwarnings(SILENT_ON_A_GPU))
        else:
            item.add_marker(pytest.mark.gpu)
