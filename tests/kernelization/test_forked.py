"""Work in a forked process: what counts against its time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

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
    found = subprocess.run(
        [sys.executable, "-c", WORK % 1000], capture_output=True, text=True, timeout=60, check=False
    )
    assert "DeadlineError: it took more than 0.5 s" in found.stderr


def test_what_hangs_says_where(capfd: pytest.CaptureFixture[str]) -> None:
    """All of its threads, so that a lock that a fork left taken is found from the log alone."""
    from kernels_hub.kernelization.forked import Child, DeadlineError, run_forked

    lock = threading.Lock()
    lock.acquire()

    def waits_for_a_lock_of_the_parent() -> str:
        with lock:
            return "done"

    with pytest.raises(DeadlineError) as raised:
        run_forked(waits_for_a_lock_of_the_parent, seconds=0.2, background=False, child=Child())
    assert "waits_for_a_lock_of_the_parent" in raised.value.log and not raised.value.worked
    assert capfd.readouterr() == ("", "")
