"""Plugins, well-behaved and hostile, of Python and of C: the host lives, says in one line what was wrong, and goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels_hub.compiler import Graph, compile
from kernels_hub.compiler.engines import registry
from kernels_hub.compiler.engines.engine import Decline
from kernels_hub.compiler.engines.plugins import native
from kernels_hub.compiler.engines.plugins.native import HEADER
from kernels_hub.compiler.engines.plugins.processes import SECONDS_VARIABLE, PluginProcess
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.plan.selection import Filter, check_support
from kernels_hub.compiler.runtime.toolchain import find_compiler

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "engine_plugin_in_c" / "elementwise.c"

PLUGIN = """
import ctypes, os, time
import torch
from kernels_hub.compiler.engines.engine import Signature, Support

STAGE, DOES = {stage!r}, {does!r}

def misbehave(stage, graph=None):
    if stage != STAGE or (graph is not None and DOES.startswith("late ") and graph.name == "probe"):
        return
    what = DOES.removeprefix("late ")
    if what == "exits":
        os._exit(7)
    if what == "segfaults":
        ctypes.string_at(1)
    if what == "hangs":
        time.sleep(600)
    if what == "raises":
        raise RuntimeError("no licence")

class Plan:
    engine = {name!r}

    def __init__(self, graph):
        self.graph = graph
        types = [{{name: value.type for name, value in one.items()}} for one in (graph.inputs, graph.outputs)]
        self.signature = Signature(*types)

    def workspace_size(self, sizes):
        return {{"workspace is negative": -1, "workspace is text": "much"}}.get(DOES, 64)

    def execute(self, inputs, outputs, workspace=None, stream=None):
        misbehave("execute", self.graph)
        if DOES == "exits at negative data" and bool((inputs[0] < 0).any()):
            os._exit(9)
        if DOES == "writes past its workspace":
            torch.as_strided(workspace, (65,), (1,)).fill_(1)
        if DOES == "writes past its output":
            place = outputs[0].data_ptr() + outputs[0].nbytes
            ctypes.memset(place, 1, 4)
        if DOES == "writes to its input":
            inputs[0].add_(1)
        outputs[0].copy_(inputs[0] * 2)
        if DOES == "resizes its output":
            outputs[0].resize_(3)

    if DOES == "gives another shape":
        def compute(self, inputs, workspace=None, stream=None):
            return [inputs[0][:3] * 2]

    def serialize(self): return b"plan"
    def profile(self, inputs, repeats=10): return []

class Engine:
    name = {name!r}

    def check(self, graph, device):
        misbehave("check", graph)
        return Support()

    def compile(self, graph, device, knobs):
        misbehave("compile", graph)
        return Plan(graph)

    def load(self, payload, device): ...

misbehave("import")
ENGINE = Engine()
"""

CRASHES = {
    "exits": "it ended its process (exit status 7) at",
    "segfaults": "it crashed (SIGSEGV) at",
    "hangs": f"it took more than 4 s at {{}} and was ended ({SECONDS_VARIABLE} sets the limit)",
}
LIES = {
    "workspace is negative": "its workspace_size is -1, no number of bytes",
    "workspace is text": "its workspace_size is much, no number of bytes",
    "writes past its workspace": "it wrote outside of its workspace of 64 bytes",
    "writes past its output": "it wrote outside of the output 'y'",
    "writes to its input": "it wrote to the input 'x'",
    "resizes its output": "it made [3] of the output 'y', which is [8]",
    "gives another shape": "it gave torch.float32[3] for the output 'y', its signature says float32[8]",
}
STAGES = {
    "import": "import",
    "check": "check",
    "compile": "compile or execute",
    "execute": "compile or execute",
}

HOSTILE = {
    **{f"{does}-at-{stage}": (stage, does) for stage in STAGES for does in CRASHES},
    **{does.replace(" ", "-"): ("", does) for does in LIES},
    "raises-at-import": ("import", "raises"),
}
LATE = {"late-exit": ("check", "late exits"), "late-segfault": ("execute", "late segfaults")}
TAKEN = {
    "well-behaved": ("", ""),
    **{f"raises-at-{stage}": (stage, "raises") for stage in ("check", "compile", "execute")},
    "negative": ("", "exits at negative data"),
    **LATE,
}


def text(name: str, stage: str, does: str) -> str:
    return PLUGIN.format(name=name, stage=stage, does=does)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("plugins")
    for name, (stage, does) in {**HOSTILE, **TAKEN}.items():
        (made / f"{name.replace('-', '_')}.py").write_text(text(name, stage, does))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SECONDS_VARIABLE, "4")
        patch.setenv("KERNELS_HUB_CACHE", str(tmp_path_factory.mktemp("cache")))
        registry.set_plugin_paths([made], mode="absolute")
        yield made
        registry.set_plugin_paths([])


def double(name: str = "double") -> Graph:
    graph = Graph(name)
    graph.output("y", graph.input("x", (8,)) * 2.0)
    return graph


def test_what_crashes_hangs_or_lies_is_not_there_and_says_why(folder):
    reasons = {Path(one.source).stem.replace("_", "-"): one.reason for one in registry.failures()}
    assert set(reasons) == set(HOSTILE)
    for name, (stage, does) in HOSTILE.items():
        at = STAGES.get(stage, "")
        words = LIES.get(does) or CRASHES.get(does, "RuntimeError: no licence")
        assert words.format(at) in reasons[name], (name, reasons[name])
        assert "\n" not in reasons[name]
    assert {one.name for one in registry.engines()} >= set(TAKEN)
    assert not [one for one in sys.modules if one.startswith("kernels_hub_plugin_") and "_exits" in one]


def test_verdicts_are_kept_by_content(folder, monkeypatch):
    before = registry.failures()
    registry.reload()
    with monkeypatch.context() as patch:
        patch.setattr(PluginProcess, "load", lambda self: pytest.fail(f"{self.source.label} was tried again"))
        assert registry.failures() == before
    changed = folder / "changed.py"
    changed.write_text(text("changed", "import", "exits"))
    registry.reload()
    assert "exit status 7" in next(one.reason for one in registry.failures() if one.source == str(changed))
    changed.write_text(text("changed", "", ""))
    registry.reload()
    assert registry.engine("changed").name == "changed"
    changed.unlink()
    registry.reload()


def test_one_that_is_well_runs_here_and_apart():
    x = torch.arange(8.0)
    for isolated in (False, True):
        run = compile(double(), "cpu", engines=["well-behaved"], rewrite=False, isolated=isolated)
        assert run(x).tolist() == (2 * x).tolist()


def test_a_graph_is_tried_before_it_comes_here():
    answers = check_support(double(), "cpu", only=Filter(("late-exit", "raises-at-check", "late-segfault")))
    assert isinstance(answers["late-exit"], Decline)
    assert answers["late-exit"].reason == "engine late-exit: it ended its process (exit status 7) at check"
    assert answers["raises-at-check"].reason.endswith("threw at check: RuntimeError: no licence")
    assert answers["late-segfault"]
    with pytest.raises(
        EngineError, match=r"engine late-segfault .*it crashed \(SIGSEGV\) at compile or exec"
    ):
        compile(double(), "cpu", engines=["late-segfault"], rewrite=False)
    x = torch.ones(8)
    run = compile(double(), "cpu", exclude_engines=["cpp"], rewrite=False)
    assert torch.equal(run(x), 2 * x)  # some engine does


@pytest.mark.parametrize("stage", ["compile", "execute"])
def test_what_raises_is_one_error_that_names_the_engine(stage):
    name = f"raises-at-{stage}"
    with pytest.raises(EngineError, match=rf"^graph double: engine {name}.*RuntimeError: no licence$"):
        compile(double(), "cpu", engines=(name,))(torch.ones(8))


def test_a_crash_of_an_isolated_plugin_costs_the_call():
    run = compile(double(), "cpu", engines=["negative"], rewrite=False, isolated=True)
    x = torch.ones(8)
    assert torch.equal(run(x), 2 * x)
    with pytest.raises(
        EngineError, match=r"engine negative.*it ended its process \(exit status 9\) at execute"
    ):
        run(-x)
    assert torch.equal(run(x), 2 * x)


def test_a_bundled_engine_that_is_named_asks_no_plugin(monkeypatch):
    registry.reload()
    monkeypatch.setattr(registry, "_discover", lambda **_: pytest.fail("plugins were looked for"))
    run = compile(double(), "cpu", engines=["library"], rewrite=False)
    assert run(torch.ones(8)).tolist() == [2.0] * 8
    monkeypatch.undo()
    registry.reload()


# -- engines in C -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """build("name", source text) -> the path of a shared library."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("native")

    def build(name, source):
        code, library = folder / f"{name}.c", folder / f"{name}.so"
        code.write_text(source)
        flags = ["-x", "c", "-std=c11", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{HEADER.parent}"]
        command = [compiler, *flags, str(code), "-o", str(library)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        return library

    return build


def test_the_example_in_c(build):
    registry.set_plugin_paths([build("elementwise", EXAMPLE.read_text())], mode="absolute")
    graph = Graph("mixed")
    x, y = graph.input("x", (3, 5)), graph.input("y", (3, 5))
    graph.output("sum", (x * 2.0 + y).relu())
    graph.output("product", x * y)
    a, b = torch.randn(3, 5), torch.randn(3, 5)
    for isolated in (False, True):
        run = compile(graph, "cpu", engines=["elementwise-c"], rewrite=False, isolated=isolated)
        total, product = run(a, b)
        assert torch.equal(total, (a * 2 + b).relu()) and torch.equal(product, a * b)
    (row,) = [one for one in registry.registered() if one.name == "elementwise-c"]
    assert row.offer is not None and row.offer.devices == ("cpu",)
    cast = Graph("cast")
    cast.output("y", cast.input("x", (3,), "int32") + 1)
    answer = check_support(cast, "cpu", only=Filter(("elementwise-c",)))["elementwise-c"]
    assert isinstance(answer, Decline) and answer.reason == "it takes float32 alone"
    sized = Graph("sized")
    sized.output("y", sized.input("x", ("n",)) * 2.0)
    answer = check_support(sized, "cpu", only=Filter(("elementwise-c",)))["elementwise-c"]
    assert isinstance(answer, Decline) and "bind them" in answer.reason


def test_libraries_that_are_refused(build, tmp_path):
    source = EXAMPLE.read_text()
    late = source.replace("return KH_ENGINE_ABI;", "return 2u << 16;")
    crash = source.replace("return KH_ENGINE_ABI;", "abort();")
    paths = {}
    paths[build("late", late)] = (
        "built for version 2.0 of the engine ABI, this kernels_hub has 1.0: build it with kernels_hub_engine.h"
    )
    paths[build("empty", "int nothing;\n")] = (
        "it exports no kh_engine_abi: build it with kernels_hub_engine.h"
    )
    paths[build("crash", crash)] = "it crashed (SIGABRT) at import"
    garbage = tmp_path / "garbage.so"
    garbage.write_bytes(b"no library")
    paths[garbage] = "the library does not load"
    registry.set_plugin_paths(paths, mode="absolute")
    found = {one.source: one.reason for one in registry.failures()}
    for path, words in paths.items():
        assert words in found[str(path)]


def test_the_header_is_the_adapter_s():
    header = HEADER.read_text()
    assert f"#define KH_ENGINE_ABI_MAJOR {native.ABI_MAJOR}u" in header
    assert f"#define KH_ENGINE_ABI_MINOR {native.ABI_MINOR}u" in header
    for number, name in enumerate(native.DTYPES):
        assert f"KH_{name.upper()} = {number}" in header
