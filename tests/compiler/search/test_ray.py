"""Ray's workers: killed in the middle, on a machine that is lost, of other versions; and no result is lost.

Each scenario runs in a process of its own: Ray leaves threads and handlers in the one that uses it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernels_hub.compiler.errors import EngineError, MissingDependencyError
from kernels_hub.compiler.search import ray_executor
from kernels_hub.compiler.search.ray_executor import RayExecutor
from kernels_hub.compiler.search.workers import WorkerLostError, work

ROOT = Path(__file__).parents[3]

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'kernels-hub[distributed]'"
)


@pytest.fixture(autouse=True)
def settings_as_before() -> Iterator[None]:
    before = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    yield
    for name in [one for one in os.environ if one.startswith("RAY_")]:
        del os.environ[name]
    os.environ.update(before)


def scenario(name: str, tmp_path: Path) -> Any:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        "HOME": str(tmp_path),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "0" * 64,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    if name == "killed_workers":  # sets these itself
        environment = {one: value for one, value in environment.items() if not one.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.compiler.search.ray_scenario", name, str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def statuses(found: Any) -> list[str]:
    return [one["status"] for one in found]


@pytest.mark.exhaustive
@needs_ray
def test_killed_workers_cost_no_result(tmp_path: Path):
    before = {one for one in Path(tempfile.gettempdir()).iterdir() if one.name.startswith("kh-")}
    found = scenario("killed_workers", tmp_path)
    assert statuses(found["built"]) == ["slower"] * 5 + ["failed", "wrong"]
    assert "given up after it was tried 2 times: its worker" in found["built"][5]["reason"]
    assert [one.count("build") for one in found["calls"]] == [2, 1, 1, 1, 1, 2, 1]
    assert [one["seconds"] for one in found["timed"]] == [0.001, 0.001]
    assert found["kept"] == 7 and len(found["workers"]) >= 3 and len(found["notes"]) == 2
    # Nothing but this machine can reach it, and nothing is left of it.
    hosts = {one.rpartition(":")[0] for one in found["listening"]}
    assert hosts <= {"127.0.0.1", "[::ffff:127.0.0.1]", "[::1]"}
    assert not (tmp_path / ".ray").exists()
    after = {one for one in Path(tempfile.gettempdir()).iterdir() if one.name.startswith("kh-")}
    assert len(after - before) == 0


@pytest.mark.exhaustive
@needs_ray
def test_a_machine_that_is_lost_costs_no_result(tmp_path: Path):
    found = scenario("killed_node", tmp_path)
    assert statuses(found["built"]) == ["slower"] * 6
    assert max(one.count("build") for one in found["calls"]) == 2
    assert "is tried again: its worker" in found["notes"][0]
    assert found["kept"] == 6


# -- without Ray ------------------------------------------------------------------------------------


class FakeRay(types.ModuleType):
    """A Ray whose only worker is this process, or none."""

    def __init__(self, introduction: str | None, initialized: bool = True) -> None:
        super().__init__("ray")
        self.introduction = introduction
        self.initialized = initialized
        self.killed = 0
        self.introduce = self.run = self
        self.answers, self.alive = True, True
        """Whether a task ever ends, and whether the worker's machine is there."""

    def is_initialized(self) -> bool:
        return self.initialized

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def remote(self, *args: Any, **options: Any) -> Any:
        if options:
            return lambda actor: self
        return (lambda: work(args[0])) if args and isinstance(args[0], bytes) else self

    def wait(self, answers: Any, timeout: float) -> Any:
        ready = self.introduction is not None and (self.answers or answers == [self])
        return (answers, []) if ready else ([], answers)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": "other", "Alive": True}, {"NodeID": "n1", "Alive": self.alive}]

    def get(self, answer: Any, timeout: float | None = None) -> Any:
        return self.introduction if answer is self else answer()

    def kill(self, actor: Any) -> None:
        self.killed += 1


def introduction(**versions: str) -> str:
    return json.dumps({"where": "there:1", "node": "n1", "versions": {**ray_executor.versions(), **versions}})


def test_a_connection_that_is_there_is_used(monkeypatch: pytest.MonkeyPatch):
    ray = FakeRay(introduction())
    monkeypatch.setitem(sys.modules, "ray", ray)
    with RayExecutor() as executor:
        assert executor.max_workers == 2
        assert list(executor.map(divmod, [7], [2])) == [(3, 1)]
    assert ray.killed
    with pytest.raises(EngineError, match="no room for a worker of 1 CPUs and 1 GPUs"):
        RayExecutor(gpus=1)


def test_a_worker_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch):
    ray = FakeRay(introduction(torch="1.0"))
    monkeypatch.setitem(sys.modules, "ray", ray)
    with RayExecutor(max_workers=2) as executor:
        with pytest.raises(WorkerLostError, match=r"there:1 has .*'torch': '1.0'.*install the same"):
            executor.submit(divmod, 7, 2).result(timeout=20)
        assert ray.killed >= 1


def test_a_machine_that_is_lost_without_a_word(monkeypatch: pytest.MonkeyPatch):
    """Ray's own answer never comes: the nodes of the cluster tell."""
    ray = FakeRay(introduction())
    ray.answers = ray.alive = False
    monkeypatch.setitem(sys.modules, "ray", ray)
    with RayExecutor(max_workers=1) as executor:
        lost = executor.submit(divmod, 7, 2)
        with pytest.raises(WorkerLostError, match="there:1 was lost: its machine left the cluster"):
            lost.result(timeout=20)


def test_a_cluster_without_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ray_executor, "START_S", 0.0)
    monkeypatch.setitem(sys.modules, "ray", FakeRay(None))
    with RayExecutor() as executor, pytest.raises(WorkerLostError, match="the cluster had no room for it"):
        executor.submit(divmod, 7, 2).result(timeout=20)


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'kernels-hub\[distributed\]'"):
        RayExecutor()


def test_nothing_listens_on_all_addresses(monkeypatch: pytest.MonkeyPatch):
    """Ray decides that when it is imported."""
    for name in ray_executor._LOCAL:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "ray", FakeRay(introduction(), initialized=False))
    with pytest.raises(EngineError, match="ray was imported before"):
        RayExecutor()
