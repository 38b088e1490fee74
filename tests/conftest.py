"""What holds for all tests: none reaches a Hub but one of its own (whatever asks without naming one finds a closed
door), and each process sees the same ones in the same order.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Generator

import pytest
from hypothesis import settings

# Before huggingface_hub is imported, which reads them once. Subprocesses inherit them.
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"
for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "KERNELS_CACHE", "LOCAL_KERNELS"):
    os.environ.pop(name, None)
os.environ["HF_HUB_OFFLINE"] = "0"  # said, or the demo would say "1" for all tests after it

# Torch as the registry has it is built for CUDA; what a test does not name is the CPU all the same.
os.environ["KERNELS_HUB_BACKEND"] = "cpu"

# Layers that are compiled just in time are there when a call returns, and are used however fast they are; the tests of
# compilation in the background say otherwise.
os.environ["KERNELS_HUB_JIT"] = "wait"
os.environ["KERNELS_HUB_JIT_TRIAL"] = "off"
# Every kernel of a mapping runs, whatever it gains on the processor that the tests happen to run on.
os.environ["KERNELS_HUB_CALIBRATION"] = "ignore"

# Tests of several processes share the cores: threads of OpenMP that wait for each other sleep, instead of keeping the
# cores from those that they wait for. Read when torch is imported; subprocesses inherit it.
for name, value in (("OMP_WAIT_POLICY", "passive"), ("GOMP_SPINCOUNT", "0")):
    os.environ.setdefault(name, value)

# The same examples every time, so that a failure is of the change that brought it. To look for new ones:
# HYPOTHESIS_PROFILE=default python -m pytest …
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--exhaustive`, which `make test-all` passes."""
    parser.addoption(
        "--exhaustive",
        action="store_true",
        default=False,
        help="run the tests marked exhaustive, and give fuzzers their long budget",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Tell fuzzers, which read it when they are collected, how long they may take."""
    if config.getoption("--exhaustive"):
        os.environ["KERNELS_HUB_TEST_EXHAUSTIVE"] = "1"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what the processes of a session would make again and again.

    Bytecode of tests and library is written, even where PYTHONDONTWRITEBYTECODE is set, as in many containers: else
    each of hundreds of processes that import the library compiles it. What is there after collection stays until the
    end: a million objects, on which every collection of garbage would spend half a second.
    """
    writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = writes_none
        gc.collect()
        gc.freeze()


def longest_first(items: list[pytest.Item]) -> None:
    """Sort files with many slow tests to the front, the others in their order.

    Processes that share the files out then end together: a long file that is last has all others wait for it.
    """
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is too long for every change, unless it is asked for; it is not counted as skipped."""
    longest_first(items)
    if os.environ.get("KERNELS_HUB_TEST_EXHAUSTIVE") == "1":
        return
    long = [item for item in items if item.get_closest_marker("exhaustive")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Refuse parameters in a set: processes that share the tests out would have them in different orders."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        if isinstance(mark.args[1], (set, frozenset)):
            raise pytest.UsageError(
                f"{metafunc.definition.nodeid}: parametrized by a set, which has no order"
            )
