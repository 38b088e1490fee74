"""A mirror that dies anywhere: what it serves is whole, and it goes on from where it was."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels_hub.server.hub import Hub
from kernels_hub.server.maintenance import check
from kernels_hub.server.sweep import sweep
from tests.faulty_proxy import FaultyProxy
from tests.running_hub import RunningHub, start_hub
from tests.server.mirror_cases import Mirror, Source, check_whole, shown
from tests.server.test_crash import Died, Disk


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with start_hub(tmp_path_factory.mktemp("origin") / "root") as running:
        yield running


def dies_at(mirror: Mirror, step: int) -> bool:
    """Run a round that dies before one of its steps; whether it came to its end before that."""
    hub = Hub(mirror.root, create=True)
    try:
        with pytest.MonkeyPatch.context() as patched:
            disk = Disk(patched)
            disk.last = step
            mirror.round_in(hub)
        return True
    except Died:
        return False
    finally:
        hub.git.close()
        hub.database.close()


def versions(hub: Hub, source: Source) -> set[str]:
    """Releases that are shown, of a repository that is whole."""
    assert set(check_whole(hub)) <= {source.name()}
    known = hub.repositories.find("kernel", source.organisation, "k")
    if known is None or hub.mirror.is_arriving(known):
        return set()
    return {name for name in hub.store.content(known).refs.all() if name.startswith("refs/tags/")}


@pytest.mark.parametrize(
    "fresh", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["one root", "a root each time"]
)
def test_a_crash_at_any_step(fresh: bool, origin: RunningHub, tmp_path: Path):
    """fresh: every crash is the first; otherwise each comes on top of those before it."""
    source = Source(origin)
    mirror = Mirror(tmp_path / "mirror", origin.endpoint, source.only)
    before, after = set[str](), set[str]()
    for number in range(2):  # a repository that arrives, then one more release of it
        source.release(f"1.{number}.0", message="annotated")
        before, after = after, after | {f"refs/tags/v1.{number}.0"}
        if mirror.root.exists():
            shutil.copytree(mirror.root, tmp_path / "base")
        step = 0
        while not dies_at(mirror, step):
            with Hub(mirror.root, create=True) as hub:
                sweep(hub)
                assert versions(hub, source) in (before, after)
            step += 1
            if fresh:
                shutil.rmtree(mirror.root)
                if number:
                    shutil.copytree(tmp_path / "base", mirror.root)
        assert step > (20 if fresh else 5)
        with Hub(mirror.root) as hub:
            assert versions(hub, source) == after and check(hub) == []
    with origin.administer() as there, Hub(mirror.root) as here:
        assert shown(here, source.name()) == shown(there, source.name())


@pytest.mark.exhaustive
def test_kill_9_ten_times_while_it_is_served(origin: RunningHub, tmp_path: Path):
    source, random_number = Source(origin), random.Random(1)
    for number in range(6):
        source.release(f"1.{number}.0")
    with FaultyProxy(origin.endpoint) as proxy:
        # Slow enough to be killed in the middle.
        proxy.fault = lambda _: time.sleep(0.05)
        command = [sys.executable, "-m", "kernels_hub", "mirror", "--from", proxy.endpoint]
        command += ["--root", str(tmp_path / "mirror"), "--every", "1"]
        for name in source.only:
            command += ["--only", name]
        subprocess.run(
            [*command, "--only", "none/none", "--once"], check=False, capture_output=True, timeout=120
        )
        mirror = Mirror(tmp_path / "mirror", proxy.endpoint, source.only)
        killed = 0
        with start_hub(mirror.root) as serving:
            while killed < 10:
                source.release(f"2.{killed}.0")
                before = len(proxy.seen)
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                deadline = time.monotonic() + 60
                while len(proxy.seen) < before + 3 and time.monotonic() < deadline:
                    time.sleep(0.01)
                time.sleep(random_number.uniform(0, 0.6))
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                killed += 1
                with serving.administer() as hub:
                    versions(hub, source)
            mirror.brought()
            with serving.administer() as hub, origin.administer() as there:
                assert shown(hub, source.name()) == shown(there, source.name())
                assert check(hub) == []
