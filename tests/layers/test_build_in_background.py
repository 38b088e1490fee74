"""The C++ of bundled layers that is not built yet: references run until it is, and no call waits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm_process import run_script

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

SCRIPT = """
import os, sys, time, torch
from kernels_hub import BundledLayerRepository
def let_it_build():
    open(os.environ["KERNELS_HUB_CACHE"] + "/go-on", "w").close()
softly = BundledLayerRepository("activation", layer_name="SiLU").load("cpu")
x = torch.randn(64, 256)
native = sys.modules[softly.__module__.partition(".")[0] + ".native"]
kernels = sys.modules[softly.__module__.partition(".")[0] + ".kernels"]
expected = torch.nn.functional.silu(x)
{beginning}
torch.testing.assert_close(softly.forward(torch.nn.SiLU(), x), expected)
print("first", kernels._library() is not None)
{ending}
"""
WAITED = """
let_it_build()
assert native.wait_for_builds(500)
print("then", kernels._library() is not None)
torch.testing.assert_close(softly.forward(torch.nn.SiLU(), x), expected)
"""


def run(
    tmp_path: Path, ending: str, *, beginning: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    found = {**os.environ, "KERNELS_HUB_CACHE": str(tmp_path), "KERNELS_HUB_JIT": "background", **environment}
    return run_script(SCRIPT.format(beginning=beginning, ending=ending), env=found, timeout=600)


def slow_compiler(tmp_path: Path) -> str:
    """A compiler that waits until `let_it_build` is called, or its process is gone, and takes no time to optimize."""
    path = tmp_path / "slow-g++"
    path.write_text(
        f"""#!/bin/sh
case "$*" in
    *--version*) ;;
    *) until [ -e "$KERNELS_HUB_CACHE/go-on" ] || ! kill -0 $PPID; do sleep 0.05; done ;;
esac
exec {shutil.which("g++")} "$@" -O1
"""
    )
    path.chmod(0o755)
    return str(path)


def test_the_reference_runs_until_it_is_built(tmp_path: Path) -> None:
    done = run(tmp_path, WAITED, KERNELS_HUB_CXX=slow_compiler(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "first False\nthen True\n", "")
    again = run(tmp_path, "", KERNELS_HUB_CXX=slow_compiler(tmp_path))
    assert again.stdout == "first True\n", "built before"


def test_calls_meanwhile_do_not_look_for_it(tmp_path: Path) -> None:
    """To look for a library is to read its sources: a millisecond, more than a small layer takes."""
    ending = """
assert kernels._library() is None
read = []
native._read_sources = lambda *given: read.append(given)
for _ in range(5):
    softly.forward(torch.nn.SiLU(), x)
print(len(read))
"""
    done = run(tmp_path, ending, KERNELS_HUB_CXX=slow_compiler(tmp_path))
    assert (done.stdout, done.returncode) == ("first False\n0\n", 0), done.stderr


def test_a_call_waits_where_it_is_asked_to(tmp_path: Path) -> None:
    (tmp_path / "go-on").touch()
    done = run(tmp_path, "", KERNELS_HUB_JIT="wait", KERNELS_HUB_CXX=slow_compiler(tmp_path))
    assert done.stdout == "first True\n", done.stderr


def test_a_build_that_fails_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "bad-g++"
    path.write_text(
        '#!/bin/sh\ncase "$*" in *--version*) echo 1 ;; *) echo no such luck >&2; exit 3 ;; esac\n'
    )
    path.chmod(0o755)
    ending = "assert native.wait_for_builds(500)\nfor _ in range(3): print(kernels._library())\n"
    done = run(tmp_path, ending, KERNELS_HUB_CXX=str(path))
    assert (done.returncode, done.stdout) == (0, "first False\nNone\nNone\nNone\n")
    assert done.stderr.count("no such luck") == 1


def test_interpreter_exit_meanwhile(tmp_path: Path) -> None:
    done = run(tmp_path, "", KERNELS_HUB_CXX=slow_compiler(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "first False\n", "")
    left = [one.name for one in (tmp_path / "native").iterdir() if one.name != ".building"]
    assert left == [], "nothing half made"


def test_forked_meanwhile(tmp_path: Path) -> None:
    ending = """
pid = os.fork()
let_it_build()
if pid == 0:
    kernels._library()
    os._exit(0 if native.wait_for_builds(500) and kernels._library() is not None else 1)
print(os.waitpid(pid, 0)[1])
"""
    done = run(tmp_path, ending, KERNELS_HUB_CXX=slow_compiler(tmp_path))
    assert (done.stdout, done.returncode) == ("first False\n0\n", 0), done.stderr


@pytest.mark.exhaustive
def test_a_build_does_not_wait_for_what_was_forked_meanwhile(tmp_path: Path) -> None:
    """Workers of a data loader live as long as training: they hold no end of a pipe that the build reads."""
    ending = """
ends, open_while_it_lives = os.pipe()
time.sleep(1)
pid = os.fork()
if pid == 0:
    os.close(open_while_it_lives)
    os.read(ends, 1)
    os._exit(0)
let_it_build()
print("built", native.wait_for_builds(100))
os.close(open_while_it_lives)
os.waitpid(pid, 0)
"""
    done = run(tmp_path, ending, KERNELS_HUB_CXX=slow_compiler(tmp_path))
    assert (done.stdout, done.returncode) == ("first False\nbuilt True\n", 0), done.stderr


@pytest.mark.exhaustive
def test_a_child_that_ends_leaves_its_parents_compiler_alone(tmp_path: Path) -> None:
    ending = """
time.sleep(1)
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    sys.exit(0)
os.waitpid(pid, 0)
let_it_build()
assert native.wait_for_builds(500)
print("then", kernels._library() is not None)
"""
    done = run(tmp_path, ending, KERNELS_HUB_CXX=slow_compiler(tmp_path))
    assert (done.stdout, done.returncode) == ("first False\nthen True\n", 0), done.stderr


@pytest.mark.exhaustive
def test_a_fork_takes_no_lock_along(tmp_path: Path) -> None:
    """Not even one that comes between opening the lock's file and locking it: libc's fork, of which Python knows not."""
    ending = """
import ctypes, threading
from pathlib import Path
ends, open_while_it_lives = os.pipe()
let_it_build()
with native.one_at_a_time(Path(os.environ["KERNELS_HUB_CACHE"])):
    if ctypes.CDLL(None).fork() == 0:
        os.close(open_while_it_lives)
        os.read(ends, 1)
        os._exit(0)
def again():
    with native.one_at_a_time(Path(os.environ["KERNELS_HUB_CACHE"])):
        pass
thread = threading.Thread(target=again, daemon=True)
thread.start()
thread.join(30)
print("again", not thread.is_alive())
"""
    done = run(tmp_path, ending, KERNELS_HUB_CXX=slow_compiler(tmp_path))
    assert (done.stdout, done.returncode) == ("first False\nagain True\n", 0), done.stderr


def test_copies_of_the_module_build_in_turns(tmp_path: Path) -> None:
    """Each layer has a copy, and a POSIX lock keeps no thread of its own process waiting."""
    ending = """
import importlib.util, sys, threading
from pathlib import Path
from kernels_hub import cxx_compiler as one
spec = importlib.util.spec_from_file_location("kernels_hub.copied", one.__file__)
other = importlib.util.module_from_spec(spec)
spec.loader.exec_module(other)
folder, entered = Path(os.environ["KERNELS_HUB_CACHE"]), threading.Event()
def enter():
    with other.one_at_a_time(folder):
        entered.set()
thread = threading.Thread(target=enter)
with one.one_at_a_time(folder):
    thread.start()
    print("meanwhile", entered.wait(0.5))
thread.join(30)
print("then", entered.is_set())
"""
    done = run(tmp_path, ending, KERNELS_HUB_CXX="none")
    assert done.stdout.endswith("meanwhile False\nthen True\n"), (done.stdout, done.stderr)


def test_an_interpreter_that_exits_waits_for_no_turn(tmp_path: Path) -> None:
    """The lock of another process, which works for long, keeps neither a build nor a compilation from ending."""
    holder = f"""
import sys
from pathlib import Path
from kernels_hub.cxx_compiler import one_at_a_time
with one_at_a_time(Path({str(tmp_path)!r}) / "native"):
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        ending = """
from kernels_hub.cxx_compiler import one_at_a_time
from kernels_hub.kernelization.background import BACKGROUND, Job
from pathlib import Path
def wait(job):
    with one_at_a_time(Path(os.environ["KERNELS_HUB_CACHE"]) / "native", lambda: BACKGROUND.ends):
        pass
BACKGROUND.submit(Job("waiting", wait))
import atexit
started = []
atexit.register(lambda: print("ends", time.monotonic() - started[0] < 4))
BACKGROUND_END = BACKGROUND.end
def end():
    started.append(time.monotonic())
    BACKGROUND_END()
atexit.register(end)
time.sleep(0.2)
"""
        done = run(tmp_path, ending)
        other.communicate("")
    assert (done.returncode, done.stdout) == (0, "first False\nends True\n"), (done.stdout, done.stderr)


def test_it_is_built_with_a_low_priority(tmp_path: Path) -> None:
    """In the session of the process: Linux groups tasks by session, and a priority counts within its group alone."""
    compiler = tmp_path / "told.sh"
    compiler.write_text(
        f'#!/bin/sh\n[ $# -gt 2 ] && echo $(nice) $(ps -o sid= -p $$) > {tmp_path}/told\nexec g++ "$@" -O1\n'
    )
    compiler.chmod(0o755)
    ending = """
from kernels_hub.cxx_compiler import NICENESS
assert native.wait_for_builds(500)
print(min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS), os.getsid(0))
"""
    done = run(tmp_path, ending, KERNELS_HUB_CXX=str(compiler))
    assert done.stdout.splitlines()[-1] == (tmp_path / "told").read_text().strip(), done.stderr


@pytest.mark.parametrize("step", ["scratch_folder", "run_compiler"])
def test_interpreter_exit_before_a_step(tmp_path: Path, step: str) -> None:
    """No compiler is started once the others were ended: nothing would be left to end it, and to clear up."""
    beginning = f"""
import threading
reached, is_ending = threading.Event(), threading.Event()
step, wait_for_builds = native.{step}, native.wait_for_builds
def late(*given, **named):
    reached.set()
    assert is_ending.wait(100)
    return step(*given, **named)
def waited(timeout):
    is_ending.set()
    return wait_for_builds(2 * timeout)
native.{step}, native.wait_for_builds = late, waited
"""
    done = run(
        tmp_path, "assert reached.wait(100)", beginning=beginning, KERNELS_HUB_CXX=slow_compiler(tmp_path)
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "first False\n", "")
    assert [one.name for one in (tmp_path / "native").iterdir()] == [".building"]
