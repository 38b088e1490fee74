"""The comparison of two commits: what is computed of pairs, and that each side imports its own sources."""

from __future__ import annotations

import doctest
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import harness, paired_commits
from benchmarks.harness import CLOCK, apart
from benchmarks.paired_commits import interval, lay_out, summary

ROOT = Path(__file__).resolve().parents[2]


def test_the_example() -> None:
    assert doctest.testmod(paired_commits).failed == 0


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    source = random.Random(1)
    for count in (6, 9, 20):
        times, held, stated = 2000, 0, 0.0
        for _ in range(times):
            low, high, stated = interval([source.gauss(1.0, 0.1) for _ in range(count)])
            held += low <= 1.0 <= high
        assert stated >= 0.95
        assert abs(held / times - stated) < 0.02


def test_few_pairs_have_a_range_and_say_how_sure_it_is() -> None:
    assert interval([1.1]) == (1.1, 1.1, 0.0)
    assert interval([1.2, 1.0, 1.1]) == (1.0, 1.2, 0.75)


def test_a_summary() -> None:
    rows = [{"a": {"old_s": 2.0, "new_s": 2.0 * r, "ratio": r, "equal": True}} for r in (0.9, 1.0, 1.1)]
    rows[1]["a"]["equal"] = False
    (row,) = summary(rows).values()
    assert (row["pairs"], row["ratio"], row["old_s"], row["equal"]) == (3, 1.0, 2.0, False)


@pytest.mark.parametrize("statement", ["kernels_hub", "kernels_hub.compiler", "kernels_hub.layers"])
def test_a_laid_out_checkout_is_what_is_imported(tmp_path: Path, statement: str) -> None:
    lay_out(ROOT, tmp_path / "tree")
    code = (
        f"import importlib, importlib.metadata as m; print(importlib.import_module({statement!r}).__file__)\n"
        "print([one.value for one in m.entry_points(group='kernels_hub.layer_compilers')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "tree", capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "tree")},
    )  # fmt: skip
    file, entries = done.stdout.splitlines()
    assert Path(file).is_relative_to(tmp_path / "tree")
    assert len(eval(entries)) == 1


def reported(fails: bool) -> dict[str, str]:
    """What `apart` runs below."""
    print("output that is not the result")
    if fails:
        raise ValueError("as asked")
    return {"clock": harness.now.__name__, "pid": str(os.getpid())}


@pytest.mark.parametrize(("clock", "name"), [("processor", "process_time"), ("", "perf_counter")])
def test_steps_are_timed_by_the_clock_that_is_asked_for(clock: str, name: str) -> None:
    found = apart("tests.tools.test_paired_commits:reported", False, environment={CLOCK: clock})
    assert found["clock"] == name and found["pid"] != str(os.getpid())


def test_a_function_that_fails_in_a_process_of_its_own() -> None:
    with pytest.raises(
        RuntimeError, match=r"test_paired_commits:reported failed:(.|\n)*ValueError: as asked"
    ):
        apart("tests.tools.test_paired_commits:reported", True)
