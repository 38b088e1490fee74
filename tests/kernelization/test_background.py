"""The thread that works in the background: what ends it, and what it leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels_hub.kernelization.background import BACKGROUND, Job
from tests.warm_process import run_script


def test_a_job_that_raises_ends_nothing() -> None:
    def fail(_: Job) -> None:
        raise ValueError("of a defect")

    first = BACKGROUND.submit(Job("failing", fail))
    second = BACKGROUND.submit(Job("going on", lambda _: None))
    assert first.wait(30) and second.wait(30)


THREADS_LEFT = """
import os, time, torch
from kernels_hub.kernelization.background import BACKGROUND, Job, wait_for
torch.set_num_threads(3)
x = torch.randn(1 << 20)
x.tanh()
before = set(os.listdir("/proc/self/task"))
during = set()
def work(job):
    x.tanh()
    during.update(os.listdir("/proc/self/task"))
for _ in range(3):
    assert wait_for([BACKGROUND.submit(Job("computing in parallel", work))])
    deadline = time.monotonic() + 30
    while set(os.listdir("/proc/self/task")) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    print(len(during - before), len(set(os.listdir("/proc/self/task")) - before))
    during.clear()
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")
def test_no_thread_of_openmp_is_left_of_a_job() -> None:
    """With more of them than processors, libgomp makes the threads of every model sleep between two regions."""
    done = run_script(THREADS_LEFT)
    assert done.stdout.split("\n")[:3] == ["3 0"] * 3, done.stdout
