"""Work in a forked process: what counts against its time."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from threadpoolctl import threadpool_info

from kernels_hub.cxx_compiler import NICENESS
from kernels_hub.kernelization.forked import Child, DeadlineError, run_forked
from tests.warm_process import run_script

WORK = """
import time
from kernels_hub.kernelization.forked import Child, run_forked

def work():
    print("began", flush=True)
    time.sleep(%s)
    return "done"

print("ready", flush=True)
print(run_forked(work, seconds=0.5, background=False, child=Child()))
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs signals that stop a process")
def test_time_in_which_the_process_is_stopped_does_not_count():
    """As on a machine that is suspended: what was made meanwhile is taken, and no deadline is remembered."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORK % 0.8], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(2.5)  # more than its patience, four times its seconds
    os.kill(process.pid, signal.SIGCONT)
    output, _ = process.communicate(timeout=60)
    assert output == "done\n", output


def test_what_never_ends_is_ended():
    found = run_script(WORK % 1000, timeout=60)
    assert "DeadlineError: it took more than 0.5 s" in found.stderr


class Finalized:
    """Garbage in a ring, which waits in any process but its own, as for a thread that is not there."""

    def __init__(self, began: threading.Event) -> None:
        self.itself, self.owner, self.began = self, os.getpid(), began

    def __del__(self) -> None:
        if os.getpid() != self.owner:
            threading.Event().wait()
        self.began.set()


def test_garbage_of_the_parent_is_left_to_it() -> None:
    """Its finalizers may need what a fork does not have."""
    is_finalized = threading.Event()
    gc.collect()
    gc.disable()
    try:
        Finalized(is_finalized)
        assert run_forked(lambda: gc.collect() >= 0, seconds=2, background=False, child=Child())
        assert not is_finalized.is_set()
    finally:
        gc.enable()
    gc.collect()
    assert is_finalized.is_set()


def test_what_hangs_says_where(capfd: pytest.CaptureFixture[str]) -> None:
    """All of its threads, so that a lock that a fork left taken is found from the log alone."""
    lock = threading.Lock()
    lock.acquire()

    def waits_for_a_lock_of_the_parent() -> str:
        with lock:
            return "done"

    with pytest.raises(DeadlineError) as raised:
        run_forked(waits_for_a_lock_of_the_parent, seconds=0.2, background=False, child=Child())
    assert "waits_for_a_lock_of_the_parent" in raised.value.log and not raised.value.worked
    assert capfd.readouterr() == ("", "")


def test_it_works_with_a_low_priority_on_half_of_the_cores() -> None:
    """In the parent's session: the priority of one in another counts for nothing. No thread waits for another's core."""
    cores = len(os.sched_getaffinity(0))

    def work() -> tuple[int, int, int, int, set[int]]:
        blas = {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}
        own = len(os.sched_getaffinity(0))
        return os.getpriority(os.PRIO_PROCESS, 0), os.getsid(0), own, torch.get_num_threads(), blas

    niceness, session, own, threads, blas = run_forked(work, seconds=60, background=True, child=Child())
    assert niceness == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    assert session == os.getsid(0)
    assert own == cores - cores // 2
    assert threads <= own
    assert blas and max(blas) <= own
