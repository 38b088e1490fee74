"""A fan-out over Ray in a process of its own: `python -m tests.compiler.search.ray_scenario NAME FOLDER`.

Prints JSON: what became of each candidate, and what each was asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from kernels_hub.compiler.search.candidate import SearchCandidate
from kernels_hub.compiler.search.fanout import Progress, fan_out, measure_together
from kernels_hub.compiler.search.journal import Journal
from kernels_hub.compiler.search.ray_executor import RayExecutor
from tests.compiler.search.fake_evaluator import Fake, candidate


def killed_workers(folder: Path) -> dict[str, Any]:
    """Two workers: one is killed from outside, one by its candidate, one is ended because it hangs."""
    fake = Fake(str(folder))
    candidates = [
        candidate("waits", "wait"),
        *(candidate(f"c{place}") for place in range(4)),
        candidate("deadly", "exit"),
        candidate("off", "wrong"),
    ]
    with RayExecutor(max_workers=2) as executor, killing(fake, candidates[0], folder):
        found = run(candidates, fake, executor, folder, notes=[], retries=1)
        listening = sockets()
    return {**found, "listening": listening}


def killed_node(folder: Path) -> dict[str, Any]:
    """A cluster of two machines, one of which is lost."""
    home = tempfile.mkdtemp(prefix="kh-", dir="/tmp")
    os.environ["RAY_TMPDIR"] = home
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    fake = Fake(str(folder))
    candidates = [candidate(f"w{place}", "wait") for place in range(2)]
    candidates += [candidate(f"c{place}") for place in range(4)]
    notes: list[str] = []
    try:
        with RayExecutor(cluster.address) as executor:
            assert executor.max_workers == 2

            def kill() -> None:
                until(lambda: all(fake.calls(one) for one in candidates[:2]))
                cluster.remove_node(node, allow_graceful=False)
                until(lambda: notes)
                (folder / "go").touch()

            thread = threading.Thread(target=kill)
            thread.start()
            found = run(candidates, fake, executor, folder, notes=notes)
            thread.join()
        assert not ray.is_initialized()
    finally:
        cluster.shutdown()
        shutil.rmtree(home, ignore_errors=True)
    return found


def run(
    candidates: list[SearchCandidate],
    fake: Fake,
    executor: RayExecutor,
    folder: Path,
    *,
    notes: list[str],
    retries: int = 2,
) -> dict[str, Any]:

    def listen(step: Progress) -> None:
        if step.note:
            notes.append(step.note)

    journal = Journal({"graph": "g"}, folder / "journals")
    build = partial(fake, build_only=True)
    built = fan_out(candidates, build, executor, journal=journal, retries=retries, on_progress=listen)
    timed = measure_together(candidates[1:3], fake, executor, journal=journal)
    return {
        "built": [asdict(one) for one in built],
        "timed": [asdict(one) for one in timed],
        "calls": [fake.calls(one) for one in candidates],
        "workers": sorted({pid for one in candidates for pid in fake.processes(one)}),
        "notes": notes,
        "kept": len(Journal({"graph": "g"}, folder / "journals").known("built")),
    }


@contextlib.contextmanager
def killing(fake: Fake, one: SearchCandidate, folder: Path) -> Iterator[None]:
    """The process that works at a candidate is killed by its number, once."""

    def kill() -> None:
        until(lambda: fake.processes(one))
        os.kill(fake.processes(one)[0], signal.SIGKILL)
        (folder / "go").touch()

    thread = threading.Thread(target=kill)
    thread.start()
    yield
    thread.join()


def until(what: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def sockets() -> list[str]:
    """Addresses that Ray listens on."""
    lines = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=False).stdout.splitlines()
    ours = f"pid={os.getpid()},"
    return [line.split()[3] for line in lines if "ray" in line or "gcs" in line or ours in line]


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))))
