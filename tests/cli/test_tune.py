"""`kernels-hub tune`: what it searches, prints and writes; interrupted and resumed; and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels_hub import get_local_kernel
from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.printer import print_graph
from kernels_hub.compiler.rewrite.pipeline import PIPELINE, rewrite
from kernels_hub.compiler.runtime.toolchain import find_compiler
from kernels_hub.compiler.search import search as searching
from kernels_hub.compiler.search.candidate import Measured, SearchCandidate
from kernels_hub.compiler.search.result import SearchResult, Standing, Tried
from tests.cli.conftest import Run
from tests.runtime_objects import share_runtime_objects
from tests.warm_process import StartedScript, run_script

ROOT = Path(__file__).parents[2]

FACTORIES = """
import torch
from torch import nn
from torch.export import Dim


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return torch.softmax(self.linear(x), -1) + x.mean(-1, keepdim=True)


def block():
    torch.manual_seed(0)
    return Block(), (torch.randn(3, 8),), {"x": {0: Dim("rows")}}
"""

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runtime of the generated C++ is compiled once for all tests."""
    return share_runtime_objects(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def here(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tunable.py").write_text(textwrap.dedent(FACTORIES))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "tunable", raising=False)
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(cache))
    return tmp_path


class Searched:
    """Stands in for `search`: a result as it gives them, at once. `choices`: the winner's, {} for the default."""

    def __init__(self, choices: dict[str, Any], *, interrupted: str = "", remembered: bool = False) -> None:
        self.choices, self.interrupted, self.remembered = choices, interrupted, remembered
        self.asked: dict[str, Any] = {}

    def __call__(self, graph: Graph, device: Device, **asked: Any) -> SearchResult:
        self.asked = asked
        first = SearchCandidate(
            print_graph(rewrite(graph, PIPELINE[:-1]).graph, data=True), {}, "the default", 3e-5
        )
        base = Tried(first, Measured(first.digest, "slower", None if self.remembered else 2e-5, "timed"))
        off = replace(first, choices={"tile": 8}, origin="the default; tile 8 <b>&")
        wrong = Tried(off, Measured(off.digest, "wrong", None, "output 'y' differs from the oracle's by 0.5"))
        rows: tuple[Tried, ...] = (base, wrong)
        if self.choices:
            best = replace(first, choices=self.choices, origin="the default; better loops", predicted=2e-5)
            rows = (
                Tried(best, Measured(best.digest, "fastest", 1e-5, "timed in turn", {"kernels": 2})),
                base,
                wrong,
            )
        else:
            rows = (Tried(first, replace(base.measured, status="fastest")), wrong)
            base = rows[0]
        asked["progress"](Standing("timed", 2, rows[0], 1e-5, 0.5))
        return SearchResult(
            rows, base, graph.weights, device, elapsed=0.5, remembered=self.remembered, interrupted=self.interrupted,
            log=("saturated", "timed"),
        )  # fmt: skip


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(choices: dict[str, Any], **more: Any) -> Searched:
        made = Searched(choices, **more)
        monkeypatch.setattr(searching, "search", made)
        return made

    return put


def compiled(run: Run) -> None:
    arguments = (
        "tunable:block",
        "--layer",
        "Block",
        "-o",
        "block",
        "--no-benchmark",
        "--no-training",
        "--no-triton",
    )
    result = run("compile", *arguments)
    assert result.code == 0, result.err


@needs_compiler
def test_a_repository(here: Path, run: Run, searched: Any):
    """It is made again, by the command in its card and from what was found, and gives the same numbers."""
    compiled(run)
    before = (here / "block" / "cpu" / "program.cpp").read_text()
    stub = searched({"grain": 256, "apart": "0"})
    result = run(
        "tune", "block", "--budget", "5m", "--seed", "3", "--size", "rows=70", "--page", "tuned.html"
    )
    assert result.code == 0, result.err
    assert result.out.splitlines()[-2:] == [
        "written to block; next: kernels-hub build block",
        "everything that was tried: tuned.html",
    ]
    assert "fastest, 2.00 times the default: the default; better loops" in result.out
    assert "Block in float32 on cpu" in result.out and "3 candidates in 0.5 s, 1 wrong" in result.out
    assert (stub.asked["budget"], stub.asked["seed"], stub.asked["sizes"]) == (300.0, 3, {"rows": 70})
    assert stub.asked["again"] is False
    # In the repository.
    assert (here / "block" / "cpu" / "program.cpp").read_text() != before
    knobs = json.loads((here / "block" / "call" / "knobs.json").read_text())
    (arch,) = (name for name, row in knobs.items() if "tuned" in row)
    assert (
        knobs[arch]["tuned"]["float32"]["choices"] == {"apart": "0", "grain": 256}
        and knobs[arch]["flags"] is not None
    )
    card = (here / "block" / "README.md").read_text()
    assert f"| `{arch}` | float32 | rows = 70 | 2.00 | the default; better loops |" in card
    assert "\nkernels-hub compile tunable:block --layer Block" in card
    from tunable import block  # type: ignore[import-not-found]

    module, (x,), _ = block()
    kernel = get_local_kernel(here / "block", backend="cpu")
    with torch.no_grad():
        torch.testing.assert_close(kernel.layers.Block.forward(module, x), module(x))
    assert not kernel.program.LAYER.fallbacks
    # On the page: all of it, no network, nothing that a graph is called becomes a tag.
    page = (here / "tuned.html").read_text()
    for text in (
        "2.00 times",
        "the default; tile 8 &lt;b&gt;&amp;",
        "differs from the oracle",
        "apart = 0",
        "saturated",
    ):
        assert text in page
    assert "://" not in page and "<b>&" not in page
    # Known already: the repository stays tuned, and says how much faster it was.
    searched({"grain": 256, "apart": "0"}, remembered=True)
    result = run("tune", "block")
    assert result.code == 0 and "--resume searches on" in result.out
    assert "rows = 70 | 2.00" in (here / "block" / "README.md").read_text()
    # Nothing better: it stays as it is.
    files = {one: one.read_bytes() for one in (here / "block").rglob("*") if one.is_file()}
    searched({})
    result = run("tune", "block", "--json")
    assert json.loads(result.out)["written"] is None
    assert {one: one.read_bytes() for one in (here / "block").rglob("*") if one.is_file()} == files


@needs_compiler
def test_a_factory_into_a_new_folder(here: Path, run: Run, searched: Any):
    searched({})
    result = run("tune", "tunable:block", "--layer", "Block", "-o", "new", "--afresh")
    assert result.code == 0, result.err
    assert "nothing that was tried is faster than the default" in result.out
    assert "written to new" in result.out and (here / "new" / "cpu" / "program.cpp").exists()
    assert not (here / "new" / "tuned.json").exists()


def test_json(here: Path, run: Run, searched: Any):
    stub = searched({"grain": 256})
    result = run("tune", "tunable:block", "--json", "--resume", "--budget", "90")
    assert result.code == 0, result.err
    assert stub.asked["again"] is True
    document = json.loads(result.out)
    (found,) = document["searches"]
    assert document["written"] is None
    assert found["graph"] == "block" and found["sizes"] == {"rows": 3} and found["budget"] == 90
    assert found["times_faster"] == 2 and found["log"] == ["saturated", "timed"]
    assert [(row["status"], row["winner"], row["baseline"]) for row in found["candidates"]] == [
        ("fastest", True, False), ("slower", False, True), ("wrong", False, False),
    ]  # fmt: skip
    assert found["candidates"][0]["choices"] == {"grain": 256} and found["candidates"][0]["facts"] == {
        "kernels": 2
    }


@needs_compiler
def test_interrupted_between(here: Path, run: Run, searched: Any):
    """What the search has is shown; the repository is as it was."""
    compiled(run)
    files = {one: one.read_bytes() for one in (here / "block").rglob("*") if one.is_file()}
    searched({"grain": 256}, interrupted="it was interrupted")
    result = run("tune", "block", "--page", "tuned.html")
    assert result.code == 130
    assert "interrupted; what is known is kept, go on with: kernels-hub" in result.err
    assert "The search was interrupted" in (here / "tuned.html").read_text()
    assert {one: one.read_bytes() for one in (here / "block").rglob("*") if one.is_file()} == files


BAD = {
    "a budget": (["tunable:block", "--budget", "soon"], "expected a time like 60s, 5m or 1h, got 'soon'"),
    "no budget": (["tunable:block", "--budget", "0s"], "expected a time like 60s"),
    "both": (["tunable:block", "--resume", "--afresh"], "contradict each other"),
    "no name": (["tunable:block", "-o", "out"], "give it a name with --layer"),
    "a size": (["tunable:block", "--size", "rows=many"], "write NAME=SIZE, as in batch=8, got 'rows=many'"),
    "no such size": (
        ["tunable:block", "--size", "depth=3"],
        "no dim is called 'depth'; those that may change: rows",
    ),
    "no such page": (["tunable:block", "--page", "nowhere/p.html"], "no folder is there: nowhere"),
    "no such source": (["nothing:x"], "no module 'nothing'"),
    "no such file": (["missing.onnx"], "there is no file missing.onnx"),
    "no such device": (["tunable:block", "--device", "tpu"], "there is no device 'tpu'"),
    "no repository": (["thesis"], "thesis was not written by kernels-hub compile"),
    "made in Python": (["silent"], "does not say by which command it was made"),
    "named twice": (["silent", "--layer", "X"], "says itself what it was made of"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(here: Path, run: Run, case: str):
    arguments, message = BAD[case]
    (here / "thesis").mkdir()
    (here / "silent").mkdir()
    (here / "silent" / "kernel.toml").write_text("# Emitted by kernels-hub compile.\n")
    result = run("tune", *arguments)
    assert result.code != 0
    text = " ".join(result.err.replace("│", " ").split())
    assert message in text and "Traceback" not in text, result.err


def test_without_ray(here: Path, run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(os, "environ", {**os.environ})
    result = run("tune", "tunable:block", "--ray", "local")
    assert result.code == 1 and "pip install 'kernels-hub[distributed]'" in result.err


COMMAND = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests may run where it is ignored
runpy.run_module("kernels_hub", run_name="__main__")
"""


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.slow
def test_a_search_that_is_interrupted_goes_on(here: Path, cache: Path):
    """A real one: Ctrl-C in the middle, then again; nothing that was known is built again."""
    pytest.importorskip("egglog", reason="needs egglog: pip install 'kernels-hub[search]'")
    command = (COMMAND, "tune", "tunable:block", "--jobs", "1", "--json", "--budget")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(here)}
    first = StartedScript(*command, "1h", env=environment)
    end = time.monotonic() + 120
    while sum(row.get("stage") == "built" for row in rows(cache)) < 2:
        assert time.monotonic() < end and Path(f"/proc/{first.pid}/cmdline").read_bytes(), first.communicate()
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGINT)
    ended = first.communicate(timeout=60)
    assert ended.returncode == 130, ended.stderr
    assert "interrupted; what is known is kept, go on with: kernels-hub tune tunable:block" in ended.stderr
    (found,) = json.loads(ended.stdout)["searches"]
    assert found["interrupted"] and found["candidates"]
    known = len(rows(cache))
    second = run_script(*command, "2s", env=environment, timeout=120)
    assert second.returncode == 0, second.stderr
    (again,) = json.loads(second.stdout)["searches"]
    assert again["candidates"][0]["winner"] and again["candidates"][0]["seconds"] > 0
    assert {row["digest"] for row in found["candidates"]} <= {row["digest"] for row in again["candidates"]}
    built = [row["measured"]["digest"] for row in rows(cache) if row.get("stage") == "built"]
    assert len(built) == len(set(built)), "a candidate was built twice"
    assert len(rows(cache)) >= known


def rows(cache: Path) -> list[dict[str, Any]]:
    """What is in the journal."""
    files = list((cache / "tuning" / "journals").glob("*.jsonl"))
    return [
        json.loads(line.partition(" ")[2])
        for one in files
        for line in one.read_text().splitlines()
        if "}" in line
    ]
