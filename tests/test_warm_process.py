"""Scripts that are run in forked processes run as in new ones."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.warm_process import StartedScript, run_script


def test_a_script_runs_as_one_of_a_new_process(tmp_path: Path):
    script = """
import atexit, os, sys, threading
assert __name__ == "__main__" and "kernels_hub" not in sys.modules and threading.active_count() == 1
def at_the_end():
    print("the end", VALUE)
atexit.register(at_the_end)
VALUE = 3
print(os.getcwd(), sys.argv, os.environ["TOLD"], "HOME" in os.environ, sys.stdin.read())
print("heard", file=sys.stderr)
import told
"""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "told.py").write_text("print('imported')")
    given = {"TOLD": "so", "PYTHONPATH": str(tmp_path / "folder")}
    done = run_script(script, "a", "b", env=given, cwd=tmp_path)
    assert done.stdout == f"{tmp_path} ['-c', 'a', 'b'] so False \nimported\nthe end 3\n", done.stderr
    assert (done.returncode, done.stderr) == (0, "heard\n")


def test_how_it_ends_is_told():
    assert run_script("raise SystemExit(3)").returncode == 3
    failed = run_script("1 / 0")
    assert failed.returncode == 1 and "ZeroDivisionError" in failed.stderr
    assert run_script("import os, signal; os.kill(os.getpid(), signal.SIGTERM)").returncode == -signal.SIGTERM


def test_processes_of_their_own():
    pids = {run_script("import os; print(os.getpid()); VALUE = 1").stdout for _ in range(2)}
    assert len(pids) == 2 and str(os.getpid()) not in pids
    assert "NameError" in run_script("print(VALUE)").stderr


def test_several_run_at_once(tmp_path: Path):
    meets = """
import pathlib, sys, time
pathlib.Path(sys.argv[1]).touch()
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.01)
print("met")
"""
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    both = StartedScript(meets, one, other), StartedScript(meets, other, one)
    assert [started.communicate(60).stdout for started in both] == ["met\n"] * 2


def test_one_that_takes_too_long_is_ended():
    with pytest.raises(subprocess.TimeoutExpired):
        run_script("import time; time.sleep(60)", timeout=0.5)
    assert run_script("import torch; print(torch.ones(2).sum().item())").stdout == "2.0\n"


def test_the_number_of_threads_is_followed():
    for threads in ("1", "2"):
        env = {**os.environ, "OMP_NUM_THREADS": threads}
        assert run_script("import torch; print(torch.get_num_threads())", env=env).stdout == f"{threads}\n"
