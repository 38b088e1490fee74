"""The benchmark for GPUs, rehearsed: every slice runs without one, and nearly every line of it is run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from coverage import Coverage

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.journal import Entry, Journal
from benchmarks.gpu.page import write_page
from benchmarks.gpu.run import How, run_slices
from benchmarks.gpu.slices import SLICES, Slice
from benchmarks.gpu.target import Target, close, error
from kernels_hub.files import cache_folder

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "benchmarks" / "gpu"
LIGER = """
from torch import nn
class LigerRMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(nn.init.ones_(nn.Linear(width, 1).weight[0].detach()))
    def forward(self, x):
        return nn.functional.rms_norm(x, x.shape[-1:], self.weight, 1e-6)
"""
"""Stands in for Liger-Kernel, which needs a GPU."""
REHEARSED = """
import runpy, sys
import pytest

sys.argv[:], others = [sys.argv[0], "--rehearse", "--out", sys.argv[1]], sys.argv[2:]
try:
    runpy.run_module("benchmarks.gpu", run_name="__main__", alter_sys=True)
except SystemExit as ended:
    assert ended.code == 0, ended.code
sys.exit(pytest.main(others))
"""
"""`python -m benchmarks.gpu`, then pytest, in one process: each takes seconds to start."""


@pytest.mark.exhaustive
def test_the_rehearsal(tmp_path: Path) -> None:
    """Which lines run is coverage.py's to say: it looks at those of the package alone, so that the others run fast."""
    (tmp_path / "liger_kernel").mkdir()
    (tmp_path / "liger_kernel" / "transformers.py").write_text(LIGER)
    (tmp_path / "sitecustomize.py").write_text("import coverage\ncoverage.process_startup()\n")
    (cache := tmp_path / "cache").mkdir()
    for name in ("compiled", "native"):  # C++ of the runtime and of layers, which all tests share
        cache_folder(name).mkdir(parents=True, exist_ok=True)
        (cache / name).symlink_to(cache_folder(name))
    settings, out = tmp_path / "coverage.ini", tmp_path / "out"
    settings.write_text(
        f"[run]\nparallel = true\nconcurrency = thread\nsource = {PACKAGE}\ndata_file = {tmp_path / 'lines'}\n"
    )
    environment = {
        **os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "COVERAGE_PROCESS_START": str(settings),
        "KERNELS_HUB_CACHE": str(cache),
    }  # fmt: skip
    others = ["-q", "-p", "no:cacheprovider", "-k", "not test_the_rehearsal", __file__]
    done = subprocess.run(
        [sys.executable, "-c", REHEARSED, str(out), *others],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]

    journal = Journal(out / "rehearsal.jsonl")
    assert all(journal.of(one.number) for one in SLICES)
    norm = next(one for one in journal.of(3) if "normalization: RMSNorm" in one.case)
    assert set(norm.result["difference"]) == {"kernels_hub", "liger"} and norm.result["bound"] == "memory"
    page = (out / "rehearsal.html").read_text(encoding="utf-8")
    assert all(f"{one.number}. {one.name}" in page for one in SLICES) and "0 failed" in page

    coverage = Coverage(data_file=str(tmp_path / "lines"), config_file=str(settings))
    coverage.combine([str(tmp_path)])
    missed, count = [], 0
    for path in sorted(PACKAGE.glob("*.py")):
        _, lines, _, never_run, _ = coverage.analysis2(str(path))
        count += len(lines)
        missed += [f"{path.name}:{line}" for line in never_run]
    assert count > 500 and len(missed) <= 0.05 * count, f"{len(missed)} of {count} lines never ran: {missed}"


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    shown = capsys.readouterr().out
    assert all(one.proves in shown for one in SLICES)


def test_without_a_gpu_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="sees no GPU; python -m benchmarks.gpu --rehearse"):
        main(["--out", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit):
        main(["--rehearse", "--out", str(tmp_path / "file" / "out")])
    assert "cannot be made: Not a directory; name a folder of yours" in capsys.readouterr().err


STAND_IN = """
import json, os, sys, time
print("@@" + json.dumps([[1, ["right", "crashes", "hangs", "raises", "last"]], [2, ["right"]]]), flush=True)
for line in sys.stdin:
    number, case = json.loads(line)
    if case == "crashes":
        sys.stderr.write("CUDA error: an illegal memory access was encountered")
        sys.stderr.flush()
        os._exit(7)
    if case == "hangs":
        time.sleep(600)
    error = "ArithmeticError: wrong numbers" if case == "raises" else ""
    print("noise\\n@@" + json.dumps({"result": {} if error else {"x": 1}, "error": error, "seconds": 0.1}), flush=True)
"""


@pytest.mark.exhaustive
def test_a_case_that_fails_is_passed_by_and_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda command, **given: start([sys.executable, "-c", STAND_IN], **given)
    )
    journal = Journal(tmp_path / "results.jsonl")
    one = Slice(1, "stand-in", "", lambda target: iter(()), minutes=5.0, case_minutes=2 / 60)
    assert run_slices([one], journal, How(rehearsal=True))
    errors = {entry.case: entry.error for entry in Journal(tmp_path / "results.jsonl").of(1)}
    assert list(errors) == ["right", "crashes", "hangs", "raises", "last"]
    assert errors["right"] == errors["last"] == ""
    assert "ended the process (exit 7): CUDA error: an illegal" in errors["crashes"]
    assert "took over 2 s" in errors["hangs"] and "wrong numbers" in errors["raises"]

    beside = Journal(tmp_path / "beside.jsonl")
    assert run_slices([one], beside, How(rehearsal=True, once="ours", jobs=3, only="right|raises|last"))
    assert {entry.case: bool(entry.error) for entry in beside.of(1)} == {
        "right": False,
        "raises": True,
        "last": False,
    }

    size = journal.path.stat().st_size
    assert run_slices([one], journal, How(rehearsal=True)) and journal.path.stat().st_size == size, (
        "all is known"
    )
    assert run_slices([one], journal, How(rehearsal=True, retry=True)) and journal.path.stat().st_size > size
    out_of_time = Slice(1, "stand-in", "", lambda target: iter(()), minutes=0.0)
    assert not run_slices([out_of_time], Journal(tmp_path / "other.jsonl"), How(rehearsal=True))

    write_page(journal, "<GPU>", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "&lt;GPU&gt;" in page and "5 cases, 3 failed" in page and "illegal memory access" in page


def test_only_a_rehearsal_runs_slices_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, commands = subprocess.Popen, []

    def started(command: list[str], **given: Any) -> Any:
        commands.append([word for word in command if word.isdigit()])
        return start([sys.executable, "-c", STAND_IN], **given)

    monkeypatch.setattr(subprocess, "Popen", started)
    slices = [Slice(number, "stand-in", "", lambda target: iter(()), minutes=5.0) for number in (1, 2)]
    for rehearsal, processes in ((True, [["1", "2"]]), (False, [["1"], ["2"]])):
        commands.clear()
        journal = Journal(tmp_path / f"{rehearsal}.jsonl")
        assert run_slices(slices, journal, How(rehearsal=rehearsal, only="right"))
        assert [list(journal.done(number)) for number in (1, 2)] == [["right"]] * 2 and commands == processes


def test_wrong_numbers_are_refused() -> None:
    right = (torch.tensor([1.0, -4.0]), torch.arange(40))
    assert close(right, right, torch.float32) == 0.0
    with pytest.raises(ArithmeticError, match=r"the difference is 2\.5e-02, at most 1e-03"):
        close((torch.tensor([1.1, -4.0]), right[1]), right, torch.float32)
    with pytest.raises(ArithmeticError, match="the difference is inf"):
        close((torch.tensor([1.0, float("nan")]), right[1]), right, torch.float32)
    with pytest.raises(ArithmeticError, match=r"wrong picks: 12\.5% differ, at most 10% can be of equals"):
        close((right[0], torch.cat((right[1][:5] + 1, right[1][5:]))), right, torch.float32)
    assert error(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0])) == pytest.approx(0.1)


def test_short_steps_are_timed_in_a_row_as_well() -> None:
    found = Target("cpu", rehearsal=True).in_turn({"eager": lambda: 1, "kernels_hub": lambda: 2})
    assert set(found) == {"us", "ratio", "us_in_a_row", "ratio_in_a_row"}
    assert set(found["us"]) == {"eager", "kernels_hub"} and set(found["ratio_in_a_row"]) == {"kernels_hub"}
    called: list[int] = []
    assert Target("cpu", True, once="ours").in_turn({"eager": lambda: called.append(1)}) == {} and called == [
        1
    ]


def test_long_steps_are_called_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr("triton.testing.do_bench", lambda step, **options: 25.0)
    calls: list[int] = []
    target = Target("cuda", rehearsal=False)
    assert target.seconds(lambda: calls.append(1)) == 0.025 and len(calls) == 2
    monkeypatch.setattr("benchmarks.gpu.target.LONG_S", 0.0)
    assert 0 < target.seconds(lambda: calls.append(1)) < 0.02 and len(calls) == 4


def test_peers_are_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a process that has compiled nothing before, with what it measures itself."""
    import torch._inductor.config as inductor

    done: list[str] = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: done.append("reset"))
    monkeypatch.setattr(torch, "compile", lambda module, **options: done.append("compile") or module)
    monkeypatch.setattr(inductor, "autotune_local_cache", True)
    assert Target("cuda", rehearsal=False).compiled(torch.sin) is torch.sin
    assert done == ["reset", "compile"] and not inductor.autotune_local_cache
    ways = [
        Target("cuda", rehearsal, once).with_peers
        for rehearsal, once in ((False, ""), (False, "ours"), (True, ""))
    ]
    assert ways == [True, False, False]


def test_jobs_side_by_side_are_not_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rehearse", "--jobs", "2", "--out", str(tmp_path)])
    assert "--jobs 2 is for --once; what is timed runs alone" in capsys.readouterr().err
    for given, said in (
        (["--only", "("], "--only '(' is no regular expression: missing ), unterminated"),
        (["--once", "ours", "--jobs", "0"], "--jobs 0: expected one process or more"),
    ):
        with pytest.raises(SystemExit):
            main(["--rehearse", *given, "--out", str(tmp_path)])
        assert said in capsys.readouterr().err


def test_a_journal_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Journal(path).add(Entry(3, "a", 1.0, {"x": 1.5}))
    Journal(path).add(Entry(3, "b", 1.0, error="out of memory"))
    with path.open("a") as file:
        file.write('{"slice": 3, "case": "c", "sec')
    found = Journal(path)
    assert found.done(3) == {"a", "b"} and found.done(3, failed=False) == {"a"} and found.done(4) == set()
    found.add(Entry(3, "b", 2.0, {"x": 2.0}))
    assert Journal(path).done(3, failed=False) == {"a", "b"}
    assert json.loads(path.read_text().splitlines()[0])["result"] == {"x": 1.5}
