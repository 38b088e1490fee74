"""What holds for all tests: none reaches a Hub but one of its own (whatever asks without naming one finds a closed
door), and each process sees the same ones in the same order.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections import Counter
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

from tests import hub_databases, postgresql_server
from tests.in_memory import memory_folder

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

# The folders of `tmp_path`: no disk makes the tests wait. Read when the first of them is made.
if (memory := memory_folder()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))

# The same examples every time, so that a failure is of the change that brought it. To look for new ones:
# HYPOTHESIS_PROFILE=default python -m pytest …
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--exhaustive` and `--hub-database`, which `make test-all` passes."""
    parser.addoption(
        "--exhaustive",
        action="store_true",
        default=False,
        help="run the tests marked exhaustive, and give fuzzers their long budget",
    )
    parser.addoption(
        "--hub-database",
        choices=(hub_databases.SQLITE, hub_databases.POSTGRESQL),
        help="where every Hub of the tests has its rows; by default SQLite, and tests marked each_database both",
    )
    parser.addoption(
        "--hub-objects",
        choices=("s3", "s3-inside"),
        help="keep the large files of every Hub in an S3 store; s3-inside: clients reach it through the Hub alone",
    )
    parser.addoption(
        "--hub-servers",
        choices=("3",),
        help="serve every Hub with three servers behind nginx; with --hub-database postgresql --hub-objects s3",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Tell fuzzers, which read it when they are collected, how long they may take; and Hubs where objects go."""
    if option := config.getoption("--hub-servers"):
        from tests import nginx, running_hub, several_servers

        if nginx.LACKING is not None:
            raise pytest.UsageError(f"--hub-servers {option} {nginx.LACKING}")
        if (config.getoption("--hub-database"), config.getoption("--hub-objects")) != ("postgresql", "s3"):
            raise pytest.UsageError("--hub-servers goes with --hub-database postgresql --hub-objects s3")
        running_hub.several_servers = several_servers.start
    if option := config.getoption("--hub-objects"):
        from tests import object_store

        os.environ[object_store.OPTION] = option
        object_store.use_store_for_new_roots()
    if config.getoption("--exhaustive"):
        os.environ["KERNELS_HUB_TEST_EXHAUSTIVE"] = "1"
    if config.getoption("--hub-database") == hub_databases.POSTGRESQL and (
        lacking := postgresql_server.missing()
    ):
        raise pytest.UsageError(f"--hub-database postgresql {lacking}")


@pytest.fixture(scope="session", autouse=True)
def rows_of_all(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where the Hubs of the whole session have their rows; at its end, PostgreSQL stops."""
    if request.config.getoption("--hub-database") == hub_databases.POSTGRESQL:
        with hub_databases.rows_in(hub_databases.POSTGRESQL):
            yield
    else:
        yield
    hub_databases.stop()


@pytest.fixture(autouse=True)
def rows_in(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where the Hubs of one test have their rows; its databases go with it."""
    wanted = getattr(request, "param", None)
    if wanted == hub_databases.POSTGRESQL and (lacking := postgresql_server.missing()):
        pytest.skip(lacking)
    if wanted is None:
        yield
    else:
        with hub_databases.rows_in(wanted):
            yield
    if (folder := request.node.funcargs.get("tmp_path")) is not None:
        hub_databases.drop(folder)


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Weights and inputs are the same in every session, whichever tests their process ran before."""
    random.seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what the processes of a session would make again and again.

    Bytecode of tests and library is written, even where PYTHONDONTWRITEBYTECODE is set, as in many containers: else
    each of hundreds of processes that import the library compiles it. What is there after collection stays until the
    end: a million objects, on which every collection of garbage would spend half a second. And garbage is looked for
    after 50,000 new objects, not 700: of what torch.export makes, nearly all lives on, and a twentieth of the time was
    spent to find that out.
    """
    gc.set_threshold(50_000, 20, 50)
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
    if config.getoption("--hub-database") == hub_databases.POSTGRESQL:
        _deselect(config, items, "sqlite")
    if config.getoption("--hub-objects") == "s3":
        _deselect(config, items, "own_addresses")
    if config.getoption("--hub-objects"):
        # Where rows are in PostgreSQL as well, a new Hub has its git data in the store.
        every = config.getoption("--hub-database") == hub_databases.POSTGRESQL
        _deselect(config, [item for item in items if every or _has_postgresql(item)], "git_folder", items)
    if os.environ.get("KERNELS_HUB_TEST_EXHAUSTIVE") == "1":
        return
    _deselect(config, items, "exhaustive")


def _has_postgresql(item: pytest.Item) -> bool:
    """Whether a test has a database of PostgreSQL, which it asks for itself, or which it is run with."""
    of_each = getattr(getattr(item, "callspec", None), "params", {}).get("rows_in")
    return of_each == hub_databases.POSTGRESQL or "database" in getattr(item, "fixturenames", ())


def _deselect(
    config: pytest.Config, among: list[pytest.Item], mark: str, items: list[pytest.Item] | None = None
) -> None:
    """Leave out what has a mark. items: everything, where `among` is a part of it."""
    items = among if items is None else items
    left = [item for item in among if item.get_closest_marker(mark)]
    if left:
        config.hook.pytest_deselected(items=left)
        gone = set(left)
        items[:] = [item for item in items if item not in gone]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what is marked so on each database.

    Parameters in a set are refused: processes that share the tests out would have them in different orders.
    """
    marked = metafunc.definition.get_closest_marker
    if marked("each_database") and not marked("sqlite") and not metafunc.config.getoption("--hub-database"):
        databases = (hub_databases.SQLITE, hub_databases.POSTGRESQL)
        metafunc.parametrize("rows_in", databases, indirect=True)
    for mark in metafunc.definition.iter_markers("parametrize"):
        if isinstance(mark.args[1], (set, frozenset)):
            raise pytest.UsageError(
                f"{metafunc.definition.nodeid}: parametrized by a set, which has no order"
            )
